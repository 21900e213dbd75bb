"""Back-off policies. A policy maps n (0 for the first retry) to seconds.

Any callable of that form is a policy. The presets here can be printed and compared, which a lambda cannot.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from .errors import Misconfigured
from .inputs import suggest

Policy = Callable[[int], float]

#: longest pause between two attempts: ten years, in seconds
MAX_DELAY: Final = 10 * 365.25 * 86400.0


def default_backoff(n: int) -> float:
    """Return ``n⁴ + 15 + random(0…30)·(n+1)`` seconds: 15 to 45 s at first, about 20 days over 25 retries.

    The random part grows with n, so that jobs that failed together do not retry together.
    """
    n = min(n, 10_000)  # far beyond ten years already, and a stored counter may be anything
    return n**4 + 15 + random.random() * 30 * (n + 1)


@dataclass(frozen=True, slots=True)
class _Steps:
    seconds: tuple[float, ...]

    def __call__(self, n: int) -> float:
        return self.seconds[min(n, len(self.seconds) - 1)]


@dataclass(frozen=True, slots=True)
class _Exponential:
    base: float
    cap: float
    factor: float
    full_jitter: bool

    def __call__(self, n: int) -> float:
        try:
            most = self.base * self.factor**n
        except OverflowError:
            most = math.inf
        # At least the longest pause before it, so that pauses never shrink; half of it where they grow faster.
        least = 0.0 if self.full_jitter else most / (self.factor if 1 < self.factor < 2 else 2)
        return random.uniform(min(self.cap, least), min(self.cap, most))


@dataclass(frozen=True, slots=True)
class _Quadratic:
    delay: float

    def __call__(self, n: int) -> float:
        return self.delay * float(n + 1) ** 2


def fixed(seconds: float | timedelta) -> Policy:
    """Return a policy with the same pause every time."""
    return _Steps((_checked(seconds),))


def steps(*seconds: float | Iterable[float]) -> Policy:
    """Return a policy of successive pauses; the last one repeats.

    Examples: ``steps(10, 60, 300)`` or ``steps([10] * 9 + [60] * 10)``.
    """
    flat: list[float] = []
    for value in seconds:
        flat.extend(map(_checked, value) if isinstance(value, Iterable) else (_checked(value),))
    if not flat:
        raise Misconfigured("steps() needs at least one pause in seconds, for instance steps(10, 60, 300)")
    return _Steps(tuple(flat))


def exponential(base: float = 1.0, cap: float = 3600.0, *, factor: float = 2.0, full_jitter: bool = False) -> Policy:
    """Return a policy of pauses that grow to ``base · factorⁿ`` seconds, at most ``cap``.

    A random part spreads jobs that failed together. By default (equal jitter) it is the upper half of the pause, so no
    pause is shorter than the one before it, if ``factor`` is above 1. With ``full_jitter`` it is the whole pause.
    """
    return _Exponential(_checked(base), _checked(cap), _checked(factor), bool(full_jitter))


def quadratic(delay: float) -> Policy:
    """Return a policy of ``delay · (n+1)²`` seconds: with 10 it is 10, 40, 90, 160, …"""
    return _Quadratic(_checked(delay))


def ladder() -> Policy:
    """Return a policy of 10 s after attempts 1 to 9, 60 s to 19, 5 minutes to 39, then 24 minutes."""
    return steps([10] * 9 + [60] * 10 + [300] * 20 + [1440])


def policy_of(value: object) -> Policy:
    """Return the policy that ``value`` denotes.

    Args:
        value: a policy; seconds (number or timedelta) for the same pause every time; a list or tuple of seconds for
            successive pauses; or the name of one of :data:`PRESETS`.

    Raises:
        Misconfigured: it is none of these; the message names the nearest preset.
    """
    if callable(value):
        return value
    if isinstance(value, str):
        preset = PRESETS.get(value)
        if preset is not None:
            return preset
        raise Misconfigured(
            f"no back-off is named {value[:60]!r}; the presets are {', '.join(PRESETS)}.{suggest(value, PRESETS)}"
        )
    if isinstance(value, (list, tuple)):
        return steps(value)
    if isinstance(value, (int, float, timedelta)) and not isinstance(value, bool):
        return fixed(value)
    raise Misconfigured(
        f"a back-off is a function of the number of earlier failures, seconds, a list of seconds or one of the names "
        f"{', '.join(PRESETS)}; not {type(value).__name__} {value!r:.60}"
    )


def _checked(seconds: object) -> float:
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds <= MAX_DELAY:
        return float(seconds)
    raise Misconfigured(f"a back-off is made of numbers of seconds between 0 and ten years, not {seconds!r:.60}")


#: named presets, for the options of a task and (as text, so that they can be stored) of one job
PRESETS: Final[Mapping[str, Policy]] = {
    "default": default_backoff,
    "lowkiq": default_backoff,  # the same formula
    "ladder": ladder(),
    "exponential": exponential(),  # 0.5 to 1 s, 1 to 2 s, 2 to 4 s, … 1 h
    "quadratic": quadratic(10),  # 10 s, 40 s, 90 s, …
}


def ms_of(seconds: float) -> int:
    """Return a delay in whole milliseconds."""
    return max(0, round(seconds * 1000))


def seconds_of(delay: object) -> float:
    """Return a delay that a project's code chose, in seconds from 0 to ten years.

    Raises:
        TypeError: it is neither a number nor a timedelta.
    """
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if (isinstance(delay, int) and not isinstance(delay, bool)) or (isinstance(delay, float) and math.isfinite(delay)):
        return float(min(MAX_DELAY, max(0, delay)))  # limited before: a huge int has no float
    raise TypeError(f"{delay!r:.60} is no delay; give seconds or a timedelta")
