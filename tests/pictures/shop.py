"""Example shop, started by its demo in a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

from tests.support import processes

PROJECT: Final = Path(__file__).resolve().parents[2] / "example_project"
#: customers that buy often, and a gateway that fails often
BUSY: Final = {"SHOP_GATEWAY_FAILURE_RATE": "0.7", "SHOP_TIME_ZONE": "UTC"}


class Shop:
    """Running shop: Redis, web server, worker and customers.

    Attributes:
        site: address of the shop, without a slash at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "demo"
        self._port = _free_port()
        self._demo: Popen[Any] | None = None
        self.site = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Shop:
        options = ("--port", self._port, "--folder", self._folder, "--cancel-after", 40, "--rate", 3)
        command = [sys.executable, str(PROJECT / "demo.py"), *map(str, options)]
        # its output matters only if it does not start
        self._log = (self._folder.parent / "demo.log").open("w+")
        self._demo = processes.spawn(command, env=BUSY, stdout=self._log, stderr=self._log)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._demo is not None
        processes.end(self._demo, sig=signal.SIGTERM, timeout=60)
        self._log.close()

    def begin(self) -> None:
        """Wait until the shop answers, and set Django up with its settings."""
        processes.wait_until(self._answers, 120, "the first page of the shop", pause=0.2)
        from django_delayq.embedded import EmbeddedRedis

        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "SHOP_DB": str(self._folder / "shop.sqlite3"),
            "SHOP_REDIS_URL": EmbeddedRedis(self._folder / "redis").url,
            "SHOP_SECRET_KEY": (self._folder / "secret-key").read_text(),
            **BUSY,
        }
        sys.path.insert(0, str(PROJECT))
        import django

        django.setup()

    def _answers(self) -> bool:
        assert self._demo is not None
        if self._demo.poll() is not None:
            self._log.seek(0)
            raise SystemExit(f"The shop has ended:\n{self._log.read()}")
        try:
            with urllib.request.urlopen(f"{self.site}/", timeout=5) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
