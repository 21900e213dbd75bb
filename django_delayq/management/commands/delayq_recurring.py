"""Recurring tasks: list them, pause and resume their ticks, run one now."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import CommandError

from ... import connections
from ...core.registry import pause_recurring
from ...core.task import registry
from ...status import read_recurring
from ...status.formatting import printable
from ...status.json_form import recurring_as_json
from ...status.report import recurring_table
from ...worker.recurring import resume, run_now, work_of
from ..base import DelayQCommand, actions_help

ACTIONS: Final = {
    "list": "list the recurring tasks of this project",
    "pause": "let no tick of a task fire until it is resumed; jobs that are there already run",
    "resume": "let the ticks of a task fire again; of those missed meanwhile its option missed= decides; "
    "also ends the pause of a task that was renamed or removed",
    "run-now": "run a task once now, beside its ticks",
}
NO_TASK: Final = "No task of this project recurs: give one every= or cron=."


class Command(DelayQCommand):
    """Command that lists recurring tasks and acts on one."""

    help = f"Lists recurring tasks with their last and next ticks, or acts on one. {actions_help(ACTIONS)}"
    examples = (
        "delayq_recurring list",
        "delayq_recurring pause shop.tasks.nightly",
        "delayq_recurring resume shop.tasks.nightly",
        "delayq_recurring run-now shop.tasks.nightly",
    )

    options = f"""
        action {"|".join(ACTIONS)}  what to do
        [task]  name of the task
        --json  print JSON
    """

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action, task, broker = options["action"], options["task"], connections.broker()
        if (task is None) != (action == "list"):
            wrong = "list takes no task: leave it out" if task else f"{action} which task? Give its name"
            raise CommandError(wrong, returncode=2)
        if action == "list":
            tasks = read_recurring(broker)
            self.print_answer([recurring_as_json(one) for one in tasks], *(recurring_table(tasks) or [NO_TASK]))
            return
        if action == "resume":
            name, effect = resume(broker, registry, task), "is not paused"
        else:
            work = work_of(registry, task)
            name, effect = work.task.name, "is paused: its ticks do not fire"
            if action == "pause":
                pause_recurring(broker, name)
            else:
                effect = f"runs now ({run_now(broker, work)})"
        self.print_answer({"task": name, "action": action}, f"{printable(name)} {effect}")
