"""JSON bodies with limits: no request may cost more than reading it.

Stricter than most parsers: a name that occurs twice in an object, a number too large for a double (``1e400``), ``NaN``
and lone surrogates are rejected, because the next reader would interpret them differently from the sender.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final, NoReturn

from django.core.handlers.asgi import ASGIRequest
from django.http.request import UnreadablePostError
from rest_framework.exceptions import ParseError, UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from ..access.problems import Problem
from ..core.inputs import short
from ..settings.conf import conf

#: most seconds that a request waits for room in a full queue, well below the timeouts of clients
LONGEST_WAIT: Final = 20
#: maximum nesting depth of a request's JSON
MAX_DEPTH: Final = 64
#: maximum digits of an integer: parsing larger ones takes time quadratic in their length
_DIGITS: Final = 40
_CHARSETS: Final = ("utf-8", "utf8", "us-ascii", "ascii")


class LimitedJSONParser(BaseParser):
    """Parser for bodies of at most ``API["max_body"]`` bytes, nested at most :data:`MAX_DEPTH` deep.

    The raw bytes are kept in ``request.delayq_raw``, which the idempotency check compares.
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the parsed body.

        Raises:
            Problem: too large, or nested too deep.
            ParseError: not JSON.
            UnsupportedMediaType: another charset.
        """
        _check_charset(media_type or "")
        raw = _read(stream, conf().api.max_body)
        if parser_context is not None:
            request = parser_context["request"]
            if len(raw) < int(request.META.get("CONTENT_LENGTH") or 0):
                raise ParseError("the body ended early; send all of it")
            request.delayq_raw = raw
        return loads(raw)


def check_head(request: Request) -> None:
    """Check the headers that describe the body, before a byte of it is read.

    Raises:
        Problem: the body is too large, or its length is missing.
        ParseError: the length is invalid.
        UnsupportedMediaType: the body is compressed, or not JSON.
    """
    meta = request.META
    encoding = meta.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaType(
            encoding, f"the body is sent as {short(encoding)}; send it as it is, without Content-Encoding"
        )
    length = str(meta.get("CONTENT_LENGTH") or "").strip()
    if not length:
        if meta.get("HTTP_TRANSFER_ENCODING") or _has_unannounced_body(request):
            raise Problem("length_required", "the request has no length of its body; send a Content-Length")
        return
    if not (length.isascii() and length.isdigit()):
        raise ParseError(f"the Content-Length {short(length)} is not a number of bytes")
    most = conf().api.max_body
    if len(length) > 20 or int(length) > most:
        raise too_large(most)
    kind = str(meta.get("CONTENT_TYPE") or "")
    # Checked here, because looking up the session's user may read a form, whose body would then seem empty.
    if int(length) > 0 and kind.partition(";")[0].strip().lower() != LimitedJSONParser.media_type:
        raise UnsupportedMediaType(kind, f"the body is sent as {short(kind)}; send JSON, as application/json")


def loads(raw: bytes, max_depth: int = MAX_DEPTH) -> Any:
    """Return the value of a JSON body.

    Raises:
        Problem: nested too deep.
        ParseError: not JSON.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        value = _decoder.decode(text)
    except RecursionError:
        raise too_deep(max_depth) from None
    except ValueError as error:
        raise ParseError(f"the body is not JSON: {str(error)[:200]}") from None
    # A body with few brackets cannot be deep.
    if raw.count(b"[") + raw.count(b"{") > max_depth and is_deeper(value, max_depth):
        raise too_deep(max_depth)
    # A lone surrogate can only be written as an escape, which few bodies contain.
    if "\\u" in text:
        _refuse_lone_surrogates(value)
    return value


def too_deep(most: int) -> Problem:
    """Return a 400 problem: nested too deep."""
    return Problem("too_deep", f"the JSON of the body is nested more than {most} deep; make it flatter")


def too_large(most: int) -> Problem:
    """Return a 413 problem: too many bytes."""
    return Problem("too_large", f"the body has more than {most} bytes; send several smaller requests")


def too_many(most: int, what: str) -> Problem:
    """Return a 413 problem: too many entries."""
    return Problem("too_large", f"a request may hold at most {most} {what}; send several requests")


def is_deeper(value: Any, most: int) -> bool:
    """Return True if lists and objects are nested more than ``most`` deep. Does not recurse."""
    level = [value]
    for _ in range(most + 1):
        level = [one for one in level if type(one) is list or type(one) is dict]
        if not level:
            return False
        level = [item for one in level for item in _items(one)]
    return True


def _items(one: Any) -> Iterator[Any]:
    return iter(one.values() if type(one) is dict else one)


def _has_unannounced_body(request: Request) -> bool:
    """Return True if there is a body that no header announces, as HTTP/2 allows. No later code would read it."""
    http: Any = request._request
    if not isinstance(http, ASGIRequest):
        return False
    stream = http._stream  # the whole body is here, and later readers may read it from its beginning
    here = stream.tell()
    has_body = stream.read(1) != b""
    stream.seek(here)
    return has_body


def _check_charset(media_type: str) -> None:
    for part in media_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset" and value.strip(" \"'").lower() not in _CHARSETS:
            raise UnsupportedMediaType(media_type, "JSON is sent as UTF-8; leave the charset out")


def _read(stream: IO[bytes], most: int) -> bytes:
    parts, left = [], most + 1
    try:
        # A stream may return less than requested before its end.
        while left > 0 and (part := stream.read(left)):
            parts.append(part)
            left -= len(part)
    except (UnreadablePostError, OSError):
        raise ParseError("the body ended early; send all of it") from None
    if left <= 0:
        raise too_large(most)
    return b"".join(parts)


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ParseError("the body has an unpaired surrogate; send whole characters") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ParseError(f"{name} is not JSON; send a number or null")


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS:
        raise ParseError(f"a whole number of {len(digits.lstrip('-'))} digits is too long; send it as a text")
    return int(digits)


def _fraction(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ParseError(f"the number {short(text)} is too large; send it as a text")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ParseError(f"the name {short(twice)} occurs twice in an object; send it once")
    return made


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_fraction
)
