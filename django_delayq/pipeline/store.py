"""Root of a history: its file system, its marks and its lock. Needs no Spark.

    root/events, attempts, hours, quarantine   Delta tables (:mod:`.tables`)
    root/_checkpoints/<consumer>               Spark's positions in the streams (:mod:`.landing`)
    root/_pending_days/2030-01-31.<id>         this day's metrics are not complete everywhere
    root/_closed_before/2030-01-31             days before this one have lost events by age

A mark is an empty file whose name is its content, because every file system creates and deletes a file in one step.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

from .errors import PipelineError

#: name of the logger of a history
HISTORY_LOG: Final = "django_delayq.pipeline.history"
log = logging.getLogger(HISTORY_LOG)
#: schemes of URLs that Spark and deltalake both open
SCHEMES: Final = ("s3a", "s3", "gs", "abfss", "abfs", "hdfs")
CHECKPOINTS: Final = "_checkpoints"
PENDING: Final = "_pending_days"
CLOSED: Final = "_closed_before"
_LOCK: Final = "_lock"
_SOURCE_NAME: Final = re.compile(r"^\w+:")
_POLL_S: Final = 0.1


def is_data(path: str) -> bool:
    """Return True if a file holds data. Names of marks, checksums and incomplete files begin with ``_`` or a dot."""
    return not any(part.startswith(("_", ".")) for part in path.split("/"))


class Store:
    """Root of a history. All paths are relative to it.

    Args:
        root: a path, or a URL with one of :data:`SCHEMES`, whose credentials deltalake takes from the environment.

    Raises:
        PipelineError: the URL has another scheme.
    """

    def __init__(self, root: str) -> None:
        scheme, is_url, rest = root.partition("://")
        if is_url and scheme not in (*SCHEMES, "file"):
            raise PipelineError(
                f"The tables in {root} cannot be written, because deltalake does not open {scheme}://. Give a folder, "
                f"or a URL of {', '.join(f'{name}://' for name in SCHEMES)}; other stores can be mounted as a folder"
            )
        #: None if the root is a URL
        self.folder = None if is_url and scheme != "file" else Path(rest if is_url else root).absolute()
        self._url = root.rstrip("/") if self.folder is None else f"file://{self.folder}"

    def url(self, path: str) -> str:
        """Return the URL by which Spark opens a path. It is not quoted, because Spark uses names as they are."""
        return f"{self._url}/{path}"

    def uri(self, path: str) -> str:
        """Return the path or URL by which deltalake opens a path."""
        return self.url(path) if self.folder is None else str(self.folder / path)

    @cached_property
    def files(self) -> fs.FileSystem:
        """File system whose root is that of the history."""
        if self.folder is not None:
            return fs.SubTreeFileSystem(str(self.folder), fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self._url))

    def below(self, folder: str, *, recursive: bool = True) -> list[Any]:
        """Return pyarrow's descriptions of what is in a folder; none if it does not exist."""
        return self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=recursive))  # type: ignore[no-any-return]

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if it does not exist."""
        return sorted(info.base_name for info in self.below(folder, recursive=False))

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
        try:
            with self.files.open_input_stream(path) as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:
            return None

    def delete(self, path: str) -> None:
        """Delete a file; no-op if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_file(path)

    def mark(self, folder: str, name: str) -> None:
        """Create the empty file ``name`` in a folder, as a mark."""
        self.files.create_dir(folder, recursive=True)
        self.files.open_output_stream(f"{folder}/{name}").close()

    def closed_before(self) -> date:
        """Return the first day that may be computed again; earlier days have lost events by age."""
        return max(_days_in(self.names(CLOSED)), default=date.min)

    def close_before(self, day: date) -> None:
        """Close the days before this one; a closed day is never reopened."""
        if day > self.closed_before():
            self.mark(CLOSED, str(day))
            for earlier in self.names(CLOSED):
                if earlier < str(day):
                    self.delete(f"{CLOSED}/{earlier}")

    @contextlib.contextmanager
    def alone(
        self, wait_s: float, give_up: Callable[[], bool] = lambda: False, *, patient: bool = False
    ) -> Iterator[None]:
        """Hold the lock of a root that is a folder. It is released when the process ends.

        A URL has no lock: a second writer is refused by its commit (:mod:`.versions`).

        Args:
            wait_s: seconds to wait for another process.
            give_up: called while waiting; True = stop waiting.
            patient: after ``wait_s``, log a warning and continue to wait.

        Raises:
            PipelineError: another process still holds the lock.
        """
        if self.folder is None:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK).open("w") as lock:
            ends = time.monotonic() + wait_s
            while not _locked(lock):
                gives_up = give_up()
                if gives_up or time.monotonic() >= ends:
                    text = f"Another process uses the history in {self.folder}: wait for its end, or stop it"
                    if gives_up or not patient:
                        raise PipelineError(text)
                    log.warning("%s; waiting for it", text)
                    ends = float("inf")
                time.sleep(_POLL_S)
            yield


class PendingDays:
    """Marks of the days whose metrics must be computed or published again.

    Each mark has the id of the object that made it, and only marks that this object has made or seen are deleted by it:
    a root that is a URL may get others meanwhile.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._own = uuid.uuid4().hex[:8]
        self._known: set[str] = set()

    def see(self) -> list[date]:
        """Return the marked days, in order."""
        self._known.update(self._store.names(PENDING))
        return pending_days(self._store)

    def open_days(self) -> list[date]:
        """Return the marked days that can be computed, and remove the marks of closed days."""
        before = self._store.closed_before()
        days = self.see()
        closed = [day for day in days if day < before]
        if closed:
            log.warning(
                "events arrived for closed days, of which older events were deleted by age; their metrics stay as they "
                "are: %s",
                ", ".join(map(str, closed)),
            )
            self.settle(closed)
        return [day for day in days if day >= before]

    def note(self, days: Iterable[date]) -> None:
        """Mark days as pending. Call it before the tables of these days are changed."""
        for day in days:
            self._store.mark(PENDING, f"{day}.{self._own}")
            self._known.add(f"{day}.{self._own}")

    def settle(self, days: Iterable[date]) -> None:
        """Remove the marks of days whose metrics are complete everywhere."""
        for name in {name for day in days for name in self._known if name.startswith(f"{day}")}:
            self._store.delete(f"{PENDING}/{name}")
            self._known.discard(name)


def pending_days(store: Store) -> list[date]:
    """Return the days that are marked as pending, in order."""
    return _days_in({name.partition(".")[0] for name in store.names(PENDING)})


def read_offsets(store: Store, consumer: str) -> dict[str, Any]:
    """Return the positions up to which a checkpoint has landed all events; empty before the first batch."""
    home = f"{CHECKPOINTS}/{consumer}"
    done = [int(name) for name in store.names(f"{home}/commits") if name.isdigit()]
    text = store.read(f"{home}/offsets/{max(done)}") if done else None
    if text is None:
        return {}
    # A version, Spark's metadata, then a line for each source; here there is one. In version 2 its name comes first.
    offsets = json.loads(_SOURCE_NAME.sub("", text.splitlines()[2]))
    return offsets if isinstance(offsets, dict) else {"": offsets}


def _locked(lock: Any) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _days_in(texts: Iterable[str]) -> list[date]:
    days = []
    for text in texts:
        with contextlib.suppress(ValueError):  # a foreign file, or one of the file system
            days.append(date.fromisoformat(text))
    return sorted(days)
