"""Jobs of a request: entries read in one pass, checked as :func:`django_delayq.schedule` checks them, and stored.

No job is stored before all entries are valid. Errors carry a JSON pointer to the invalid member. A request never waits
for a transaction, and its response reports what was stored. Durable jobs get their rows first; if Redis is unavailable
then, the relay sends them.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from .. import connections
from ..access import problems
from ..access.problems import Problem, pointer_token
from ..core.builder import RAW_TASK, RawJobBuilder
from ..core.errors import InvalidJob, QueueFull, QueueUnavailable
from ..core.inputs import check_task_name, short, suggest
from ..core.job import NewJob, random_block, random_blocks
from ..core.many import check_together
from ..core.options import OPTIONS, PLAIN_JOB, Check
from ..core.outcomes import ScheduleOutcome
from ..core.task import Task, check_option_names, registry
from ..core.times import iso_of, parse_moment, span_ms_of
from ..outbox import durability
from ..scheduling.build import COLLECTED, Plan, Scheduling, chain, find_task, job_rules, plan_of
from ..scheduling.sending import Prepared, send, send_at_once
from ..scheduling.verbs import JobHandle
from ..settings.conf import collect_context, conf
from .fields import DELAY, FLAG, MOMENT, MOST_ERRORS, Member, Resource, number
from .idempotency import IdempotencyRecord
from .parsing import LONGEST_WAIT, too_many

Entry = dict[str, Any]
#: members of entries of pull queues
PULL_ONLY: Final = ("body", "body_base64")
#: start of an error message about one member: "delay is …", "at= lies …", "expires=… is …"
_SUBJECT: Final = re.compile(r"(argument )?([a-z_]+|\d+|'[^']*')")
_PULL_MEMBERS: Final = PLAIN_JOB | {*PULL_ONLY}
#: outcomes that store nothing new
_NOTHING_NEW: Final = (ScheduleOutcome.IGNORED, ScheduleOutcome.SKIPPED)


def kind_of(name: str) -> str:
    """Return the kind of the queue in the URL.

    A queue named in the settings or by a task of the API need not exist yet.

    Raises:
        Problem: there is no such queue.
        QueueUnavailable: the queue is not known here, and Redis is unavailable.
    """
    named = name in conf().queues or any(task.options.api and task.options.queue == name for task in registry)
    try:
        opened = connections.hurried_broker().existing(name)
    except QueueUnavailable:
        if not named:
            raise
        opened = None  # durable jobs can still be accepted
    if opened is not None:
        return opened.kind
    if not named:
        raise problems.queue_not_found(name[:64])
    return conf().queue(name).kind


def produce_one(entry: Any, reader: Reader) -> tuple[int, dict[str, Any]]:
    """Store one job and return ``(status, response body)``.

    Raises:
        Problem: the entry is invalid.
        IdTaken, QueueFull, QueuePaused, QueueUnavailable: Redis did not accept the job.
    """
    handle = reader.one(entry, _send_one)
    status = 202 if handle.outcome == ScheduleOutcome.OUTBOX else 200 if handle.outcome in _NOTHING_NEW else 201
    due = None if handle.outcome == ScheduleOutcome.SKIPPED else iso_of(handle.due.timestamp() * 1000)
    return status, {"id": handle.id or None, "queue": handle.queue, "outcome": handle.outcome, "due": due}


def produce_many(entries: Any, reader: Reader, queue: str, *, all_or_none: bool = False) -> tuple[int, dict[str, Any]]:
    """Store many jobs and return ``(status, response body)``.

    Args:
        entries: the jobs of the request.
        reader: reads them.
        queue: name of the queue.
        all_or_none: see :meth:`.Queue.schedule_many`.

    Raises:
        Problem: some entries are invalid.
        QueuePaused, QueueFull: none of the jobs was accepted.
        QueueFull, QueueUnavailable: Redis accepted no more; some may be stored.
    """
    if not isinstance(entries, list) or not entries:
        raise serializers.ValidationError({"jobs": "this is a list with at least one job"})
    most = conf().api.max_jobs
    if len(entries) > most:
        raise too_many(most, "jobs")
    read = reader.many(entries)
    jobs = [job for job in read if job is not None]
    _check_durable(jobs)
    if all_or_none:
        check_together((job.new for job in jobs), durable=any(job.handle.durable for job in jobs))
    send_at_once(jobs, connections.hurried_broker(), all_or_none=all_or_none)
    outcomes = [ScheduleOutcome.SKIPPED if job is None else job.handle.outcome for job in read]
    counts = Counter(outcomes)
    if counts[ScheduleOutcome.PAUSED] == len(outcomes):
        raise connections.hurried_broker().queue(queue).paused_error()
    if counts[ScheduleOutcome.FULL] and counts.keys() <= {ScheduleOutcome.FULL, ScheduleOutcome.WITHHELD}:
        raise QueueFull(f"queue {queue!r} has no room; let the workers catch up, or raise its max_length")
    results = [
        {"id": None if job is None else job.handle.id, "outcome": outcome}
        for job, outcome in zip(read, outcomes, strict=True)
    ]
    return 202 if counts[ScheduleOutcome.OUTBOX] == len(outcomes) else 200, {"results": results, "counts": dict(counts)}


def _send_one(job: Prepared) -> None:
    _check_durable([job])
    send(job, connections.hurried_broker())


def _check_durable(jobs: Sequence[Prepared]) -> None:
    if any(job.handle.durable for job in jobs):
        durability.check(None)


# -- entries -----------------------------------------------------------------------------------------------------------


class Reader:
    """Reader for the job entries of one request. The parts common to jobs of one task are computed once.

    Args:
        queue: the queue in the URL.
        kind: python or pull.
        record: the request's idempotency record, from which ids and keys of the jobs are derived; None = random ones.
        many: the request may have many jobs.
    """

    def __init__(self, queue: str, kind: str, record: IdempotencyRecord | None = None, *, many: bool = False) -> None:
        self._queue = queue
        self._pull = kind == "pull"
        self._record = record
        self._tasks: dict[str, _TaskJobs] = {}
        self._many = many
        next_block = random_blocks().__next__ if many else random_block
        self._raw = RawJobBuilder(RAW_TASK, job_rules(), collect_context(), next_block)
        self._middlewares = None if self._pull else chain()

    def one(self, entry: Any, send: Callable[[Prepared], object]) -> JobHandle:
        """Validate one entry of a request and schedule its job; the schedule middlewares wrap both steps.

        Args:
            send: stores the job, and sets its outcome (created, merged, …) on its handle.

        Raises:
            Problem: the entry is invalid (400), or there is no such task (404).
        """
        built: list[JobHandle] = []

        def end(scheduling: Scheduling) -> JobHandle:
            options = dict(scheduling.options)
            check_option_names(options)
            jobs = _TaskJobs(find_task(scheduling.task), options.pop("queue", None) or self._queue)
            job = self._with_derived_key(jobs.build(scheduling.args, scheduling.kwargs, options), len(built))
            send(job)
            built.append(job.handle)
            return job.handle

        try:
            if self._middlewares is None:
                job = self._read(entry, 0)
                send(job)
                return job.handle
            jobs, args, kwargs, options = self._read_call(entry, 0)
            answer = self._middlewares(Scheduling(jobs.task, args, kwargs, options, many=False, end=end))
        except InvalidEntry as error:
            raise refusal([("", error)]) from None
        if isinstance(answer, JobHandle):  # a middleware may return one without passing the job on
            return answer
        return built[-1] if built else JobHandle("", self._queue, "skipped", 0)

    def many(self, entries: list[Any]) -> list[Prepared | None]:
        """Return all jobs in request order; None for each job that a schedule middleware did not pass on.

        Raises:
            Problem: some entries are invalid (400), or name an unknown task (404). Nothing was stored.
        """
        jobs: list[Prepared | None] = []
        refused: list[tuple[str, InvalidEntry]] = []
        for place, entry in enumerate(entries):
            try:
                jobs.append(self._read(entry, place) if self._middlewares is None else self._pass_on(entry, place))
            except InvalidEntry as error:
                refused.append((f"/jobs/{place}", error))
                if len(refused) == MOST_ERRORS:
                    break
        if refused:
            raise refusal(refused)
        return jobs

    # -- one entry ---------------------------------------------------------------------------------------------------

    def _read(self, entry: Any, place: int) -> Prepared:
        if self._pull:
            return self._build_raw(_check_object(entry), place)
        jobs, args, kwargs, options = self._read_call(entry, place)
        return self._with_derived_key(jobs.build(args, kwargs, options), place)

    def _with_derived_key(self, job: Prepared, place: int) -> Prepared:
        """Return the job, its key derived from the request's Idempotency-Key if there is one."""
        if self._record is not None:
            new = job.new
            key = self._record.job_key(place, new.id)
            new.repeatable = True
            if new.payload is None:
                new.key = key
            else:
                new.payload.key = key
        return job

    def _read_call(self, entry: Any, place: int) -> tuple[_TaskJobs, tuple[Any, ...], dict[str, Any], Entry]:
        """Return the task, arguments and options of an entry. The entry is consumed."""
        options = _check_object(entry)
        name = options.pop("task", None)
        jobs = self._tasks.get(name) if type(name) is str else None
        if jobs is None:
            jobs = self._tasks[str(name)] = _TaskJobs(self._find_task(name), self._queue, many=self._many)
        if not options.keys() <= jobs.members:
            refuse_members(options, jobs.members, pull=False)
        args, kwargs = options.pop("args", None), options.pop("kwargs", None)
        if args is not None and type(args) is not list:
            raise InvalidEntry("/args", f"args is a list, not {short(args)}")
        if kwargs is not None and type(kwargs) is not dict:
            raise InvalidEntry("/kwargs", f"kwargs is an object, not {short(kwargs)}")
        if "at" in options or "expires" in options:
            _read_moments(options)
        if self._record is not None and options.get("id") is None and not jobs.makes_ids:
            options["id"] = self._record.job_id(place)
        return jobs, tuple(args) if args else (), kwargs or {}, options

    def _find_task(self, name: object) -> Task:
        if name is None:
            raise InvalidEntry("/task", "a call of a task needs its name; a body goes into a queue of kind pull")
        if type(name) is not str:
            raise InvalidEntry("/task", f"task is the name of a task, not {short(name)}")
        task = registry.get(name)
        # Callers may only produce: they must not learn the names of other tasks.
        if task is None or not task.options.api:
            raise TaskNotFound("/task", f"no task {short(name)} can be scheduled over HTTP; it needs @task(api=True)")
        return task

    def _pass_on(self, entry: Any, place: int) -> Prepared | None:
        jobs, args, kwargs, options = self._read_call(entry, place)
        built: list[Prepared] = []

        def end(scheduling: Scheduling) -> JobHandle:
            if scheduling.task is not jobs.task or not scheduling.options.keys() <= jobs.members:
                raise InvalidJob(
                    "of many jobs a schedule middleware may change the arguments and the options of one, not its task, "
                    "its queue or its database"
                )
            built.append(
                self._with_derived_key(jobs.build(scheduling.args, scheduling.kwargs, scheduling.options), place)
            )
            return built[-1].handle

        middlewares: Any = self._middlewares
        middlewares(Scheduling(jobs.task, args, kwargs, options, many=True, end=end))
        return built[-1] if built else None

    def _build_raw(self, options: Entry, place: int) -> Prepared:
        if not options.keys() <= _PULL_MEMBERS:
            refuse_members(options, _PULL_MEMBERS, pull=True)
        body = _body(options.pop("body", None), options.pop("body_base64", None), self._raw.rules.max_args_bytes)
        if "at" in options or "expires" in options:
            _read_moments(options)
        if self._record is not None and options.get("id") is None:
            options["id"] = self._record.job_id(place)
        try:
            new = self._raw.build((body,), {}, options)
        except InvalidJob as error:
            raise locate_error(error, None, _PULL_MEMBERS) from None
        return self._with_derived_key(_prepare(new, self._queue, None, durable=False), place)


class _TaskJobs:
    """Parts common to all jobs of one task in one request."""

    def __init__(self, task: Task, queue: str, *, many: bool = False) -> None:
        self.task = task
        #: jobs get their ids from the caller or the task, never from the request
        self.makes_ids = task.options.merge or task.options.id is not None
        self._plan: Plan = plan_of(task, {"queue": queue}, many=many)
        #: members an entry may have besides ``task``
        self.members = self._plan.builder.entry_keys | {"durable"}

    def build(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Prepared:
        """Return one job; raise :class:`InvalidEntry` if it is invalid."""
        plan = self._plan
        durable = plan.durable
        try:
            new = plan.builder.build(args, kwargs, options)
            if "durable" in options:
                durable = durability.is_durable(self.task, options, plan.queue)
        except (InvalidJob, TypeError) as error:
            raise locate_error(error, self.task, self.members) from None
        return _prepare(new, plan.queue, self.task, durable=durable)


def _prepare(new: NewJob, queue: str, task: Task | None, *, durable: bool) -> Prepared:
    if new.room_ms > LONGEST_WAIT * 1000:
        raise InvalidEntry("/wait_for_room", f"a request waits for room for {LONGEST_WAIT} seconds at most")
    return Prepared(new, JobHandle(new.id, queue, COLLECTED, new.due_ms_here, task, durable=durable))


def _check_object(entry: Any) -> Entry:
    if type(entry) is not dict:
        raise InvalidEntry("", f"a job is an object, not {short(entry)}")
    return entry


def _read_moments(options: Entry) -> None:
    """Parse text values of ``at`` and ``expires``. Numbers stay: Unix seconds, or for ``expires`` a span."""
    for name in ("at", "expires"):
        value = options.get(name)
        if type(value) is str:
            try:
                options[name] = parse_moment(value)
            except InvalidJob as error:
                raise InvalidEntry(f"/{name}", str(error)) from None


def _body(text: object, encoded: object, limit: int) -> bytes:
    if (text is None) == (encoded is None):
        raise InvalidEntry("/body", "give either body (a text) or body_base64")
    if text is not None:
        if type(text) is not str:
            raise InvalidEntry("/body", f"body is a text, not {short(text)}; send other bytes as body_base64")
        body = text.encode()
    else:
        body = _decoded(encoded)
    if len(body) > limit:
        member = "/body" if text is not None else "/body_base64"
        raise InvalidEntry(
            member,
            f"the body has {len(body)} bytes, at most {limit} are stored; store the data elsewhere and send its key",
        )
    return body


def _decoded(encoded: object) -> bytes:
    if type(encoded) is str and encoded.isascii():
        try:
            return b64decode(encoded, validate=True)
        except binascii.Error:
            pass
    raise InvalidEntry("/body_base64", f"{short(encoded)} is no base64 (A-Z a-z 0-9 + / and = at the end)")


# -- errors ------------------------------------------------------------------------------------------------------------


class InvalidEntry(InvalidJob):
    """Error for an invalid entry; ``member`` is the JSON pointer to the invalid member, relative to the entry."""

    def __init__(self, member: str, text: str) -> None:
        super().__init__(text)
        self.member = member


class TaskNotFound(InvalidEntry):
    """Error for a task name that cannot be scheduled over HTTP."""


def refuse_members(options: dict[str, Any], members: frozenset[str], *, pull: bool) -> NoReturn:
    """Raise the error for an entry with a member that is not among ``members``."""
    name = next(name for name in options if name not in members)
    if name in ("payload", "score"):
        hint = " It is for merged tasks."
    elif name in PULL_ONLY and not pull:
        hint = " It is for queues of kind pull."
    elif name in ("task", "args", "kwargs", "durable") and pull:
        hint = " This queue is of kind pull: its jobs are bytes, not calls of tasks."
    else:
        hint = suggest(name, members)
    pointer = pointer_token(name[:60])
    names = ", ".join(sorted(members if pull else {*members, "task"}))
    raise InvalidEntry(f"/{pointer}", f"unknown member.{hint} Known are: {names}")


def locate_error(error: Exception, task: Task | None, members: frozenset[str]) -> InvalidEntry:
    """Return the error with a pointer to the member its message is about."""
    text = str(error)
    if task is not None:
        text = text.removeprefix(f"task {task.name}: ")
    subject = _SUBJECT.match(text)
    if subject is None:
        return InvalidEntry("", text)
    argument, word = subject.groups()
    if argument:
        word = pointer_token(word.strip("'"))
        return InvalidEntry(f"/args/{word}" if word.isdigit() else f"/kwargs/{word}", text)
    return InvalidEntry(f"/{word}" if word in members else "", text)


def refusal(errors: list[tuple[str, InvalidEntry]]) -> Problem:
    """Return the problem of entries, each with its JSON pointer: 404 if a task is unknown, else 400."""
    unknown = [one for one in errors if isinstance(one[1], TaskNotFound)]
    found = [(f"{pointer}{error.member}", str(error)) for pointer, error in unknown or errors]
    where, text = found[0]
    if unknown:
        return Problem("task_not_found", f"{text}. Nothing was stored", errors=found)
    return Problem("invalid", f"{where or '/'}: {text}. Nothing was stored", errors=found)


# -- their description ------------------------------------------------------------------------------------------------


def _expires(name: str, data: Any) -> object:
    if isinstance(data, str):
        return parse_moment(data)
    if span_ms_of(name, data, allow_far=conf().allow_far) == 0:
        raise InvalidJob("expires is 0: the job would never run; give the time for which it is worth starting")
    return data


def _of_type(kind: type, what: str, **schema: Any) -> Check:
    def run(name: str, data: Any) -> Any:
        if isinstance(data, kind):
            return data
        raise InvalidJob(f"{name} is {what}, not {short(data)}")

    return Check(run, schema)


_TEXT: Final = _of_type(str, "a text", type="string")
_EXPIRES: Final = Check(
    _expires, {"oneOf": [{"type": "number", "minimum": 0.001}, {"type": "string", "format": "date-time"}]}
)


def _option(name: str) -> Member:
    """Return the member for an option, which has the rule of the table."""
    rule: Any = OPTIONS[name].job
    return Member(rule, required=False)


class _NewJob(Resource):
    """Options of a job; those that are written otherwise than ``schedule()`` takes them are declared here.

    Attributes:
        id: default: a random one.
        delay: seconds from now, negative = now; at most one of delay and at, neither = now.
        priority: 0 (first) … 7 (last).
        on_conflict: the id is waiting already.
        due_policy: whose due time counts then.
        reset_retries: with replace: forget earlier failures.
        retry_in: back-off: seconds, a list of them, or the name of a preset.
        timeout: seconds that one attempt in a worker may take.
        ttr: seconds of the lease for a consumer that names none with its reserve.
        expires: do not start it later: a moment, or seconds behind its due time.
        context: travels along.
        wait_for_room: wait so many seconds for room in a full queue, before the answer is queue_full (or full).
        wait_for_confirmation: answer when replicas or disks confirm the job; default: the server's setting.
    """

    delay = Member(DELAY, required=False)
    at = Member(MOMENT, required=False)
    expires = Member(_EXPIRES, required=False)
    wait_for_room = number(0, LONGEST_WAIT, required=False)

    def declared(self) -> dict[str, Any]:
        """Return the members that are declared, and one for each other option."""
        return {name: _option(name) for name in sorted(PLAIN_JOB)} | super().declared()


class Call(_NewJob):
    """Call of a task, for queues of kind python. A merged task has `id`, `payload` and `score` instead of arguments.

    Arguments are plain JSON and reach the task unchanged.

    Attributes:
        task: a task with @task(api=True).
        payload: of a merged task.
        score: of a merged task: orders the payloads of an id.
        durable: keep it in the database, too, until it is done.
    """

    task = Member(Check(lambda name, data: check_task_name(data), {"type": "string"}))
    args = Member(_of_type(list, "a list", type="array", items={}), required=False)
    kwargs = Member(_of_type(dict, "an object", type="object", additionalProperties={}), required=False)
    payload = Member(Check(lambda name, data: data, {}), required=False)
    score = _option("score")
    durable = Member(FLAG, required=False)


class Bytes(_NewJob):
    """Bytes, for queues of kind pull: `body` (a text) or `body_base64`.

    Attributes:
        body: stored as UTF-8.
    """

    body = Member(_TEXT, required=False)
    body_base64 = Member(_TEXT, required=False)


@extend_schema_field(
    PolymorphicProxySerializer(
        component_name="Entry", serializers=[Call, Bytes], resource_type_field_name=None, many=True
    )
)
class _EntriesField(serializers.ListField):
    pass


class Together(Resource):
    """Options of all jobs of a request together. Those of one job go into its entry.

    Attributes:
        all_or_none: if a job is refused, store none of the jobs of its shard: for up to 250 jobs, none of them durable;
            in a queue with one shard that is all of them.
    """

    null_is_missing = True
    all_or_none = Member(FLAG, default=False)


class ManyJobs(Together):
    """Up to 1,000 jobs, of any tasks of the API; in a queue of kind pull bytes."""

    jobs = _EntriesField()


#: one job or many
PRODUCE: Final = PolymorphicProxySerializer(
    component_name="Produce", serializers=[Call, Bytes, ManyJobs], resource_type_field_name=None
)
