"""Older copy of the data of a Redis, to which it goes back: what a failover to a lagging replica, or a backup, does."""

from __future__ import annotations

from typing import Any


class OlderCopy:
    """All keys of a server or cluster, as they are now. ``copy.put_back()`` forgets what happened since."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._dumps = {key: client.dump(key) for key in client.scan_iter()}

    def put_back(self) -> None:
        """Let the server have this copy, and nothing else."""
        self._client.flushdb()
        with self._client.pipeline(transaction=False) as pipe:
            for key, dump in self._dumps.items():
                pipe.restore(key, 0, dump)
            pipe.execute()
