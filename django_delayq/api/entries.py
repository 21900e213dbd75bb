"""Job entries of a request, read in one pass and checked as :func:`django_delayq.schedule` checks them.

No job is stored before all entries are valid. Errors carry a JSON pointer to the invalid member.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..access.problems import Problem
from ..core.builder import RawJobBuilder
from ..core.errors import InvalidJob
from ..core.inputs import short, suggest
from ..core.job import NewJob
from ..core.job_options import check_option_names
from ..core.moments import parse_moment
from ..core.task import Task, registry
from ..outbox import durability
from ..scheduling.handle import COLLECTED, JobHandle
from ..scheduling.middleware import Chain, Scheduling, chain
from ..scheduling.plans import Plan, job_rules, plan_of
from ..scheduling.sending import Prepared
from ..scheduling.targets import find_task
from ..settings import context_links

if TYPE_CHECKING:
    from .idempotency import Kept

Entry = dict[str, Any]
_PULL_ONLY: Final = ("body", "body_base64")
_PULL: Final = RawJobBuilder.entry_keys - {"args", "kwargs"} | {*_PULL_ONLY}
_MOST_ERRORS: Final = 50
#: start of an error message about one member: "delay is …", "at= lies …", "expires=… is …"
_ABOUT: Final = re.compile(r"(argument )?([a-z_]+|\d+|'[^']*')")


class Wrong(InvalidJob):
    """Error for an invalid entry; ``member`` is the JSON pointer to the invalid member, relative to the entry."""

    def __init__(self, member: str, text: str) -> None:
        super().__init__(text)
        self.member = member


class TaskNotFound(Exception):
    """Error for a task name that cannot be scheduled over HTTP."""


class Reader:
    """Reader for the job entries of one request. The parts common to jobs of one task are computed once.

    Args:
        queue: the queue in the URL.
        kind: python or pull.
        kept: record of the Idempotency-Key; ids and keys of the jobs are derived from it. None = they are random.
    """

    def __init__(self, queue: str, kind: str, kept: Kept | None = None) -> None:
        self._queue = queue
        self._pull = kind == "pull"
        self._kept = kept
        self._tasks: dict[str, _OfTask] = {}
        self._raw = RawJobBuilder(job_rules(), context_links.collect())
        self._around = None if self._pull else chain()

    def one(self, entry: Any, send: Callable[[Prepared], object]) -> JobHandle:
        """Validate one entry of a request and schedule its job; the schedule middlewares wrap both steps.

        Args:
            send: stores the job, and sets its outcome (created, merged, …) on its handle.

        Raises:
            Problem: the entry is invalid (400), or there is no such task (404).
        """
        made: list[JobHandle] = []

        def end(scheduling: Scheduling) -> JobHandle:
            options = dict(scheduling.options)
            check_option_names(options)
            of = _OfTask(find_task(scheduling.task), options.pop("queue", None) or self._queue)
            job = self._signed(of.make(scheduling.args, scheduling.kwargs, options), len(made))
            send(job)
            made.append(job.handle)
            return job.handle

        try:
            if self._around is None:
                job = self._read(entry, 0)
                send(job)
                return job.handle
            of, args, kwargs, options = self._call(entry, 0)
            answer = self._around(Scheduling(of.task, args, kwargs, options, many=False, end=end))
        except Wrong as error:
            raise _refusal([(error.member, str(error))]) from None
        except TaskNotFound as error:
            raise _not_found([("/task", str(error))]) from None
        # A middleware may return a handle without passing the job on.
        return answer if isinstance(answer, JobHandle) else made[-1] if made else _skipped(self._queue)

    def many(self, entries: list[Any]) -> list[Prepared | None]:
        """Return all jobs in request order; None for each job that a schedule middleware did not pass on.

        Raises:
            Problem: some entries are invalid (400), or name an unknown task (404). Nothing was stored.
        """
        read: list[Prepared | None] = []
        wrong: list[tuple[str, str]] = []
        missing: list[tuple[str, str]] = []
        around = self._around
        for place, entry in enumerate(entries):
            try:
                read.append(self._read(entry, place) if around is None else self._pass(around, entry, place))
            except Wrong as error:
                wrong.append((f"/jobs/{place}{error.member}", str(error)))
            except TaskNotFound as error:
                missing.append((f"/jobs/{place}/task", str(error)))
            if len(wrong) + len(missing) == _MOST_ERRORS:
                break
        if missing:
            raise _not_found(missing)
        if wrong:
            raise _refusal(wrong)
        return read

    # -- one entry ---------------------------------------------------------------------------------------------------

    def _read(self, entry: Any, place: int) -> Prepared:
        if self._pull:
            return self._bytes(_object(entry), place)
        of, args, kwargs, options = self._call(entry, place)
        return self._signed(of.make(args, kwargs, options), place)

    def _signed(self, job: Prepared, place: int) -> Prepared:
        """Return the job, its key derived from the request's Idempotency-Key if there is one."""
        if self._kept is not None:
            new = job.new
            key = self._kept.job_key(place, new.id)
            new.repeatable = True
            if new.payload is None:
                new.key = key
            else:
                new.payload.key = key
        return job

    def _call(self, entry: Any, place: int) -> tuple[_OfTask, tuple[Any, ...], dict[str, Any], Entry]:
        """Return the task, arguments and options of an entry. The entry is consumed."""
        options = _object(entry)
        name = options.pop("task", None)
        of = self._tasks.get(name) if type(name) is str else None
        if of is None:
            of = self._tasks[str(name)] = _OfTask(self._find(name), self._queue)
        if not options.keys() <= of.members:
            _refuse_members(options, of.members, self._pull)
        args, kwargs = options.pop("args", None), options.pop("kwargs", None)
        if args is not None and type(args) is not list:
            raise Wrong("/args", f"args is a list, not {short(args)}")
        if kwargs is not None and type(kwargs) is not dict:
            raise Wrong("/kwargs", f"kwargs is an object, not {short(kwargs)}")
        if "at" in options or "expires" in options:
            _read_moments(options)
        if self._kept is not None and options.get("id") is None and not of.task.options.merge:
            options["id"] = self._kept.job_id(place)
        return of, tuple(args) if args else (), kwargs or {}, options

    def _find(self, name: object) -> Task:
        if type(name) is not str:
            raise Wrong("/task", f"task is the name of a task, not {short(name)}")
        found = registry.get(name)
        # Callers may only produce: they must not learn the names of other tasks.
        if found is None or not found.options.api:
            raise TaskNotFound(f"no task {short(name)} can be scheduled over HTTP; it needs @task(api=True)")
        return found

    def _pass(self, around: Chain, entry: Any, place: int) -> Prepared | None:
        of, args, kwargs, options = self._call(entry, place)
        made: list[Prepared] = []

        def end(scheduling: Scheduling) -> JobHandle:
            if scheduling.task is not of.task or not scheduling.options.keys() <= of.members:
                raise InvalidJob(
                    "of many jobs a schedule middleware may change the arguments and the options of one, not its task, "
                    "its queue or its database"
                )
            made.append(self._signed(of.make(scheduling.args, scheduling.kwargs, scheduling.options), place))
            return made[-1].handle

        around(Scheduling(of.task, args, kwargs, options, many=True, end=end))
        return made[-1] if made else None

    def _bytes(self, options: Entry, place: int) -> Prepared:
        if not options.keys() <= _PULL:
            _refuse_members(options, _PULL, self._pull)
        body = _body(options.pop("body", None), options.pop("body_base64", None), self._raw.rules.max_args_bytes)
        if "at" in options or "expires" in options:
            _read_moments(options)
        if self._kept is not None and options.get("id") is None:
            options["id"] = self._kept.job_id(place)
        try:
            new = self._raw.build((body,), {}, options)
        except InvalidJob as error:
            raise _pointed(error, None, _PULL) from None
        return self._signed(_prepared(new, self._queue, None, durable=False), place)


class _OfTask:
    """Parts common to all jobs of one task in one request."""

    __slots__ = ("_plan", "members", "task")

    def __init__(self, task: Task, queue: str) -> None:
        self.task = task
        self._plan: Plan = plan_of(task, {"queue": queue})
        #: members an entry may have besides ``task``
        self.members = self._plan.builder.entry_keys | {"durable"}

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Prepared:
        """Return one job; raise :class:`Wrong` if it is invalid."""
        plan = self._plan
        durable = plan.durable
        try:
            new = plan.builder.build(args, kwargs, options)
            if "durable" in options:
                durable = durability.is_durable(self.task, options, plan.queue)
        except (InvalidJob, TypeError) as error:
            raise _pointed(error, self.task, self.members) from None
        return _prepared(new, plan.queue, self.task, durable=durable)


def _prepared(new: NewJob, queue: str, task: Task | None, *, durable: bool) -> Prepared:
    return Prepared(new, JobHandle(new.id, queue, COLLECTED, new.due_ms_here, task, durable=durable))


def _object(entry: Any) -> Entry:
    if type(entry) is not dict:
        raise Wrong("", f"a job is an object, not {short(entry)}")
    return entry


def _read_moments(options: Entry) -> None:
    """Parse text values of ``at`` and ``expires``. Numbers stay: Unix seconds, or for ``expires`` a span."""
    for name in ("at", "expires"):
        value = options.get(name)
        if type(value) is str:
            try:
                options[name] = parse_moment(value)
            except InvalidJob as error:
                raise Wrong(f"/{name}", str(error)) from None


def _body(text: object, encoded: object, limit: int) -> bytes:
    if (text is None) == (encoded is None):
        raise Wrong("/body", "give either body (a text) or body_base64")
    if text is not None:
        if type(text) is not str:
            raise Wrong("/body", f"body is a text, not {short(text)}; send other bytes as body_base64")
        found = text.encode()
    else:
        found = _decoded(encoded)
    if len(found) > limit:
        member = "/body" if text is not None else "/body_base64"
        raise Wrong(
            member,
            f"the body has {len(found)} bytes, at most {limit} are stored; store the data elsewhere and send its key",
        )
    return found


def _decoded(encoded: object) -> bytes:
    if type(encoded) is str and encoded.isascii():
        try:
            return b64decode(encoded, validate=True)
        except binascii.Error:
            pass
    raise Wrong("/body_base64", f"{short(encoded)} is no base64 (A-Z a-z 0-9 + / and = at the end)")


def _refuse_members(options: Entry, members: frozenset[str], pull: bool) -> NoReturn:
    name = next(name for name in options if name not in members)
    if name in ("payload", "score"):
        hint = " It is for merged tasks."
    elif name in _PULL_ONLY and not pull:
        hint = " It is for queues of kind pull."
    elif name in ("task", "args", "kwargs", "durable") and pull:
        hint = " This queue is of kind pull: its jobs are bytes, not calls of tasks."
    else:
        hint = suggest(name, members)
    pointer = name[:60].replace("~", "~0").replace("/", "~1")
    known = ", ".join(sorted(members if pull else {*members, "task"}))
    raise Wrong(f"/{pointer}", f"there is no such member.{hint} Known are: {known}")


def _pointed(error: Exception, task: Task | None, members: frozenset[str]) -> Wrong:
    """Return the error with a pointer to the member its message is about."""
    text = str(error)
    if task is not None:
        text = text.removeprefix(f"task {task.name}: ")
    about = _ABOUT.match(text)
    if about is None:
        return Wrong("", text)
    argument, word = about.groups()
    if argument:
        word = word.strip("'").replace("~", "~0").replace("/", "~1")
        return Wrong(f"/args/{word}" if word.isdigit() else f"/kwargs/{word}", text)
    return Wrong(f"/{word}" if word in members else "", text)


def _refusal(errors: list[tuple[str, str]]) -> Problem:
    where, text = errors[0]
    return Problem(400, "invalid", f"{where or '/'}: {text}. Nothing was stored", errors=errors)


def _not_found(errors: list[tuple[str, str]]) -> Problem:
    return Problem(404, "task_not_found", f"{errors[0][1]}. Nothing was stored", errors=errors)


def _skipped(queue: str) -> JobHandle:
    return JobHandle("", queue, "skipped", 0)
