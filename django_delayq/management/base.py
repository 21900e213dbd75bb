"""Base class of the commands, and their shared options and forms of jobs as plain data."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import date
from itertools import product
from textwrap import dedent
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db.utils import Error as DatabaseError
from redis.exceptions import RedisError

from .. import logs
from ..core.errors import DelayQError, InvalidJob, Misconfigured, QueueUnavailable
from ..core.inputs import check_queue_name
from ..masking import Mask, Unmasked
from ..repair.rows import seconds
from ..settings.conf import mask
from ..status import Finding
from .progress import Progress


class _HelpFormatter(DjangoHelpFormatter):
    """Help formatter that keeps the line breaks of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def with_examples(*lines: str) -> dict[str, Any]:
    """Return the parser arguments that append examples of use to the help text."""
    examples = "\n".join(f"  manage.py {line}" for line in lines)
    return {"epilog": f"examples:\n{examples}", "formatter_class": _HelpFormatter} if lines else {}


@contextlib.contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Exit without a traceback if the block writes to a closed pipe, as in ``delayq_status | head``.

    The exit code is that of programs which SIGPIPE ends. Python ignores this signal.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # it is None if the program was started without it
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter's last flush must not fail as well
        sys.exit(128 + signal.SIGPIPE)


class DelayQCommand(BaseCommand):
    """Command base class that calls :meth:`run` and converts the package's errors to a :class:`CommandError`."""

    #: command lines for the help text
    examples: tuple[str, ...] = ()
    #: table of the options; see :func:`add_options`
    options = ""
    #: none, except where jobs run: operators need the commands also in a project with errors
    requires_system_checks: Any = ()
    quiet = no_color = as_json = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return the parser of the command, with its examples."""
        return super().create_parser(prog_name, subcommand, **with_examples(*self.examples), **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of the table."""
        add_options(parser, self.options)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command from the command line; end quietly if the reader of its output ends first."""
        with exit_on_closed_pipe():
            super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> str | None:
        self.quiet = options.get("verbosity") == 0
        self.no_color = bool(options.get("no_color"))
        self.as_json = bool(options.get("json"))
        try:
            self.run(**options)
        except QueueUnavailable as error:
            raise CommandError(
                f"{error}\nIs Redis running, and is DELAYQ['REDIS'] right? `manage.py delayq_check` lists the problems."
            ) from error
        except (Misconfigured, DelayQError, RedisError) as error:
            raise CommandError(str(error)) from error
        except (DatabaseError, ImproperlyConfigured) as error:
            raise CommandError(
                f"{str(error).strip()}\nIs the database running, and was `manage.py migrate` run? "
                f"`manage.py delayq_check` lists the problems."
            ) from error
        return None

    def run(self, **options: Any) -> None:
        """Run the command."""
        raise NotImplementedError

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print lines of text on stdout."""
        for line in lines:
            self.stdout.write(line)
        self.stdout.flush()

    def print_answer(self, value: object, *lines: str) -> None:
        """Print ``value`` as JSON on stdout if the command has the option ``--json``, else lines of text."""
        if self.as_json:
            lines = (json.dumps(value, indent=2, default=str, ensure_ascii=False),)
        self.print_lines(lines)

    def print_findings(self, findings: Iterable[Finding]) -> list[Finding]:
        """Print findings as they come, unless they are to be JSON; return them."""
        styles = {"WARN": self.style.WARNING, "ERROR": self.style.ERROR}
        results = []
        for one in findings:
            results.append(one)
            if not self.as_json:
                style = styles.get(one.level, self.style.SUCCESS)
                self.stdout.write(f"{style(one.level.ljust(5))} {one.check}: {one.text}")
        return results

    def check_confirmable(self, question: str = "Are you sure?", *, yes: bool) -> None:
        """Check that the action is confirmed on the command line, or can be confirmed on the terminal.

        Raises:
            CommandError: neither is the case.
        """
        if not yes and not sys.stdin.isatty():
            raise CommandError(
                f"{question} Stdin is not a terminal to confirm it on: repeat the command with --yes", returncode=2
            )

    def confirmed(self, question: str, *, yes: bool) -> bool:
        """Return True if the action is confirmed, on the command line or by the answer to ``question``.

        The question goes to stderr, because stdout is for results.
        """
        self.check_confirmable(question, yes=yes)
        if yes:
            return True
        self.stderr.write(f"{question} [y/N] ", ending="")
        self.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation, unless it was given on the command line.

        Raises:
            CommandError: the action is not confirmed.
        """
        if not self.confirmed(question, yes=yes):
            raise CommandError("not confirmed, so nothing was changed")

    def progress(self, name: str, *, unit: str = "jobs") -> Progress:
        """Return a progress display on stderr, a context manager; with ``--verbosity 0`` it shows nothing."""
        return Progress(name, unit, None if self.quiet else self.stderr, no_color=self.no_color)


LOG_OPTIONS: Final = """
    --log-format plain|json  format of log lines, if LOGGING has no handler for 'django_delayq'; json: of every line,
                             those of tasks too (default: plain)
"""


class LoggingCommand(DelayQCommand):
    """Command that runs until it is stopped. With ``--log-format json`` everything that it writes is logged."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of the table, and ``--log-format``."""
        super().add_arguments(parser)
        add_options(parser, LOG_OPTIONS)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Set up the logging before the system checks run."""
        logs.configure(options["log_format"] or "plain", options["verbosity"])
        if options["log_format"] == "json":
            self.stdout, self.stderr = logs.LogOutput(logging.INFO), logs.LogOutput(logging.WARNING)  # type: ignore[assignment]
            options.update(no_color=True, force_color=False, stdout=None, stderr=None)
        return super().execute(*args, **options)


def count_text(counts: Mapping[str, int]) -> str:
    """Return counts by outcome as one line, without those that are 0."""
    return ", ".join(f"{count:,} {word}" for word, count in sorted(counts.items()) if count) or "nothing to do"


def actions_help(actions: Mapping[str, str]) -> str:
    """Return the part of a command's help that names its actions."""
    return f"Actions: {'; '.join(f'{name}: {text}' for name, text in actions.items())}."


def refuse_options(options: Mapping[str, Any], of_action: Mapping[str, Sequence[str]]) -> None:
    """Refuse arguments that do not belong to the chosen action.

    Args:
        of_action: by the name of an argument, the actions that have it.

    Raises:
        CommandError: one is given to another action.
    """
    for name, actions in of_action.items():
        if options[name] and options["action"] not in actions:
            raise CommandError(f"{name.replace('_', '-')} is for {', '.join(actions)}: leave it out", returncode=2)


def positive(kind: type[int] | type[float], meaning: str, *, zero: bool = False) -> Callable[[str], Any]:
    """Return an argparse type: a number above 0 (or 0, if ``zero``)."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {meaning}") from None
        if not (value > 0 or (zero and value == 0)) or value == float("inf"):
            raise ArgumentTypeError(f"{text!r} is not {meaning} {'of 0 or more' if zero else 'above 0'}")
        return value

    return read


def span(text: str) -> float:
    """Return the seconds of a time span on the command line: 90, 90s, 10m, 2h30m or 1d (argparse type)."""
    try:
        return seconds(text)
    except Misconfigured:
        raise ArgumentTypeError(f"{text!r} is not a time span; write 90, 90s, 10m, 2h30m or 1d") from None


def share_options(parser: ArgumentParser, subcommands: Iterable[ArgumentParser]) -> None:
    """Accept the options of a command, which are Django's, before a subcommand as well as after it.

    After it they have no default, because a default would override a value given before it.
    """
    for one, action in product(subcommands, parser._get_optional_actions()):
        if action.dest not in ("help", "version"):
            one._add_action(copy(action)).default = SUPPRESS


def mask_for(options: Mapping[str, Any]) -> Mask:
    """Return the mask of the settings; with ``--show-secrets`` one that hides nothing."""
    return Unmasked() if options.get("show_secrets") else mask()


def queue_list(text: str) -> tuple[str, ...]:
    """Return queue names separated by commas, as an argparse type."""
    try:
        names = tuple(map(check_queue_name, name_list(text)))
    except InvalidJob as error:
        raise ArgumentTypeError(str(error)) from None
    if not names:
        raise ArgumentTypeError("expected queue names separated by commas, like orders,default")
    return names


def name_list(text: str) -> tuple[str, ...]:
    """Return names separated by commas, as an argparse type."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def setting(text: str) -> tuple[str, str]:
    """Return name and value of an option of another program, as an argparse type."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ArgumentTypeError(f"{text!r} is not an option of Spark; write it like spark.driver.memory=2g")
    return key.strip(), value.strip()


#: types of the values of options, by the names of the values
_TYPES: Final = {
    "N": positive(int, "a whole number"),
    "NUMBER": int,
    "RATE": positive(float, "a number of jobs"),
    "SECONDS": positive(float, "a number of seconds", zero=True),
    "DAYS": positive(float, "a number of days"),
    "DAY": date.fromisoformat,
    "TIME": span,
    "QUEUE": check_queue_name,
    "QUEUES": queue_list,
    "NAMES": name_list,
    "KEY=VALUE": setting,
}


def add_options(parser: ArgumentParser | _ArgumentGroup, table: str, **types: Callable[[str], Any]) -> None:
    """Add the arguments of a table: in each line a name, the name of its value, two blanks, and the help text.

    An option without a value is a flag. Choices are separated by ``|``. An option with ``…`` may be repeated, one with
    ``!`` is required, an argument in brackets may be left out, or repeated. ``--name=other`` is stored under another
    name. An indented line continues the text. What is not given is None, or False if it is a flag.

    Args:
        types: argparse types by the names of values, beside :data:`_TYPES`; other values are texts.
    """
    for line in filter(None, re.split(r"\n(?=\S)", dedent(table).strip())):
        declaration, text = re.split(r"\s{2,}", line, maxsplit=1)
        name, _, value = declaration.partition(" ")
        name, _, dest = name.partition("=")
        kind = value.rstrip("…!")
        more: dict[str, Any] = {"action": "append" if "…" in value and name.startswith("--") else "store"}
        if "|" in kind:
            more["choices"] = kind.split("|")
        elif value:
            more |= {"metavar": kind, "type": {**_TYPES, **types}.get(kind)}
        elif name.startswith("--"):
            more = {"action": "store_true"}
        if name.startswith("["):
            more["nargs"] = "*" if "…" in value else "?"
        if value.endswith("!"):
            more["required"] = True
        if dest:
            more["dest"] = dest
        parser.add_argument(name.strip("[]"), help=" ".join(text.split()), **more)
