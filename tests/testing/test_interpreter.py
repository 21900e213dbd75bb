"""Library ``cmsgpack`` of the in-memory server, compared with that of Redis."""

from __future__ import annotations

import msgpack
import pytest
import redis

from ..support.memory_server import memory_connection

NUMBERS = [
    "0",
    "1",
    "-1",
    "127",
    "128",
    "-32",
    "-33",
    "-128",
    "-129",
    "255",
    "256",
    "65535",
    "65536",
    "-32769",
    "4294967295",
    "4294967296",
    "-2147483649",
]
LARGE = [
    "2^53",
    "-2^53",
    "2^62",
    "2^63",
    "-2^63",
    "2^64",
    "1.5",
    "0.1",
    "-0.1",
    "1e300",
    "3.5e38",
    "16777216.5",
    "1/0",
    "-1/0",
    "0/0",
]
TEXTS = [f"string.rep('\\{byte}', {size})" for byte in (0, 97, 255) for size in (0, 1, 31, 32, 255, 256, 65536)]
TABLES = ["{}", "{1, 2}", "{'a', {b = 1}, false}", "{1, nil, 3}", "{[2] = 1}", "{[0] = 1}", "{[1.5] = 1}", "{1, a = 2}"]
DEEP = ["{" * 16 + "1" + "}" * 16, "{" * 18 + "1" + "}" * 18]
MANY = "(function() local t = {} for i = 1, 70000 do t[i] = i end return t end)()"


@pytest.mark.parametrize("value", [*NUMBERS, *LARGE, *TEXTS, *TABLES, *DEEP, MANY, "true", "nil", "1, 'a', {}"])
def test_values_are_packed_and_unpacked_as_redis_does_it(redis_client: redis.Redis, value: str) -> None:
    repacked = f"local packed = cmsgpack.pack({value}) return {{ packed, cmsgpack.pack(cmsgpack.unpack(packed)) }}"
    expected, mine = redis_client.eval(repacked, 0), memory_connection().client.eval(repacked, 0)
    if b"\x82" in (expected[0][:1], expected[1][:1]):  # the members of a map have no order
        unpacked = (msgpack.unpackb(one, raw=True, strict_map_key=False) for one in (*expected, *mine))
        assert len({str(sorted(one.items(), key=str)) for one in unpacked}) == 1
    else:
        assert mine == expected


@pytest.mark.parametrize(
    ("call", "data"),
    [
        ("unpack_one(ARGV[1])", b"\x01\x02"),
        ("unpack_one(ARGV[1], 1)", b"\x01\x02"),
        ("unpack_one(ARGV[1], 2)", b"\x01\x02"),
        ("unpack_limit(ARGV[1], 2)", b"\x01\xa1a\x03"),
        ("unpack_limit(ARGV[1], 2, 1)", b"\x01\xa1a\x03"),
        ("unpack_limit(ARGV[1], 9)", b"\x01\x93\x01\xc0\x03"),
        ("unpack(ARGV[1])", b""),
    ],
)
def test_a_part_is_unpacked_as_redis_does_it(redis_client: redis.Redis, call: str, data: bytes) -> None:
    source = (
        f"local n, all = 0, {{}} for i = 1, 5 do local v = ({{ cmsgpack.{call} }})[i] all[i] = cmsgpack.pack(v) end"
    )
    source += " return all"
    assert memory_connection().client.eval(source, 0, data) == redis_client.eval(source, 0, data)


@pytest.mark.parametrize(("data", "offset"), [(b"\x93\x01", 0), (b"\x01", 2)])
def test_what_is_cut_off_is_an_error_in_both(redis_client: redis.Redis, data: bytes, offset: int) -> None:
    for client in (redis_client, memory_connection().client):
        with pytest.raises(
            redis.ResponseError, match=r"Missing bytes in input|Start offset 2 greater than input length 1"
        ):
            client.eval("return cmsgpack.unpack_one(ARGV[1], tonumber(ARGV[2]))", 0, data, offset)
