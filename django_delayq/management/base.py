"""Base class and helpers of the commands: errors with advice instead of a traceback, and plain tables."""

from __future__ import annotations

import json
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db.utils import Error as DatabaseError
from redis.exceptions import RedisError

from ..core.codec import decode, decode_args
from ..core.errors import DelayQError, InvalidJob, Misconfigured, QueueUnavailable
from ..core.job import Job
from ..core.task import check_queue_name, registry
from ..masking import Mask, Unmasked
from ..settings.conf import mask
from .progress import Progress, progress


class DelayQCommand(BaseCommand):
    """Command base class that calls :meth:`run` and converts the package's errors to a :class:`CommandError`."""

    quiet = no_color = False

    def handle(self, *args: Any, **options: Any) -> str | None:
        self.quiet = options.get("verbosity") == 0
        self.no_color = bool(options.get("no_color"))
        try:
            self.run(**options)
        except QueueUnavailable as error:
            raise CommandError(
                f"{error}\nIs Redis running, and is DELAYQ['REDIS'] right? `manage.py delayq_check` tells more."
            ) from error
        except (Misconfigured, DelayQError, RedisError) as error:
            raise CommandError(str(error)) from error
        except (DatabaseError, ImproperlyConfigured) as error:
            raise CommandError(
                f"{str(error).strip()}\nIs the database there, and was `manage.py migrate` called? "
                f"`manage.py delayq_check` tells more."
            ) from error
        return None

    def run(self, **options: Any) -> None:
        """Run the command."""
        raise NotImplementedError

    def print_json(self, value: object) -> None:
        """Print ``value`` as JSON on stdout."""
        self.stdout.write(json.dumps(value, indent=2, default=str, ensure_ascii=False))

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation, unless it was given on the command line.

        Raises:
            CommandError: the answer is not yes, or stdin is no terminal.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"{question} Nobody is there to say yes: repeat the command with --yes")
        self.stdout.write(f"{question} [y/N] ", ending="")
        self.stdout.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("nothing was done")

    def progress(self, what: str, *, unit: str = "jobs") -> Progress:
        """Return a progress display on stderr, a context manager; with ``--verbosity 0`` it shows nothing."""
        return progress(self.stderr, what, unit=unit, quiet=self.quiet, no_color=self.no_color)

    def print_counts(self, counts: Mapping[str, int], *, as_json: bool) -> None:
        """Print counts by outcome."""
        if as_json:
            self.print_json(dict(counts))
        else:
            words = [f"{count} {word}" for word, count in sorted(counts.items()) if count]
            self.stdout.write(", ".join(words) or "nothing to do")


def positive(kind: type[int] | type[float], what: str, *, zero: bool = False) -> Callable[[str], Any]:
    """Return an argparse type: a number above 0 (or 0, if ``zero``)."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {what}") from None
        if not (value > 0 or (zero and value == 0)) or value == float("inf"):
            raise ArgumentTypeError(f"{text!r} is not {what} {'of 0 or more' if zero else 'above 0'}")
        return value

    return read


#: options that all subcommands accept, if one of them does
_SHARED: Final = ("--json", "--yes", "--show-secrets")


def share_options(parser: ArgumentParser, subcommands: Iterable[ArgumentParser]) -> None:
    """Accept Django's own options and some of ours before a subcommand as well as after it.

    Call it when the subcommands have all their options. After a subcommand these options have no default, because a
    default would override a value given before it.
    """
    subcommands = list(subcommands)
    for name in _SHARED:
        found = [one._option_string_actions[name] for one in subcommands if name in one._option_string_actions]
        if found:
            parser._add_action(copy(found[0]))
    for action in list(parser._actions):
        if action.option_strings and action.dest not in ("help", "version"):
            for one in subcommands:
                known = one._option_string_actions.get(action.option_strings[-1]) or one._add_action(copy(action))
                known.default = SUPPRESS


def add_show_secrets(parser: ArgumentParser) -> None:
    """Add ``--show-secrets``."""
    parser.add_argument(
        "--show-secrets", action="store_true", help="do not mask values that are named like secrets (password, token)"
    )


def mask_for(options: Mapping[str, Any]) -> Mask:
    """Return the mask of the settings; with ``--show-secrets`` one that hides nothing."""
    return Unmasked() if options.get("show_secrets") else mask()


def call_of(job: Job, hide: Mask) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a job as JSON values, masked; for undecodable ones ``bytes`` and the reason."""
    try:
        args, kwargs = _as_json(decode_args(job.args))
    except Exception as error:  # stored bytes may be anything, and the operator needs to see them anyway
        return {"bytes": _undecoded(job.args, hide), "undecodable": str(error)}
    known = registry.get(job.task)
    args, kwargs = hide.arguments(args, kwargs, () if known is None else known.argument_names)
    return {"args": args, "kwargs": kwargs}


def payload_of(stored: bytes, hide: Mask) -> Any:
    """Return a payload of a merged job as a JSON value, masked."""
    try:
        return hide.value(_as_json(decode(stored)))
    except Exception:  # as above
        return _undecoded(stored, hide)


def _as_json(value: Any) -> Any:
    """Return the value with times, numbers and project types as strings, which can be masked."""
    return json.loads(json.dumps(value, default=str))


def _undecoded(stored: bytes, hide: Mask) -> str:
    return hide.text(stored[:2000].decode(errors="backslashreplace"))


def queue_list(text: str) -> tuple[str, ...]:
    """Return queue names separated by commas, as an argparse type."""
    try:
        names = tuple(check_queue_name(name.strip()) for name in text.split(",") if name.strip())
    except InvalidJob as error:
        raise ArgumentTypeError(str(error)) from None
    if not names:
        raise ArgumentTypeError("expected queue names with commas between, like orders,default")
    return names
