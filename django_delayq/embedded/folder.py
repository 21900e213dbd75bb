"""Private folder of an embedded server: data, log, locks, socket, password.

A process that may run as root writes here, and the data contain the arguments of all jobs. So the folder must belong to
this user and be closed to all others; a folder that others can write to is not trusted. Others must not be able to
write to any of its parents either, unless the sticky bit protects the entries: they could replace the folder by their
own. The process's own group counts as this user, because where each user has a group, folders are often open to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final

from ..core.errors import Misconfigured

MAX_SOCKET_PATH: Final = 107  # bytes: sizeof(sockaddr_un.sun_path) less its final NUL

_LOCK: Final = "server.lock"
#: expected names in the folder; "history" is the pipeline's, "lost+found" belongs to a volume
_OURS: Final = frozenset(
    {
        "server.lock",
        "users.lock",
        "redis.log",
        "redis.sock",
        "redis.sock.txt",
        "access.conf",
        "appendonly.aof",
        "appendonlydir",
        "dump.rdb",
        "history",
        "lost+found",
    }
)
_ADVICE: Final = "Set DELAYQ['EMBEDDED_DIR'] to another folder, or DELAYQ['REDIS'] to the URL of a running server."
_SETTING: Final = "requirepass "


def prepare(directory: Path) -> None:
    """Create the folder and its missing parents with mode 0700, or check the existing folder.

    A folder that others may read is closed to them if it holds only files of this package.

    Raises:
        Misconfigured: the folder cannot be created, or is not safe to use; the message says what to do.
    """
    try:
        _check_parents(directory)  # before anything is created there
        _make(directory)
        check(directory)
    except OSError as error:
        raise Misconfigured(f"The folder of the embedded Redis cannot be used: {error}. {_ADVICE}") from error


def _make(directory: Path) -> None:
    missing = []
    for folder in (directory, *directory.parents):
        if os.path.lexists(folder):
            break
        missing.append(folder)
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def _check_parents(directory: Path) -> None:
    """Check that no other user can rename the folder or one of its parents.

    Missing parents are skipped, because this user will create and own them.

    Raises:
        Misconfigured: another user can rename one; the message says what to do.
        OSError: a parent cannot be read.
    """
    plain = Path(os.path.abspath(directory))
    real = Path(os.path.realpath(plain.parent))
    for parent in sorted({*plain.parents, real, *real.parents}):
        try:
            status = parent.stat()
        except FileNotFoundError:
            continue
        others = stat.S_IWOTH if status.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
        if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
            raise Misconfigured(
                f"Other users may rename files in {parent}, so they could replace "
                f"{directory}, the folder of the embedded Redis. Close it: chmod go-w {parent} (or chmod +t {parent}, "
                f"if all have to write there). {_ADVICE}"
            )


def check(directory: Path) -> None:
    """Check that only this user can access the folder; a folder that others may read is closed to them.

    Raises:
        Misconfigured: the folder belongs to another user, others can write to it or rename it, or others may read it
            and it holds other files; the message says what to do.
        OSError: the folder cannot be read.
    """
    _check_parents(directory)
    status = directory.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise Misconfigured(
            f"{directory}, the folder of the embedded Redis, is a symbolic link. Set DELAYQ['EMBEDDED_DIR'] to the "
            f"folder that it leads to."
        )
    if not stat.S_ISDIR(status.st_mode):
        raise Misconfigured(
            f"{directory} is needed as the folder of the embedded Redis, but it is not a folder. {_ADVICE}"
        )
    if status.st_uid != os.geteuid():
        raise Misconfigured(
            f"{directory}, the folder of the embedded Redis, belongs to another user (uid {status.st_uid}; this "
            f"process has uid {os.geteuid()}). Run all processes of the project as one user. {_ADVICE}"
        )
    if status.st_mode & 0o022:
        raise Misconfigured(
            f"Other users may write to {directory}, the folder of the embedded Redis. Check that all files in it are "
            f"yours, then close it: chmod 700 {directory}"
        )
    if status.st_mode & 0o077:
        _close(directory)


def _close(directory: Path) -> None:
    names = os.listdir(directory)
    foreign = [name for name in names if name not in _OURS and not name.startswith("temp-")]
    if foreign and _LOCK not in names:
        raise Misconfigured(
            f"Other users may read {directory}, which would hold the data of the embedded Redis, and it holds other "
            f"files ({foreign[0]!r}). Use a folder of its own, or close this one: chmod 700 {directory}"
        )
    directory.chmod(0o700)


def open_lock(directory: Path, name: str) -> int:
    """Open a lock file and return its descriptor.

    Raises:
        Misconfigured: the file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(directory / name, flags, 0o600)
    except OSError as error:
        raise Misconfigured(f"The embedded Redis needs to write {directory / name}: {error}.") from error


def server_lock(directory: Path) -> int:
    """Open the lock that a process holds while it starts or stops the server; return its descriptor."""
    return open_lock(directory, _LOCK)


# --- password


def access_file(directory: Path) -> Path:
    """Return the path of the password file, which is also a configuration file of the server."""
    return directory / "access.conf"


def password(directory: Path) -> str:
    """Return the password of the folder's server; empty if it has none."""
    try:
        text = access_file(directory).read_text()
    except OSError:
        return ""
    return text.removeprefix(_SETTING).strip()


def make_password(directory: Path) -> None:
    """Create a random password for the folder's server, used from its next start on. An existing password is kept."""
    if password(directory):
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(access_file(directory), flags, 0o600), "w") as file:
        file.write(f"{_SETTING}{secrets.token_urlsafe(32)}\n")


# --- socket


def socket_path(directory: Path) -> Path:
    """Return the path of the socket: in the folder, or in a folder under /tmp if that path is too long for a socket."""
    plain = directory / "redis.sock"
    if len(os.fsencode(plain)) <= MAX_SOCKET_PATH:
        return plain
    # Derived from the real path, so that all processes of the project use the same folder. /tmp rather than TMPDIR,
    # which may differ between processes and may itself be long.
    common = "/tmp"  # noqa: S108 - the folder created in it is checked below
    root = Path(common if os.access(common, os.W_OK) else tempfile.gettempdir())
    digest = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]
    short = root / f"delayq-{os.geteuid()}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    status = short.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise Misconfigured(f"{short} is not a private folder of this user. Remove it, or use a shorter project path.")
    return short / "redis.sock"


def note_socket(directory: Path, socket: Path) -> None:
    """Write the path of a socket outside of the (checked) folder to a file in it, for operators who look there."""
    if socket.parent != directory:
        with contextlib.suppress(OSError):
            (directory / "redis.sock.txt").write_text(f"{socket}\n")
