"""Options of the data sources, declared as fields of a frozen dataclass and parsed from Spark's texts; access to Redis.

::

    @dataclass(frozen=True, slots=True)
    class ReadOptions(SourceOptions):
        fetch: int = option("fetch", whole(1, 1000), 200)

    ReadOptions.parse({"fetch": "50"}).fetch  # 50

A check takes the name for messages (``option fetch``) and the text without surrounding blanks. It returns the value, or
raises :class:`InvalidJob` with a message that shows a valid form. Every task opens and closes a connection of its own,
because the executor's process may be reused for other work.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar

from ..core.broker import Broker
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_choice, check_number, check_queue_name, short, suggest
from ..core.redis.config import RedisConfig
from ..core.redis.connection import connect

#: options that every data source accepts
OPTIONS: Final = ("redis", "redisEnv", "prefix")
DEFAULT_PREFIX: Final = "delayq"
_EXAMPLE: Final = ".option('redis', 'redis://localhost:6379/0')"


def address_of(redis: str | None, redis_env: str | None, prefix: str) -> dict[str, str]:
    """Return the options that address Redis: a URL or JSON, or the environment variable that holds it."""
    options = {"redis": redis, "redisEnv": redis_env, "prefix": prefix}
    return {name: value for name, value in options.items() if value}


def config_of(options: Mapping[str, str]) -> RedisConfig:
    """Return the Redis configuration from the option ``redis`` or the environment variable that ``redisEnv`` names.

    Either holds a URL, or the JSON of what :meth:`RedisConfig.parse` takes.

    Raises:
        Misconfigured: neither is given, or the value is invalid. No message repeats a value that may hold a password.
    """
    given, variable = options.get("redis"), options.get("redisEnv")
    if given and variable:
        raise Misconfigured("the options redis and redisEnv both name the Redis; keep one of them")
    if variable:
        given = os.environ.get(variable)
        if not given:
            raise Misconfigured(
                f"option redisEnv names the environment variable {variable[:80]!r}, which is not set in this process; "
                "set it on the driver and on every executor (spark.executorEnv.…)"
            )
    if not given:
        raise Misconfigured(
            f"which Redis? Give the option redis, like {_EXAMPLE}, or redisEnv, the name of an "
            "environment variable that holds it"
        )
    return RedisConfig.parse(_value_of(given.strip()))


def _value_of(given: str) -> object:
    if given[:1] not in ("{", "["):
        return given
    try:
        return json.loads(given)
    except ValueError:
        # The value is neither repeated nor kept as the cause, because it may hold a password.
        raise Misconfigured(
            "the option redis begins like JSON but cannot be parsed; give a URL, or an object such as "
            '{"URL": "redis://localhost:6379/0"}'
        ) from None


@contextmanager
def open_broker(options: Mapping[str, str]) -> Iterator[Broker]:
    """Yield a broker for the Redis of the options, for one task; its connections are closed at the end.

    Raises:
        Misconfigured: see :func:`config_of`.
    """
    connection = connect(config_of(options))
    try:
        yield Broker(connection, prefix=options.get("prefix") or DEFAULT_PREFIX)
    finally:
        connection.close()


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's cyclic garbage collector during the block.

    Rows form no cycles, but creating many of them makes the collector scan them again and again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# -- declared options --------------------------------------------------------------------------------------------------

T = TypeVar("T")
Check: TypeAlias = Callable[[str, str], T]

#: all queues, or all states
EVERY: Final = "*"
_OPTION: Final = "option"
_CHECK: Final = "check"
MAY_CHANGE: Final = "may_change"
_TRUTH: Final = {"true": True, "false": False}


def option(name: str, check: Check[Any], default: Any = None, *, may_change: bool = False) -> Any:
    """Declare a field that is read from the option ``name``.

    Args:
        may_change: it does not affect the bytes of a chunk, so it may change when a bulk load is resumed.
    """
    return dataclasses.field(default=default, metadata={_OPTION: name, _CHECK: check, MAY_CHANGE: may_change})


class SourceOptions:
    """Base of the options of a data source: a dataclass whose fields are made by :func:`option`."""

    __slots__ = ()
    #: options that are accepted, and read elsewhere
    ELSEWHERE: ClassVar[tuple[str, ...]] = OPTIONS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options as Spark passes them; names are compared without regard to case.

        Raises:
            Misconfigured: an option is unknown or invalid; the message says what to write.
        """
        declared: Any = dataclasses.fields(cls)  # type: ignore[arg-type]  # a subclass is a dataclass
        _check_names(options, (*cls.ELSEWHERE, *(field.metadata[_OPTION] for field in declared)))
        given = {field: text for field in declared if (text := options.get(field.metadata[_OPTION])) is not None}
        return cls(**{field.name: _read(field.metadata, text) for field, text in given.items()})


def _check_names(options: Iterable[str], names: Sequence[str]) -> None:
    known = {name.lower() for name in names}
    for name in options:
        if name.lower() not in known:
            raise Misconfigured(
                f"{name[:60]!r} is no option here.{suggest(name, names)} Known options: {', '.join(names)}"
            )


def _read(declared: Mapping[str, Any], given: str) -> Any:
    name = f"option {declared[_OPTION]}"
    if not given.strip():
        raise Misconfigured(f"{name} is empty; give a value, or leave it out")
    try:
        return declared[_CHECK](name, given.strip())
    except InvalidJob as error:
        raise Misconfigured(str(error)) from None


# -- checks ----------------------------------------------------------------------------------------------------------


def text(name: str, given: str) -> str:
    """Return any text."""
    return given


def named(check: Callable[[object], T]) -> Check[T]:
    """Return a check of an option from one that takes the value only."""

    def check_option(name: str, given: str) -> T:
        try:
            return check(given)
        except InvalidJob as error:
            raise InvalidJob(f"{name}: {error}") from None

    return check_option


def whole(low: int, high: int) -> Check[int]:
    """Return a check for whole numbers from ``low`` to ``high``."""

    def check(name: str, given: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", given) or not low <= int(given) <= high:
            raise InvalidJob(f"{name} must be a whole number from {low} to {high}, got {short(given)}")
        return int(given)

    return check


def number(low: float, high: float, unit: str = "") -> Check[float]:
    """Return a check for numbers from ``low`` to ``high``."""

    def check(name: str, given: str) -> float:
        try:
            value = float(given)
        except ValueError:
            raise InvalidJob(f"{name} must be a number from {low:g} to {high:g}, got {short(given)}") from None
        return check_number(name, value, low, high, unit=unit)

    return check


def choice(*choices: str) -> Check[str]:
    """Return a check for one of some words, in capital or small letters."""
    return lambda name, given: check_choice(name, given.lower(), choices)


def flag(name: str, given: str) -> bool:
    """Return True for ``true`` and False for ``false``, in capital or small letters."""
    return _TRUTH[check_choice(name, given.lower(), tuple(_TRUTH))]


def words(given: str) -> list[str]:
    """Return the words between commas, each once, in their order."""
    return list(dict.fromkeys(word for part in given.split(",") if (word := part.strip())))


def listed(name: str, given: str) -> tuple[str, ...]:
    """Return the words between commas, at least one of them."""
    items = words(given)
    if not items:
        raise InvalidJob(f"{name} is empty; give words with commas between them, or leave it out")
    return tuple(items)


def queue_names(name: str, given: str) -> tuple[str, ...]:
    """Return the sorted names of queues; none for ``*``."""
    names = listed(name, given)
    return () if EVERY in names else tuple(sorted(named(check_queue_name)(name, one) for one in names))


def parse_json(name: str, given: str, example: str) -> Any:
    """Return the value of a JSON text; the message of an error shows the example."""
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"{name} must be JSON like {example} ({error})") from None
