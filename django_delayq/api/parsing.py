"""JSON bodies with limits: nothing that a client sends may cost more than reading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any, Final, NoReturn

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from ..conf import conf
from .problems import Problem

#: longest whole number of a body, in digits: larger ones cost time that grows with their square
_DIGITS: Final = 40


class LimitedJSONParser(BaseParser):
    """Reads at most ``API["max_body"]`` bytes, at most ``API["max_depth"]`` deep.

    The raw bytes stay at the request as ``delayq_raw``: an Idempotency-Key stands for them.
    """

    media_type = "application/json"

    def parse(self, stream: IO[bytes], media_type: str | None = None,
              parser_context: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
        """The value of the body.

        Raises:
            Problem: too large, or nested too deep.
            ParseError: no JSON.
        """
        limits = conf().api
        raw = _read(stream, limits.max_body)
        if parser_context is not None:
            parser_context["request"].delayq_raw = raw
        text = _decode(raw)
        try:
            value = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole)
        except RecursionError:
            raise too_deep(limits.max_depth) from None
        except ValueError as error:
            raise ParseError(f"the body is not JSON: {str(error)[:200]}") from None
        # A body with few brackets cannot be deep, and most have few.
        if raw.count(b"[") + raw.count(b"{") > limits.max_depth and _depth(value, limits.max_depth) > limits.max_depth:
            raise too_deep(limits.max_depth)
        return value


def too_deep(most: int) -> Problem:
    """400: nested too deep."""
    return Problem(400, "too_deep", f"the JSON of the body is nested more than {most} deep; make it flatter")


def _read(stream: IO[bytes], most: int) -> bytes:
    raw = stream.read(most + 1)
    if len(raw) > most:
        raise Problem(413, "too_large", f"the body has more than {most} bytes; send several smaller requests")
    return raw


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode(settings.DEFAULT_CHARSET if settings.DEFAULT_CHARSET else "utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    # "\ud800" is half a character: nothing else could be made of it later.
    if "\\ud" in text or "\\uD" in text:
        _refuse_halves(text)
    return text


def _refuse_halves(text: str) -> None:
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ParseError("the body has a half of a surrogate pair; send whole characters") from None
    except (ValueError, RecursionError):
        return  # the parser itself says what is wrong


def _refuse_constant(name: str) -> NoReturn:
    raise ParseError(f"{name} is no JSON; send a number or null")


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ParseError(f"a whole number of {len(digits)} digits is too long; send it as a text")
    return int(digits)


def _depth(value: Any, most: int) -> int:
    """How deep it is nested, counted no further than one beyond ``most``."""
    depth, level = 0, [value]
    while level and depth <= most:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += [item for item in one.values() if isinstance(item, (dict, list))]
            elif isinstance(one, list):
                inner += [item for item in one if isinstance(item, (dict, list))]
        depth += bool(isinstance(value, (dict, list)))
        level = inner
    return depth
