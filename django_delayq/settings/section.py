"""Declaration of a group of settings: a frozen dataclass whose fields have a default and a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_known, short

_CHECK = "check"


def key(default: Any, check: Callable[..., object], *args: object, optional: bool = False, **options: object) -> Any:
    """Return a dataclass field with a check.

    Args:
        default: value of a setting that is not given.
        check: called with the name of the setting, its value, ``args`` and ``options``; returns the value to keep, or
            raises InvalidJob.
        optional: accept None without a check; it is accepted anyway where it is the default.
    """
    optional = optional or default is None

    def checked(name: str, value: object) -> object:
        return None if value is None and optional else check(name, value, *args, **options)

    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={_CHECK: checked})
    return field(default=default, metadata={_CHECK: checked})


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Base of all sections: checks every field that :func:`key` declares."""

    def __post_init__(self) -> None:
        try:
            for one in fields(self):
                checked = one.metadata[_CHECK](self.label(one.name), getattr(self, one.name))
                object.__setattr__(self, one.name, checked)
            self.check_together()
        except InvalidJob as error:
            raise Misconfigured(str(error)) from None

    def check_together(self) -> None:
        """Check the fields that depend on each other; raise InvalidJob or Misconfigured."""

    @classmethod
    def label(cls, name: str) -> str:
        """Return the name of a field as messages show it."""
        return name

    @classmethod
    def read(cls, path: str, value: object) -> Self:
        """Return the section for a dict of settings.

        Args:
            path: of the dict in the settings; messages begin with it.

        Raises:
            Misconfigured: no dict, an unknown key (with a suggestion), or a wrong value.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise Misconfigured(f"{path} must be a dict, got {short(value)}")
        try:
            check_known(value, [one.name for one in fields(cls)])
            return cls(**value)
        except (InvalidJob, Misconfigured) as error:
            raise Misconfigured(f"{path}: {error}") from None


def section(name: str, value: object, cls: type[Section]) -> Section:
    """Check a setting that is a section of its own; see :meth:`Section.read`."""
    return cls.read(name, value)


# -- checks of values --------------------------------------------------------------------------------------------------


def check_text(name: str, value: object) -> str:
    """Return ``value`` if it is a text that is not empty; otherwise raise :class:`InvalidJob`."""
    if isinstance(value, str) and value:
        return value
    raise InvalidJob(f"{name} must be a text, got {short(value)}")


def check_texts(name: str, value: object) -> tuple[str, ...]:
    """Return a list or tuple of texts as a tuple; otherwise raise :class:`InvalidJob`."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    raise InvalidJob(f"{name} must be a list of strings, got {short(value)}")


def check_mapping(name: str, value: object, example: str) -> Mapping[Any, Any]:
    """Return ``value`` if it is a mapping; otherwise raise :class:`InvalidJob` with an example of one."""
    if isinstance(value, Mapping):
        return value
    raise InvalidJob(f"{name} must be a dict like {example}, got {short(value)}")


def check_dotted_path(name: str, value: object) -> str:
    """Return the dotted path of an importable object (``shop.hooks.begin``); otherwise raise :class:`InvalidJob`."""
    if isinstance(value, str) and "." in value and all(part.isidentifier() for part in value.split(".")):
        return value
    raise InvalidJob(f"{name} must be a dotted path like 'shop.module.name', got {short(value)}")


def check_dotted_paths(name: str, value: object) -> tuple[str, ...]:
    """Return a list or tuple of dotted paths as a tuple; otherwise raise :class:`InvalidJob`."""
    return tuple(check_dotted_path(name, path) for path in check_texts(name, value))
