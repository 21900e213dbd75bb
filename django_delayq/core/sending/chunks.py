"""Sender of chunks: jobs of one shard in one script call; two calls are in flight while the next chunk is packed.

What a chunk contains and how it is called is a strategy: :mod:`.job_chunks` sends jobs as they come, :mod:`.ledgers`
sends those of a bulk load, whose ledgers recognise chunks that were stored before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ..errors import DelayQError, InvalidJob
from ..job import NewJob
from ..records.keys import MAX_SHARDS
from ..records.schedule_frames import CHUNK
from ..redis.scripts import Reply
from .epoch_walk import EpochWalk

if TYPE_CHECKING:
    from ..records.layout import Epochs
    from .sender import Sender

CHUNK_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 2


class Chunk(Protocol):
    """Jobs of one shard that one script call stores."""

    #: the shard
    number: int
    #: ids of different groups differ
    group: int
    #: set by :meth:`ChunkCalls.begin`
    reply: Reply

    @property
    def ids(self) -> Collection[Any]:
        """Ids whose jobs must keep their order."""


C = TypeVar("C", bound=Chunk)


class ChunkCalls(Protocol[C]):
    """Strategy of a sender: how chunks are called, and what their replies mean."""

    def begin(self, chunk: C) -> None:
        """Begin the script call of a chunk, after the calls begun before."""

    def settle(self, chunk: C) -> Iterator[tuple[C, Sequence[int]]]:
        """Read the reply of a chunk. Yield the places of the jobs that a closed shard refused, with their chunk."""

    def forward(self, chunk: C, places: Sequence[int], epoch: tuple[int, int]) -> Iterable[C]:
        """Return chunks of a later epoch for some jobs of a chunk."""

    def epochs(self) -> Epochs:
        """Return the epochs that a chunk may have to visit, the oldest first, as known now."""


class ChunkSender(Generic[C]):
    """Sender of chunks. Jobs that a closed shard refuses go on to the next epoch.

    Chunks that share an id wait for each other: the first may have to be sent again when the second is already done.
    Replies are read in the order of the calls (:mod:`..redis.ordered`).

    Args:
        most: number of chunks that are begun before the reply of the first is read.
    """

    def __init__(self, queue: Sender, calls: ChunkCalls[C], most: int = IN_FLIGHT) -> None:
        self._calls = calls
        self._most = most
        self._walk = EpochWalk(queue, calls.epochs, create=True)
        self.in_flight: deque[C] = deque()

    def send(self, chunks: Iterable[C], ids: Set[Any], group: int = 0) -> None:
        """Send chunks that contain these ids; read the replies of earlier ones."""
        while any(sent.group == group and not ids.isdisjoint(sent.ids) for sent in self.in_flight):
            self._collect()
        self._begin(chunks)
        while len(self.in_flight) > self._most:
            self._collect()

    def finish(self) -> None:
        """Wait until every chunk that was sent has its reply."""
        while self.in_flight:
            self._collect()

    def drain(self, until: float | None = None) -> None:
        """Read outstanding replies after an error or an interrupted iterable, so that connections are clean."""
        while self.in_flight:
            with suppress(DelayQError):
                self.in_flight.popleft().reply(until)

    def _begin(self, chunks: Iterable[C]) -> None:
        for chunk in chunks:
            self._calls.begin(chunk)
            self.in_flight.append(chunk)

    def _collect(self) -> None:
        is_complete = True
        for chunk, places in self._calls.settle(self.in_flight.popleft()):
            is_complete = False
            epoch = self._walk.after(chunk.number // MAX_SHARDS)
            if epoch is not None:  # always: a deleted queue is re-created
                self._begin(self._calls.forward(chunk, places, epoch))
        if is_complete:
            self._walk.end()


def check_together(news: Iterable[NewJob], *, durable: bool = False) -> list[NewJob]:
    """Return the jobs of a call that stores, of each shard, all of its jobs or none.

    Args:
        news: the jobs.
        durable: a row is to be written for one of them.

    Raises:
        InvalidJob: they are too many for one script call, or one of them is durable.
    """
    jobs = list(islice(news, CHUNK + 1))
    if len(jobs) > CHUNK:
        raise InvalidJob(f"all_or_none is for up to {CHUNK} jobs; send several calls")
    if durable or any(job.durable for job in jobs):
        raise InvalidJob(
            "all_or_none is not for durable jobs, which the relay stores one by one; leave one of both out"
        )
    return jobs
