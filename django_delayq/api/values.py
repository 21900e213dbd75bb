"""JSON forms of bytes, texts and arguments, with secrets masked."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from ..masking import HIDDEN, Mask
from ..settings.conf import mask

#: depth to which stored values are shown: this package stores none deeper, foreign bytes may be
_DEEPEST: Final = 100


def number_of(text: str) -> float | None:
    """Return the number in a query value, where every value is a text; None for anything else."""
    if len(text) > 40 or not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def count_of(text: str) -> int | None:
    """Return the whole number, 0 or more, in a query value; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def raw(body: bytes, hide: Mask | None = None) -> dict[str, str]:
    """Return bytes as a text if they are UTF-8, else in base64.

    Args:
        hide: mask for secrets in texts; None = do not mask, for the holder of the job.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body if hide is None else _hidden_bytes(body, hide)).decode()}
    return {"body": text if hide is None else masked_text(text, hide)}


def plain(value: Any, _depth: int = 0) -> Any:
    """Return a codec value as plain JSON: ISO 8601 moments, spans in seconds, bytes in base64, numbers unchanged.

    Never raises, whatever Redis contains.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if _depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {clean_text(str(name)): plain(item, _depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, _depth + 1) for item in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    return clean_text(repr(value)[:1000])


def _hidden_bytes(body: bytes, hide: Mask) -> bytes:
    """Return the bytes with secrets masked; text in another charset may contain them, too."""
    text = body.decode("latin-1")
    hidden = hide.text(text)
    return body if hidden == text else hidden.replace(HIDDEN, "*" * len(HIDDEN)).encode("latin-1", errors="replace")


def masked_text(text: str, hide: Mask | None = None) -> str:
    """Return the text with its secrets masked, without lone surrogates."""
    hide = mask() if hide is None else hide
    return clean_text(hide.text(text))  # in this order: the mask reads JSON, in which lone surrogates may be escaped


def clean_text(text: str) -> str:
    """Return the text without lone surrogates, which a response cannot contain."""
    return text if text.isascii() else text.encode(errors="replace").decode()
