"""Runs of bulk writes: what a run has written already is not written again, whoever goes on with it and when.

A run is known by an id that its author chose. Its record says what its input was, so that it is gone on with only by
who brings the same; and how its chunks are made, so that a second try makes the same ones. Which of them are in is
said by its *ledger*, a hash beside each shard that it writes to (``lua/bulk.lua``): digest of a chunk -> its outcomes.
Existence alone would not do: a job that was written, ran and is gone would be written, and run, again.

A ledger outlives its shard: when an epoch is retired, or the queue deleted, it stays. What was meant for a shard that
is closed goes on to the next epoch (:mod:`..operations.resharding`), one after another, so whoever goes on with the run
finds it again.

Closing a run takes the ledgers away. A sender that was left behind, of a task that Spark tried twice for instance,
finds the run closed for another day. First the record says that it is being closed, then the layout is read, then every
ledger closed: a sender who comes to an epoch that is not in the record looks at the record before it writes there, so
either it sees that it is too late, or its epoch is in that layout. Forgetting a run goes the same way.

However many close, forget and open a run at once: a record is changed only by who has read what it is
(``lua/swap_run.lua``), so it never goes back, neither to an earlier state nor from one run to another that had its id
before. Who finds a step done does the next one; who finds that the run is no more, or another one, leaves it alone.
Ledgers are of one run only (its id and when it was opened), and may be closed any number of times.

A run that nobody closes keeps its ledgers (about half a byte for each job): see :func:`forget_old`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidJob
from ..inputs import check_int, short
from ..records import layout as layouts
from ..records.keys import number_of, runs_key
from ..redis.scripts import clear_errors

if TYPE_CHECKING:
    from ..broker import Broker

OPEN: Final = "open"
CLOSING: Final = "closing"
CLOSED: Final = "closed"
#: somebody takes it away: it is to be treated as one that is no more
FORGETTING: Final = "forgetting"
CHUNK: Final = 250
#: how chunks and their digests are made; another number, and what older releases began is not gone on with
FORM: Final = 2
MOST_ID: Final = 200
#: groups of ids that stay together in all epochs
MOST_GROUPS: Final = 4096
#: how long a closed ledger turns away who was left behind
CLOSED_MS: Final = 86_400_000
#: what the letters of the scripts are called here
OUTCOMES: Final[Mapping[str, str]] = {
    "c": "created",
    "m": "merged",
    "r": "replaced",
    "i": "ignored",
    "g": "gated",
    "e": "exists",
    "t": "taken",
    "k": "known",
    "f": "full",
    "p": "paused",
    "v": "moved",
}
#: those that are final: each row of a run comes to one of them, once
_COUNTED: Final = tuple(letter for letter in OUTCOMES if letter not in "fpv")


class RunDiffers(InvalidJob):
    """A run is gone on with, but its input, its queue or its chunks are others than those it was begun with."""


@dataclass(frozen=True, slots=True)
class Run:
    """One bulk write. Times are Unix ms on Redis's clock."""

    id: str
    queue: str
    #: (epoch, shards) of the queue when it was opened: how its chunks are made
    epochs: tuple[tuple[int, int], ...]
    opened_ms: int
    #: jobs in a chunk
    chunk: int = CHUNK
    #: what its input was: names with texts or numbers
    source: tuple[tuple[str, str], ...] = ()
    state: str = OPEN
    closed_ms: int = 0
    #: how many rows came to what; of a closed run only, see :func:`progress`
    counts: tuple[tuple[str, int], ...] = ()
    #: of its chunks and their digests; a record that does not say it is of the first
    form: int = 1

    @property
    def closed(self) -> bool:
        """Whether it has come to its end."""
        return self.state == CLOSED


def open_run(
    broker: Broker, run_id: str, queue: str, *, source: Mapping[str, object] | None = None, chunk: int = CHUNK
) -> Run:
    """Begins a run, or goes on with the one of this id.

    Args:
        broker: where its queue is.
        run_id: 1 to 200 bytes, without spaces.
        queue: which is made if there is none.
        source: what makes its input the same as before: names, sizes, partitions.
        chunk: most jobs of one script call, 1 … 250.

    Returns:
        The run as it was opened first; it may be closed, then everything is in.

    Raises:
        InvalidJob: an id or a chunk that cannot be one.
        RunDiffers: it was opened with another input, queue or chunk size.
    """
    _check(run_id, chunk)
    told = tuple(sorted((str(name), str(value)) for name, value in (source or {}).items()))
    wanted = Run(run_id, queue, _epochs_now(broker, queue), round(broker.now_ms()), chunk, told, form=FORM)
    while True:
        with clear_errors():
            fresh = broker.client.hsetnx(runs_key(broker.prefix), run_id, _encode(wanted))
        found = wanted if fresh else read_run(broker, run_id)
        if found is None:
            continue  # somebody forgot it in this moment
        if found.state == FORGETTING or (fresh and _is_closed_beside(broker, found)):
            # Who began that may not come to the end; or a run that was begun in the same ms was forgotten meanwhile.
            _forget(broker, found)
            wanted = replace(wanted, opened_ms=max(wanted.opened_ms, found.opened_ms + 1))  # for ledgers of its own
            continue
        differences = list(_differences(found, wanted))
        if differences:
            raise RunDiffers(
                f"run {run_id!r} was begun with other things: {'; '.join(differences)}. Give it what it "
                "was begun with, or begin a new run under another id"
            )
        if found.state != CLOSING:
            return found
        close_run(broker, found)  # nor who began to close it


def read_run(broker: Broker, run_id: str) -> Run | None:
    """The run of this id; None if there is none."""
    with clear_errors():
        stored = broker.client.hget(runs_key(broker.prefix), run_id)
    return None if stored is None else _decode(run_id, stored)


def runs(broker: Broker) -> list[Run]:
    """All runs that are remembered, the oldest first."""
    with clear_errors():
        stored = broker.client.hgetall(runs_key(broker.prefix))
    return sorted(
        (_decode(name.decode(), record) for name, record in stored.items()), key=lambda run: (run.opened_ms, run.id)
    )


def progress(broker: Broker, run: Run) -> Counter[str]:
    """How many rows of a run came to what so far, as Redis counted them: each once, however often it was sent.

    Chunks of two senders that are the same to the last byte are one that was sent twice.
    """
    known = next((record for _, record in _stages(broker, run)), run)
    if known.closed:
        return Counter(dict(known.counts))
    names = [f"\0{letter}" for letter in _COUNTED]
    counts: Counter[str] = Counter()
    with clear_errors(), broker.client.pipeline(transaction=False) as pipe:
        for number in _numbers(broker, known):
            pipe.hmget(ledger_key(broker, known, number), names)
        for found in pipe.execute():
            _add(counts, zip(_COUNTED, found, strict=True))
    return counts


def close_run(broker: Broker, run: Run) -> Run:
    """Ends a run: its chunks are forgotten and its counts kept in its record. Closing it again changes nothing.

    Returns:
        The run as its record has it, the same for all who close it. Of one that was forgotten nothing is kept, and a
        later one of the same id is left alone: then what was given, closed.
    """
    for stored, known in _stages(broker, run):
        if known.closed:
            return known
        if known.state == FORGETTING:
            break
        if known.state == OPEN:
            _swap(broker, run.id, stored, replace(known, state=CLOSING))
            continue
        # The ledgers keep their counts for a day, in which whoever finishes this for us finds them all.
        counts = _close_ledgers(broker, known)
        _swap(
            broker,
            run.id,
            stored,
            replace(known, state=CLOSED, closed_ms=round(broker.now_ms()), counts=tuple(sorted(counts.items()))),
        )
    return replace(run, state=CLOSED)


def forget_run(broker: Broker, run_id: str) -> bool:
    """Takes a run away with all that is remembered of it; its jobs stay. Whether there was one.

    An open run that is forgotten cannot be gone on with: what it wrote is known no more. Who is still at work on it is
    turned away.
    """
    run = read_run(broker, run_id)
    if run is not None:
        _forget(broker, run)
    return run is not None


def _forget(broker: Broker, run: Run) -> None:
    for stored, known in _stages(broker, run):
        if known.state == FORGETTING:
            _close_ledgers(broker, known)
            _swap(broker, run.id, stored, None)
        else:
            _swap(broker, run.id, stored, replace(known, state=FORGETTING))


def forget_old(broker: Broker, older_than_ms: int) -> list[str]:
    """Forgets (:func:`forget_run`) the runs whose end lies so long ago, and the open ones whose beginning does.

    A record of a closed run is small. What grows is the ledgers of runs that broke off and that nobody went on with.
    Take a time in which no run is still at work, and after which nobody will go on with one.

    Args:
        older_than_ms: the age, at least 0 ms.

    Returns:
        Their ids, the oldest first.

    Raises:
        InvalidJob: an age that cannot be one.
    """
    before = round(broker.now_ms()) - check_int("older_than_ms", older_than_ms, 0, 1 << 53)
    old = [run for run in runs(broker) if (run.closed_ms or run.opened_ms) <= before]
    for run in old:
        _forget(broker, run)
    return [run.id for run in old]


def ledger_key(broker: Broker, run: Run, number: int) -> bytes:
    """Key of the ledger of a run beside one shard, in the shard's slot.

    A run that is begun later under the id of one that was forgotten has others, whoever still works on the first.
    """
    stem = broker.shard(run.queue, number).names["body"].removesuffix(b"body")
    return stem + b"run:%b:%d" % (run.id.encode(), run.opened_ms)


def key_of(run_id: str, ident: bytes) -> bytes:
    """The key of the generation that a run makes of an id: the same with each try, so that a chunk's bytes are.

    Where one run may give an id several generations (rows of one id, payloads of one job), ``ident`` has to be more
    than the id, or they will be taken for one.
    """
    key = hashlib.blake2b(ident, digest_size=16, key=_salt(run_id)).digest()
    return key if key[0] < 0x80 else bytes((key[0] & 0x7F,)) + key[1:]  # none is durable


@lru_cache(maxsize=64)
def _salt(run_id: str) -> bytes:
    return hashlib.sha256(run_id.encode()).digest()


def epochs_of(broker: Broker, run: Run) -> layouts.Epochs:
    """``(epoch, shards)`` of every epoch to which the run may have come, the oldest first, retired ones included."""
    _, layout = broker.read_layout(run.queue)
    epochs = dict(run.epochs)
    if layout is not None:
        known = [*layout.get("past", ()), *layout.get("old", ()), *layouts.epochs_of(layout)]
        epochs |= {epoch: shards for epoch, shards in known if epoch >= run.epochs[0][0]}
    return tuple(sorted(epochs.items()))


def groups_of(run: Run) -> int:
    """Into how many groups the ids are divided, so that those of one have one place in every epoch of the run.

    What one shard sends away goes to one other one then, as a whole. Where that would make too many groups, it holds
    for the younger epochs, where most of the jobs are going to be.
    """
    groups = 1
    for _, shards in reversed(run.epochs):
        if lcm(groups, shards) <= MOST_GROUPS:
            groups = lcm(groups, shards)
    return groups


def _is_closed_beside(broker: Broker, run: Run) -> bool:
    """Whether the ledgers of a run are those of another one, which was forgotten."""
    with clear_errors():
        return bool(broker.client.hexists(ledger_key(broker, run, number_of(run.epochs[0][0], 0)), "\0closed"))


def _epochs_now(broker: Broker, name: str) -> layouts.Epochs:
    while True:
        queue = broker.queue(name)
        queue.reload()  # what this process knows of it may be old
        if queue.epochs:  # else it was deleted in this moment
            return queue.epochs


def _add(counts: Counter[str], found: Iterable[tuple[str, bytes | None]]) -> None:
    counts.update({OUTCOMES[letter]: int(times) for letter, times in found if times})


def _check(run_id: str, chunk: int) -> None:
    size = len(run_id.encode(errors="surrogatepass"))
    if not 0 < size <= MOST_ID or any(one.isspace() or not one.isprintable() for one in run_id):
        raise InvalidJob(f"a run id has 1 to {MOST_ID} bytes, none of them a space, not {short(run_id)}")
    if isinstance(chunk, bool) or not isinstance(chunk, int) or not 1 <= chunk <= CHUNK:
        raise InvalidJob(f"a chunk has 1 to {CHUNK} jobs, not {short(chunk)}")


def _differences(found: Run, wanted: Run) -> list[str]:
    pairs = [("queue", found.queue, wanted.queue), ("chunk", str(found.chunk), str(wanted.chunk))]
    if not found.closed:
        pairs.append(("the form of its chunks", str(found.form), str(wanted.form)))
    before, now = dict(found.source), dict(wanted.source)
    pairs += [(name, before.get(name, "nothing"), now.get(name, "nothing")) for name in sorted({*before, *now})]
    return [f"{name} was {short(old)} and is {short(new)}" for name, old, new in pairs if old != new]


def _numbers(broker: Broker, run: Run) -> list[int]:
    """Every shard that may have a ledger of the run."""
    return [number_of(epoch, place) for epoch, shards in epochs_of(broker, run) for place in range(shards)]


def _stages(broker: Broker, run: Run) -> Iterator[tuple[bytes, Run]]:
    """The record of a run as it is stored and what it says, read anew with each turn, for as long as it is there."""
    while True:
        with clear_errors():
            stored = broker.client.hget(runs_key(broker.prefix), run.id)
        known = None if stored is None else _decode(run.id, stored)
        if stored is None or known is None or known.opened_ms != run.opened_ms:
            return
        yield stored, known


def _swap(broker: Broker, run_id: str, stored: bytes, wanted: Run | None) -> None:
    """Changes a record, unless somebody else did so since ``stored`` was read; None = it is taken off."""
    key = runs_key(broker.prefix).encode()
    broker.scripts.call("swap_run", (key,), run_id, stored, b"" if wanted is None else _encode(wanted))


def _close_ledgers(broker: Broker, run: Run) -> Counter[str]:
    """What they have counted, whoever closed them first."""
    counts: Counter[str] = Counter()
    for number in _numbers(broker, run):
        found = broker.scripts.call("close_run", (ledger_key(broker, run, number),), CLOSED_MS)
        _add(counts, zip((letter.decode() for letter in found[::2]), found[1::2], strict=True))
    return counts


def _encode(run: Run) -> bytes:
    return json.dumps({name: value for name, value in asdict(run).items() if name != "id"}).encode()


def _decode(run_id: str, stored: bytes) -> Run:
    told: dict[str, Any] = json.loads(stored)
    # A newer release may say more.
    known = {field.name: told[field.name] for field in fields(Run) if field.name in told}
    for name in ("epochs", "source", "counts"):
        known[name] = tuple(tuple(pair) for pair in known.get(name, ()))
    return Run(run_id, **known)
