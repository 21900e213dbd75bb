"""``python -m tests.api.asgi.serve --fd 7``: uvicorn as docs/http_consumers.md advises to start it."""

from __future__ import annotations

import sys
from types import FrameType

import uvicorn


class Server(uvicorn.Server):
    """Answers the reserves that wait when it is told to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called with each signal that ends the server."""
        from django_delayq.api.waiting import end_waits

        end_waits()
        super().handle_exit(sig, frame)


if __name__ == "__main__":
    Server(
        uvicorn.Config("tests.api.asgi.app:application", fd=int(sys.argv[-1]), lifespan="off", log_level="warning")
    ).run()
