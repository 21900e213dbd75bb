"""Files and folders of the lake: through Python if its root is a path, through Hadoop if it is a URL."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK: Final = "_lock"
_POLL_S: Final = 0.1


class Files(Protocol):
    """File system of a lake; every path is relative to the root."""

    def url(self, path: str) -> str:
        """Return the URL by which Spark opens a path."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if it does not exist."""
        ...

    def size(self, path: str) -> tuple[int, int]:
        """Return the bytes and the number of the data files in a folder and below; (0, 0) if it does not exist."""
        ...

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write a file with this text, completely or not at all."""
        ...

    def move(self, source: str, target: str) -> None:
        """Rename the folder ``source`` to ``target``, which must not exist."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents; no-op if it does not exist."""
        ...

    def alone(self, wait_s: float, give_up: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        """Hold the lake's lock, so that no other process changes it, if the file system has locks."""
        ...


def files_at(root: str, spark: SparkSession | None) -> Files:
    """Return the file system of a root.

    Raises:
        PipelineError: the root is a URL, and there is no session of Spark to open it.
    """
    if "://" not in root:
        return LocalFiles(Path(root))
    if spark is None:
        raise PipelineError(f"{root} can only be opened by Spark: give a session")
    return HadoopFiles(root, spark)


def is_data(name: str) -> bool:
    """Return True if readers treat a file as data. Names of notes and incomplete files begin with ``_`` or a dot."""
    return not name.startswith(("_", "."))


class LocalFiles:
    """Files in a folder of this machine, or in one that is mounted on all machines of a cluster."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def _at(self, path: str) -> Path:
        return self._root / path

    def url(self, path: str) -> str:
        return f"file://{self._at(path)}"  # not quoted: Spark uses names as they are

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> tuple[int, int]:
        total = number = 0
        for folder, _, names in os.walk(self._at(path)):
            for name in filter(is_data, names):
                with contextlib.suppress(FileNotFoundError):
                    total += os.path.getsize(os.path.join(folder, name))
                    number += 1
        return total, number

    def read(self, path: str) -> str | None:
        try:
            return self._at(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        target = self._at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(target)

    def move(self, source: str, target: str) -> None:
        self._at(target).parent.mkdir(parents=True, exist_ok=True)
        self._at(source).rename(self._at(target))

    def delete(self, path: str) -> None:
        target = self._at(path)
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    @contextlib.contextmanager
    def alone(self, wait_s: float, give_up: Callable[[], bool]) -> Iterator[None]:
        """Hold a lock on a file, which is released when the process ends.

        Args:
            wait_s: seconds to wait for another process.
            give_up: called while waiting; True = stop waiting.

        Raises:
            PipelineError: another process still holds the lock.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        with self._at(_LOCK).open("w") as lock:
            ends = time.monotonic() + wait_s
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= ends or give_up():
                        raise PipelineError(
                            f"Another process is at work on the history in {self._root}: let it end, or stop it"
                        ) from None
                    time.sleep(_POLL_S)
            yield


class HadoopFiles:
    """Files in one of Spark's file systems: HDFS, object stores.

    There are no locks, and a file or a folder is replaced in more than one step: docs/pipeline.md states the limits.
    """

    def __init__(self, root: str, spark: SparkSession) -> None:
        self._root = root.rstrip("/")
        java: Any = spark.sparkContext._jvm
        self._path = java.org.apache.hadoop.fs.Path
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._system: Any = self._path(self._root).getFileSystem(conf)

    def _at(self, path: str) -> Any:
        return self._path(f"{self._root}/{path}")

    def url(self, path: str) -> str:
        return f"{self._root}/{path}"

    def names(self, folder: str) -> list[str]:
        return sorted(status.getPath().getName() for status in self._listed(folder))

    def size(self, path: str) -> tuple[int, int]:
        total = number = 0
        for status in self._listed(path):
            name = status.getPath().getName()
            if status.isDirectory():
                below = self.size(f"{path}/{name}")
                total, number = total + below[0], number + below[1]
            elif is_data(name):
                total, number = total + int(status.getLen()), number + 1
        return total, number

    def _listed(self, folder: str) -> list[Any]:
        where = self._at(folder)
        if not self._system.exists(where):
            return []
        return list(self._system.listStatus(where))

    def read(self, path: str) -> str | None:
        where = self._at(path)
        if not self._system.exists(where):
            return None
        stream = self._system.open(where)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        # Object stores show a file when it is closed. Elsewhere the renaming prevents incomplete files.
        fresh = self._at(f"{path}.{os.getpid()}.fresh")
        stream = self._system.create(fresh, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._system.delete(self._at(path), False)
        self._renamed(fresh, self._at(path))

    def move(self, source: str, target: str) -> None:
        where = self._at(target)
        self._system.mkdirs(where.getParent())
        self._renamed(self._at(source), where)

    def _renamed(self, source: Any, target: Any) -> None:
        if not self._system.rename(source, target):
            raise PipelineError(f"{source} could not be renamed to {target}: look at the file system, then run again")

    def delete(self, path: str) -> None:
        self._system.delete(self._at(path), True)

    @contextlib.contextmanager
    def alone(self, wait_s: float, give_up: Callable[[], bool]) -> Iterator[None]:
        yield
