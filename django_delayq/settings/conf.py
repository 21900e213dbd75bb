"""The settings as this process uses them: ``DELAYQ`` as a frozen object, and the objects that it names.

The dict is read on first use and checked, and read again after a test changed it. ``CODEC`` and ``CODEC_TYPES`` are
installed when Django starts. The variables of ``CONTEXT`` are stored with a job at the schedule call and set again for
its handler, so a handler that schedules passes them on; for a batch the context of the first job is set.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ..core import codec
from ..core.codec import ValueType
from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.job import Job
from ..masking import Mask
from .sections import EMBEDDED as EMBEDDED
from .sections import SETTING as SETTING
from .sections import Conf as Conf

APP: Final = "django_delayq"
logger: Final = logging.getLogger("django_delayq.settings")

Links = Mapping[str, ContextVar[Any]]
_NOTHING: Final[Mapping[str, Any]] = {}


def load(raw: object) -> Conf:
    """Return a :class:`Conf` for the value of ``settings.DELAYQ``.

    Raises:
        Misconfigured: unknown key (with a suggestion) or a wrong value; the message gives the path of the key.
    """
    return Conf.read(SETTING, raw)


_conf: Conf | None = None


def conf() -> Conf:
    """Return the current settings.

    Raises:
        Misconfigured: the settings are wrong.
    """
    global _conf
    current = _conf
    if current is None:
        current = _conf = load(getattr(settings, SETTING, {}))
    return current


def conf_or_defaults() -> Conf:
    """Return the settings, or the defaults while the settings are wrong or absent.

    For situations in which raising would hide the system check that explains the error (task modules being imported).
    """
    try:
        return conf()
    except (Misconfigured, ImproperlyConfigured):
        return Conf()


_is_installed: bool = False


def check_installed() -> None:
    """Check that ``INSTALLED_APPS`` contains the app; otherwise no worker would have its tasks.

    Raises:
        Misconfigured: the app is missing. Nothing is checked before Django's apps are loaded.
    """
    global _is_installed
    if _is_installed or not apps.ready:
        return
    if not apps.is_installed(APP):
        raise Misconfigured(
            f"{APP!r} is not in INSTALLED_APPS, so there are no workers and no checks for what is scheduled. Add it: "
            f'INSTALLED_APPS = [..., "{APP}"]'
        )
    _is_installed = True


def mask() -> Mask:
    """Return the mask for displayed job values, with the words of ``ADMIN["sensitive"]``."""
    return _mask(conf_or_defaults().admin.sensitive)


@functools.lru_cache(maxsize=4)
def _mask(words: tuple[str, ...]) -> Mask:
    return Mask(words)


# -- objects that the settings name ------------------------------------------------------------------------------------


def load_object(where: str, path: str) -> Any:
    """Return the object at ``path``.

    Raises:
        Misconfigured: it cannot be imported; the message begins with ``where``.
    """
    try:
        return import_string(path)
    except ImportError as error:
        raise Misconfigured(f"{where}: {path} cannot be imported: {error}") from error


def load_function(where: str, path: str) -> Callable[..., Any]:
    """Return the function or class at ``path``.

    Raises:
        Misconfigured: there is none.
    """
    loaded = load_object(where, path)
    if not callable(loaded):
        raise Misconfigured(f"{where}: {path} is not callable")
    function: Callable[..., Any] = loaded
    return function


def load_plain_function(where: str, path: str) -> Callable[..., Any]:
    """Return the plain function at ``path``, whose calls return their results directly.

    Raises:
        Misconfigured: there is none, or it is an ``async def`` or a generator.
    """
    function = load_function(where, path)
    called = function
    while isinstance(called, functools.partial):
        called = called.func
    for code in (called, type(called).__call__):
        if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
            raise Misconfigured(
                f"{where}: {path} is async or a generator, so its result would come too late; make it a plain function"
            )
    return function


# -- codec -------------------------------------------------------------------------------------------------------------


#: types that the settings named
_installed: Final[list[ValueType]] = []


def install_codec(settings: Conf) -> None:
    """Use the codec and register the types that ``CODEC`` and ``CODEC_TYPES`` name, and remove all earlier ones.

    Raises:
        Misconfigured: a path of a type cannot be imported or is no type; then nothing is changed. Or the codec is none,
            or two types clash; then JSON is used and no type is registered.
    """
    types = [_value_type(f"{SETTING}['CODEC_TYPES']", path) for path in settings.codec_types]
    where = "CODEC"
    _forget_types()
    try:
        codec.use(None if settings.codec is None else codec.codec_at(settings.codec))
        where = "CODEC_TYPES"
        for value_type in types:
            _installed.append(codec.install(value_type))
    except Misconfigured as error:
        codec.use(None)
        _forget_types()
        raise Misconfigured(f"{SETTING}[{where!r}]: {error}") from None


def _value_type(where: str, path: str) -> ValueType:
    loaded = load_object(where, path)
    if isinstance(loaded, tuple) and len(loaded) == 4:
        return ValueType(*loaded)
    if isinstance(loaded, ValueType):
        return loaded
    raise Misconfigured(
        f"{where}: {path}: a ValueType or a tuple (tag, type, dump, load) was expected, not {short(loaded)}"
    )


def _forget_types() -> None:
    while _installed:
        codec.forget(_installed.pop())


def install_codec_quietly() -> None:
    """Call :func:`install_codec` for the current settings. A wrong one is logged; a system check explains it."""
    try:
        install_codec(conf_or_defaults())
    except Misconfigured as error:
        logger.error("%s", error)


def _changed(*, setting: str, **_: object) -> None:
    global _conf
    if setting in (SETTING, "CACHES"):
        _conf = None
    if setting == SETTING:
        install_codec_quietly()


setting_changed.connect(_changed, dispatch_uid="django_delayq.settings.conf")


# -- context -----------------------------------------------------------------------------------------------------------


_known: tuple[Conf, Links] | None = None


def context_variables(settings: Conf | None = None) -> Links:
    """Return the context variables by the names under which they are stored.

    Raises:
        Misconfigured: a path cannot be imported, or is not a ContextVar.
    """
    global _known
    settings = settings or conf()
    if not settings.context:
        return _NOTHING
    known = _known
    if known is None or known[0] is not settings:
        known = _known = settings, {name: context_variable(name, path) for name, path in settings.context.items()}
    return known[1]


def context_variable(name: str, path: str) -> ContextVar[Any]:
    """Return the variable at ``path``.

    Raises:
        Misconfigured: there is none.
    """
    where = f"{SETTING}['CONTEXT'][{name!r}]"
    variable = load_object(where, path)
    if not isinstance(variable, ContextVar):
        raise Misconfigured(f"{where}: {path} is no contextvars.ContextVar, it is {short(variable)}")
    return variable


def collect_context() -> Mapping[str, Any]:
    """Return the current values of the variables, without those that are unset or None."""
    linked = context_variables()
    if not linked:
        return _NOTHING
    values = {name: variable.get(None) for name, variable in linked.items()}
    return {name: value for name, value in values.items() if value is not None}


def restore_context(job: Job, variables: Links) -> None:
    """Set the variables to their values at the schedule call of ``job``, for the rest of the current context."""
    context = job.context
    for name, variable in variables.items():
        if name in context:
            variable.set(context[name])
