"""Plans of schedule calls: everything that the settings and the task decide before the arguments are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.utils import timezone

from .. import connections
from ..core.builder import JobBuilder, JobRules
from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name
from ..core.job import random_block, random_blocks
from ..core.task import Task
from ..outbox import durability
from ..settings.conf import check_installed, collect_context, conf


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of the calls of one task with the same ``queue`` and ``durable``."""

    builder: JobBuilder
    queue: str
    durable: bool


#: options that make the plan of a call differ from that of its task
_OF_THE_CALL: Final = frozenset(("queue", "durable"))
#: plans of calls that name neither ``queue`` nor ``durable``, while no schedule middleware and no context is configured
READY: Final[dict[Task, Plan]] = {}


def plan_of(task: Task, options: Mapping[str, Any], *, many: bool = False) -> Plan:
    """Return the plan of a call.

    Args:
        options: options of the call, or the common ones of ``schedule_many``.
        many: many jobs are to be built, by one thread.

    Raises:
        InvalidJob: ``queue`` or ``durable`` is wrong.
        Misconfigured: the app is not in ``INSTALLED_APPS``, or the settings are wrong.
    """
    check_installed()
    project, queue = conf(), queue_of(task, options)
    next_block = random_blocks().__next__ if many else random_block
    builder = JobBuilder(task, job_rules(), collect_context(), next_block)
    plan = Plan(builder, queue, durability.is_durable(task, options, queue))
    if apps.ready and not (many or project.schedule_middleware or project.context or _OF_THE_CALL & options.keys()):
        READY[task] = plan
    return plan


def job_rules() -> JobRules:
    """Return the rules of the settings for new jobs."""
    project = conf()
    zone = None if settings.USE_TZ else timezone.get_default_timezone()
    return JobRules(project.max_args_bytes, project.allow_far, zone, connections.can_confirm)


def queue_of(task: Task, options: Mapping[str, Any]) -> str:
    """Return the name of the queue that a call with these options uses.

    Raises:
        InvalidJob: the name is not valid for a queue, or no worker would ever reserve a job from that queue.
    """
    given = options.get("queue")
    if given is None:
        return task.options.queue
    name = check_queue_name(given)
    if conf().queue(name).kind == "pull":
        raise InvalidJob(
            f"queue {name!r} is of kind pull, so no worker would run the job; use Queue({name!r}).put(…), "
            f"or another queue"
        )
    return name


def _forget(**_: object) -> None:
    READY.clear()


setting_changed.connect(_forget, dispatch_uid="django_delayq.scheduling.plans")
