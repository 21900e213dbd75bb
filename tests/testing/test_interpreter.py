"""Library ``cmsgpack`` of the in-memory server, compared with that of Redis."""

from __future__ import annotations

import msgpack
import pytest
import redis

from ..support.memory_server import memory_connection

EDGES = (0, 1, -1, 127, 128, -32, -33, -128, -129, 255, 256, 65535, 65536, -32769, 2**32 - 1, 2**32, -(2**31) - 1)
NUMBERS = [str(number) for number in EDGES]
LARGE = ["2^53", "-2^53", "2^62", "2^63", "-2^63", "2^64"]
FRACTIONS = ["1.5", "0.1", "-0.1", "1e300", "3.5e38", "16777216.5", "1/0", "-1/0", "0/0"]
TEXTS = [f"string.rep('\\{byte}', {size})" for byte in (0, 97, 255) for size in (0, 1, 31, 32, 255, 256, 65536)]
TABLES = ["{}", "{1, 2}", "{'a', {b = 1}, false}", "{1, nil, 3}", "{[2] = 1}", "{[0] = 1}", "{[1.5] = 1}", "{1, a = 2}"]
DEEP = "{" * 16 + "1" + "}" * 16
MANY = "(function() local t = {} for i = 1, 70000 do t[i] = i end return t end)()"


@pytest.mark.parametrize(
    "value", [*NUMBERS, *LARGE, *FRACTIONS, *TEXTS, *TABLES, DEEP, MANY, "true", "nil", "1, 'a', {}"]
)
def test_values_are_packed_and_unpacked_as_redis_does_it(redis_client: redis.Redis, value: str) -> None:
    repacked = f"local packed = cmsgpack.pack({value}) return {{ packed, cmsgpack.pack(cmsgpack.unpack(packed)) }}"
    expected, mine = redis_client.eval(repacked, 0), memory_connection().client.eval(repacked, 0)
    if b"\x82" in (expected[0][:1], expected[1][:1]):  # the members of a map have no order
        unpacked = (msgpack.unpackb(one, raw=True, strict_map_key=False) for one in (*expected, *mine))
        assert len({str(sorted(one.items(), key=str)) for one in unpacked}) == 1
    elif b"\xca" in expected[0]:  # Redis packs some fractions into four bytes
        assert len({str(msgpack.unpackb(one, raw=True, strict_map_key=False)) for one in (*expected, *mine)}) == 1
    else:
        assert mine == expected


@pytest.mark.parametrize("data", [b"\x01\xa1a\x03", b"\x01\x93\x01\xc0\x03", b""])
def test_values_one_after_another_are_unpacked_as_redis_does_it(redis_client: redis.Redis, data: bytes) -> None:
    source = "local all = {} for i = 1, 5 do all[i] = cmsgpack.pack((select(i, cmsgpack.unpack(ARGV[1])))) end "
    source += "return all"
    assert memory_connection().client.eval(source, 0, data) == redis_client.eval(source, 0, data)


@pytest.mark.parametrize("data", [b"\x93\x01", b"\x01\x93\x01"])
def test_what_is_cut_off_is_an_error_in_both(redis_client: redis.Redis, data: bytes) -> None:
    for client in (redis_client, memory_connection().client):
        with pytest.raises(redis.ResponseError, match="Missing bytes in input"):
            client.eval("return cmsgpack.unpack(ARGV[1])", 0, data)
