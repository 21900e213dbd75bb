"""A Redis server of the project's own: found, started on a private unix socket, shared, stopped with its last user.

Meant for development, demos and small single-host deployments. Standard library and :mod:`..core` only, no Django.

    url = ensure(BASE_DIR / ".delayq")          # what the Django shell does when DELAYQ["REDIS"] is absent

Several processes (web server, worker, commands) may call this for one folder at the same time. Two lock files keep
order: ``server.lock`` is held exclusively while a process starts or stops the server; ``users.lock`` is held *shared*
by every process that uses it. A process that exits tries to get the latter exclusively: when it succeeds it was the
last user, and stops the server. Kernel locks vanish with their process, so a ``kill -9`` leaves no stale lock; at most
it leaves a running server, which the next start finds and uses.

The folder is this user's alone (see :mod:`.folder`): it holds the data of all jobs, and the socket needs no password.
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
