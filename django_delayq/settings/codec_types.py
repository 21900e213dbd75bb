"""``DELAYQ["CODEC"]`` and ``DELAYQ["CODEC_TYPES"]``: the codec of jobs, and project types that jobs may carry.

``CODEC`` names an object with the protocol of :class:`django_delayq.core.codec.Codec`.

``["shop.money.stored"]`` names a ``ValueType`` or a tuple ``(tag, type, dump, load)`` of
:func:`django_delayq.core.codec.register`. Codec and types are registered when Django starts, and again when a test
changes the setting.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django.core.signals import setting_changed

from ..core import codec
from ..core.codec import ValueType
from ..core.errors import Misconfigured
from ..core.inputs import short
from .conf import SETTING, Conf, conf_or_defaults
from .loading import load

logger: Final = logging.getLogger("django_delayq.codectypes")

#: types that the settings named
_installed: Final[list[ValueType]] = []


def install(settings: Conf) -> None:
    """Use the codec and register the types that ``settings`` name, and remove all earlier ones.

    Raises:
        Misconfigured: a path cannot be imported, is no codec or no type, or two types clash; then JSON is used
            and no type is registered.
    """
    while _installed:
        codec.forget(_installed.pop())
    try:
        codec.use(_codec(settings.codec))
        for path in settings.codec_types:
            _installed.append(_install_one(path))
    except Misconfigured:
        codec.use(None)
        while _installed:
            codec.forget(_installed.pop())
        raise


def _codec(path: str | None) -> codec.Codec | None:
    try:
        return None if path is None else codec.codec_at(path)
    except Misconfigured as error:
        raise Misconfigured(f"{SETTING}['CODEC']: {error}") from None


def _install_one(path: str) -> ValueType:
    where = f"{SETTING}['CODEC_TYPES']"
    loaded = load(where, path)
    try:
        if isinstance(loaded, tuple) and len(loaded) == 4:
            loaded = ValueType(*loaded)
        if not isinstance(loaded, ValueType):
            raise Misconfigured(f"a ValueType or a tuple (tag, type, dump, load) was expected, not {short(loaded)}")
        return codec.install(loaded)
    except Misconfigured as error:
        raise Misconfigured(f"{where}: {path}: {error}") from None


def install_quietly() -> None:
    """Call :func:`install` with the current settings. A wrong setting is logged; a system check explains it."""
    try:
        install(conf_or_defaults())
    except Misconfigured as error:
        logger.error("%s", error)


def _changed(*, setting: str, **_: Any) -> None:
    if setting == SETTING:
        install_quietly()


setting_changed.connect(_changed, dispatch_uid="django_delayq.settings.codec_types")
