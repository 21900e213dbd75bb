"""Take the pictures of the documents: ``python -m tests.pictures [--only NAME] [--seconds 210]``.

The example shop runs on servers of its own with a lot of customers. When its pages have content, each is opened by the
Chromium of the browser tests and saved in ``docs/pictures``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support import processes
from tests.support.browser import BrowserBox, find_programs

from .shop import Shop

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
#: bytes of all pictures; a clone should stay small
MOST_BYTES = 2_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _options(arguments)
    programs = find_programs()
    if isinstance(programs, str):
        print(f"No pictures without a browser: {programs}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="dq-pictures-") as folder:
        try:
            with Shop(Path(folder)) as shop, BrowserBox(programs) as box:
                _photograph(shop, box, options)
        finally:
            processes.close_watchdog()
    return _weigh(options.folder)


def _photograph(shop: Shop, box: BrowserBox, options: argparse.Namespace) -> None:
    shop.begin()
    # Only now Django is set up with the shop's settings.
    from .pages import photograph
    from .work import fill

    fill(options.seconds)
    photograph(box, shop.site, options.folder, options.only)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.pictures", description=__doc__)
    parser.add_argument("--only", default="", help="only pictures whose name contains this")
    parser.add_argument("--seconds", type=float, default=210.0, help="how long customers buy first (default: 210)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for the pictures (default: docs/pictures)")
    return parser.parse_args(arguments)


def _weigh(folder: Path) -> int:
    weight = sum(one.stat().st_size for one in folder.glob("*.png"))
    print(f"{weight / 1_000:,.0f} kB in {folder}")
    if weight > MOST_BYTES:
        print(f"More than {MOST_BYTES / 1_000:,.0f} kB: crop some, or delete those that no document shows.")
    return int(weight > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
