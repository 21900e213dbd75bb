"""Real MariaDB for tests, where Debian's ``mariadb-server-core`` and ``mysqlclient`` are installed."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from . import processes

# A test server may lose its data in a power cut; it only has to be fast.
_OPTIONS = ("--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--innodb-doublewrite=0")
_USE = ("--skip-networking", "--default-time-zone=+00:00")


def missing() -> str:
    """Return what is missing for MariaDB on this machine; "" if nothing is."""
    programs = [name for name in ("mariadbd", "mariadb-install-db") if shutil.which(name) is None]
    modules = [name for name in ("MySQLdb",) if importlib.util.find_spec(name) is None]
    return ", ".join([*programs, *modules])


def django(server: str, name: str) -> dict[str, Any]:
    """Return the entry of DATABASES for a database of the server with this socket."""
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": name,
        "USER": "root",
        "HOST": server,
        "OPTIONS": {"charset": "utf8mb4"},
        "TEST": {"CHARSET": "utf8mb4"},
    }


class MariaBox:
    """MariaDB server with an empty database. ``with MariaBox() as box: box.django``."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="dq-maria-"))
        self._process: subprocess.Popen[Any] | None = None

    @property
    def socket_path(self) -> Path:
        """Unix socket of the server."""
        return self.directory / "m.sock"

    @property
    def django(self) -> dict[str, Any]:
        """Entry of DATABASES."""
        return django(str(self.socket_path), "delayq")

    def __enter__(self) -> MariaBox:
        if lacking := missing():
            raise RuntimeError(f"no MariaDB here: {lacking} is missing; install mariadb-server-core and mysqlclient")
        common = ["--no-defaults", "--user=root", f"--datadir={self.directory / 'data'}"]
        subprocess.run(
            ["mariadb-install-db", *common, "--skip-test-db", "--auth-root-authentication-method=normal"],
            check=True,
            capture_output=True,
            timeout=120,
        )
        with (self.directory / "log").open("wb") as log:
            self._process = processes.spawn(
                ["mariadbd", *common, f"--socket={self.socket_path}", *_OPTIONS, *_USE],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        processes.wait_until(self._answers, 30, "MariaDB's first answer")
        return self

    def _answers(self) -> bool:
        import MySQLdb

        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"mariadbd ended at once: {(self.directory / 'log').read_text()[-500:]}")
        with contextlib.suppress(MySQLdb.OperationalError):
            connection = MySQLdb.connect(unix_socket=str(self.socket_path), user="root")
            connection.query("CREATE DATABASE IF NOT EXISTS delayq CHARACTER SET utf8mb4")
            connection.close()
            return True
        return False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and remove its folder."""
        if self._process is not None:
            processes.end(self._process)
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)


@cache
def session_box() -> MariaBox:
    """Return the server of this test run, started at the first call and stopped at exit."""
    box = MariaBox().__enter__()
    atexit.register(box.close)
    return box
