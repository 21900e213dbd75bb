"""Embedded Redis server: started on a private unix socket, shared by processes, stopped with its last user.

Meant for development, demos and small single-host deployments. Uses only the standard library and :mod:`..core`, not
Django.

    url = ensure(BASE_DIR / ".delayq")          # what the Django shell does when DELAYQ["REDIS"] is absent

Several processes (web server, worker, commands) may call this for one folder at the same time. Two lock files
coordinate them: ``server.lock`` is held exclusively while a process starts or stops the server; ``users.lock`` is held
*shared* by every process that uses it. An exiting process tries to lock the latter exclusively: if it succeeds, it was
the last user and stops the server. The kernel releases locks with their process, so a ``kill -9`` leaves no stale lock;
at most it leaves a running server, which the next start finds and uses.

The folder is accessible to this user only (see :mod:`.folder`): it holds the data of all jobs, and the socket needs no
password.

Imported by the Django shell (``connections``, ``checks``) and by test suites.
"""

from .binaries import bundled_binary, find_binary, server_version
from .folder import MAX_SOCKET_PATH
from .server import EmbeddedRedis
from .shared import ensure, release_all

__all__ = [
    "MAX_SOCKET_PATH",
    "EmbeddedRedis",
    "bundled_binary",
    "ensure",
    "find_binary",
    "release_all",
    "server_version",
]
