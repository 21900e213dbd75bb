"""Drawing of ``delayq_status --watch`` on a terminal, with rich (extra ``[cli]``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from ..status.drawing import NO_QUEUE
from ..status.screen import COLUMNS, LOOKS, Screen

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: columns that are dropped on a narrow terminal, in this order: first those that the totals mostly cover, last
#: "reserved", because nothing else shows that a pull queue is being worked on
_DROPPED: Final = ("p50 late", "gated", "failing/s", "p99 late", "morgue", "failed", "reserved")
#: columns that are dropped after those, once the names of the queues are cut
_DROPPED_LAST: Final = ("ready", "done/s", "lag")
_GAP: Final = 2
_SHORTEST_NAME: Final = 8


@contextmanager
def live(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Show an alternate screen during the block. Yield the function that draws on it."""
    from rich.live import Live

    with Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as display:
        yield lambda content: display.update(content, refresh=True)


def draw(screen: Screen, console: Console) -> RenderableType:
    """Return the screen, cut to the size of the console, with the number of lines that do not fit."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.segment import Segments
    from rich.text import Text

    def text(line: str) -> Text:
        return Text(line, no_wrap=True, overflow="ellipsis")

    queues = _queues(screen.queues, console.width) if screen.queues else NO_QUEUE
    below = map(text, (*screen.notes, "", *screen.workers))
    page = Group(text(screen.server), Columns(screen.totals, padding=(0, _GAP)), "", queues, "", *below)
    lines = console.render_lines(page, console.options.update(height=None), pad=False, new_lines=True)
    if len(lines) > console.height:
        hidden = len(lines) - console.height + 1
        more = text(f"… {hidden} more lines: make the terminal higher")
        lines = [*lines[: console.height - 1], *console.render_lines(more, pad=False)]
    return Segments([segment for line in lines for segment in line])


def _queues(rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    """Return a table of the queues, each with as much of its trend as fits."""
    from rich.table import Table

    *names, trend = COLUMNS
    cells = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    widths = {name: max(len(name), *map(len, cells[name])) + _GAP for name in names}
    room = width - len(trend)
    for name in _DROPPED:
        if sum(widths.values()) > room:
            del widths[name]
    widths[names[0]] -= max(0, min(sum(widths.values()) - room, widths[names[0]] - _SHORTEST_NAME - _GAP))
    for name in _DROPPED_LAST:
        if sum(widths.values()) > room:
            del widths[name]
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for name, size in widths.items():
        justify: Literal["left", "right"] = "left" if name == names[0] else "right"
        grid.add_column(name, justify=justify, width=size - _GAP, no_wrap=True)
    points = min(LOOKS, width - sum(widths.values()))
    if points > 0:
        grid.add_column(trend, no_wrap=True)
        cells[trend] = tuple(cell[-points:] for cell in cells[trend])
        widths[trend] = points
    for row in zip(*(cells[name] for name in widths), strict=True):
        grid.add_row(*row)
    return grid
