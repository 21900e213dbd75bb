"""Files and folders of the lake: Python's own where its root is a path, Hadoop's where it is a URL."""

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
    """What the lake needs of a file system; every path is relative to the root."""

    def url(self, path: str) -> str:
        """What Spark opens it by."""
        ...

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing if there is none."""
        ...

    def size(self, path: str) -> tuple[int, int]:
        """Bytes and number of the data files in a folder and below; (0, 0) if there is none."""
        ...

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        ...

    def write(self, path: str, text: str) -> None:
        """A file with this text, at once or not at all."""
        ...

    def move(self, source: str, target: str) -> None:
        """Makes the folder ``source`` the folder ``target``, which does not exist."""
        ...

    def delete(self, path: str) -> None:
        """A file, or a folder with all in it; nothing if there is none."""
        ...

    def alone(self, wait_s: float, give_up: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
        """Keeps other processes from changing the lake, where the file system can."""
        ...


def files_at(root: str, spark: SparkSession | None) -> Files:
    """The file system of a root.

    Raises:
        PipelineError: a URL, and no session of Spark to open it with.
    """
    if "://" not in root:
        return LocalFiles(Path(root))
    if spark is None:
        raise PipelineError(f"{root} can only be opened by Spark: give a session")
    return HadoopFiles(root, spark)


def is_data(name: str) -> bool:
    """Whether a reader takes a file for data: notes and what is half written begin with a sign."""
    return not name.startswith(("_", "."))


class LocalFiles:
    """A folder of this machine, or one that is mounted on all machines of a cluster."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def _at(self, path: str) -> Path:
        return self._root / path

    def url(self, path: str) -> str:
        return f"file://{self._at(path)}"  # not quoted: Spark takes a name as it is

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
        """A lock on a file, which ends with the process.

        Args:
            wait_s: seconds to wait for another process.
            give_up: asked meanwhile; yes = wait no longer.

        Raises:
            PipelineError: the other one is still at work.
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
    """What Spark's own file systems reach: HDFS, object stores.

    It has no locks, and replaces a file or a folder in more than one step: docs/pipeline.md states the limits.
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
        # Object stores show a file when it is closed; elsewhere it is renamed, so that none is seen half written.
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
