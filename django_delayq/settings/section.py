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
