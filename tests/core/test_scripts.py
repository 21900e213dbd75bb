"""Script files, their loading, and their reloading after the server has lost them."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from redis.exceptions import ResponseError

from django_delayq.core import Broker, NewJob
from django_delayq.core.redis.scripts import compose, script_names
from tests.support.core_calls import source_of
from tests.support.core_stored import DUE_KEYS, SHARD_KEYS, check_stored, shard_key

LUA = files("django_delayq.core") / "lua"
SOURCES = {name: (LUA / f"{name}.lua").read_text() for name in script_names()}
WRITING = re.compile(
    r"'(HSET|HSETNX|HDEL|HINCRBY|ZADD|ZREM|LPUSH|RPUSH|LPOP|LREM|XADD|XTRIM|DEL|PUBLISH|SET|EXPIRE|HEXPIRE|ZINCRBY)'"
)


def test_every_piece_is_included_by_a_script() -> None:
    pieces = {path.name.removesuffix(".lua"): path.read_text() for path in (LUA / "lib").iterdir()}
    used = {
        piece
        for source in (*SOURCES.values(), *pieces.values())
        for line in re.findall(r"-- include (.+)", source)
        for piece in line.split()
    }
    assert used | {"test_clock"} == pieces.keys()


@pytest.mark.parametrize("name", SOURCES)
def test_a_script_has_its_flags_and_a_header_that_tells_all(name: str) -> None:
    source = SOURCES[name]
    assert source.startswith("#!lua")
    header = source.partition("-- include")[0]
    for word in ("-- ARGV ", "-- Returns ", "-- Events "):
        assert word in header, word
    if "no-writes" in source.partition("\n")[0]:
        assert not WRITING.search(source.partition("-- include")[2].partition("\n")[2])


@pytest.mark.parametrize("test_clock", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_every_script_loads(broker: Broker, name: str, test_clock: bool) -> None:
    assert broker.client.script_load(source_of(broker, name, test_clock=test_clock))
    assert broker.client.script_load(compose(name, flags=False, test_clock=test_clock))


@pytest.mark.parametrize("name", SOURCES)
def test_a_script_has_room_for_twenty_more_local_names(broker: Broker, name: str) -> None:
    """Lua compiles at most 200 at a time. A piece that gets new ones may export few (``-- exports``)."""
    more = "".join(f"local more{n}\n" for n in range(20))
    assert broker.client.script_load(more + compose(name, flags=False))


def test_a_piece_exports_what_it_defines_without_local() -> None:
    for path in (LUA / "lib").iterdir():
        text = path.read_text()
        exports = " ".join(re.findall(r"^-- exports (.+)$", text, re.MULTILINE)).split()
        functions = set(re.findall(r"^function (\w+)\(", text, re.MULTILINE))
        variables = re.findall(r"^(\w+(?:, \w+)*) = ", text, re.MULTILINE)
        assert set(exports) == functions.union(*(names.split(", ") for names in variables)), path


def test_the_scripts_name_the_keys_in_the_order_in_which_they_are_sent() -> None:
    text = (LUA / "lib" / "keys.lua").read_text()
    due = re.search(r"DUE = \{(.+?)\}", text)
    assert due
    named = {int(n): key for n, key in zip(re.findall(r"\d+", due[1]), DUE_KEYS, strict=True)}
    for names, keys in re.findall(r"^local ([A-Z_, ]+) = (KEYS.+)$", text, re.MULTILINE):
        if "{" not in keys:
            numbers = map(int, re.findall(r"\d+", keys))
            named |= dict(zip(numbers, names.lower().split(", "), strict=True))
    assert [named[number] for number in sorted(named)] == [*SHARD_KEYS, "wake"]


def test_the_short_script_names_its_keys_in_the_order_in_which_they_are_sent(broker: Broker) -> None:
    shard = broker.shard("q", 0)
    described = re.search(r"-- KEYS (.+?)\n-- ARGV", SOURCES["schedule_fresh"], re.DOTALL)
    assert described
    names = [key.decode().rpartition(":")[2] for key in shard.fresh_keys[3]]
    assert names[0] == "due.3"
    assert re.findall(r"\d ([a-z]+)(?=;|$)", described[1]) == names[1:]


def test_all_keys_of_a_shard_share_one_hash_tag(cluster_broker: Broker) -> None:
    shard = cluster_broker.shard("q", 7)
    assert {re.search(rb"\{(.+?)\}", key)[1] for key in shard.keys} == {b"q:0.7"}  # type: ignore[index]


def test_a_fault_of_ours_is_raised_as_it_is_and_not_as_its_own_cause(broker: Broker) -> None:
    queue = broker.queue("orders")
    due = shard_key(queue, "due.4", 0)
    broker.client.set(due, "not a sorted set")
    with pytest.raises(ResponseError, match="WRONGTYPE") as caught:
        queue.schedule(NewJob("a", "work"))
    broker.client.delete(due)
    check_stored(broker, repair=True)  # a script of ours that breaks off leaves a body without a place
    assert caught.value.__cause__ is None
