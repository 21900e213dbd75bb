"""``DELAYQ["CODEC_TYPES"]``: project types that jobs may carry.

``["shop.money.stored"]`` names a ``ValueType`` or a tuple ``(tag, type, dump, load)`` of
:func:`django_delayq.core.codec.register`. The types are registered when Django starts, and again when a test changes
the setting.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django.core.signals import setting_changed

from ..core import codec_types
from ..core.codec_types import ValueType
from ..core.errors import Misconfigured
from ..core.inputs import short
from .conf import SETTING, Conf, conf_or_defaults
from .loading import load

logger: Final = logging.getLogger("django_delayq.codectypes")

#: types that the settings named
_installed: Final[list[ValueType]] = []


def install(settings: Conf) -> None:
    """Register the types that ``settings`` name, and remove all earlier ones.

    Raises:
        Misconfigured: a path cannot be imported, is not a type, or two types clash; then no type is registered.
    """
    while _installed:
        codec_types.forget(_installed.pop())
    try:
        for path in settings.codec_types:
            _installed.append(_install_one(path))
    except Misconfigured:
        while _installed:
            codec_types.forget(_installed.pop())
        raise


def _install_one(path: str) -> ValueType:
    where = f"{SETTING}['CODEC_TYPES']"
    loaded = load(where, path)
    try:
        if isinstance(loaded, tuple) and len(loaded) == 4:
            loaded = ValueType(*loaded)
        if not isinstance(loaded, ValueType):
            raise Misconfigured(f"a ValueType or a tuple (tag, type, dump, load) was expected, not {short(loaded)}")
        return codec_types.install(loaded)
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
