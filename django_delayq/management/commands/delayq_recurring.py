"""Recurring tasks: list them, pause and resume their ticks, run one now."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from ... import connections
from ...core.registry import pause_recurring
from ...core.task import registry
from ...status import read_recurring
from ...status.formatting import printable
from ...status.json_form import recurring_as_json
from ...status.report import recurring_table
from ...worker.recurring import resume, run_now, work_of
from ..base import DelayQCommand, share_options

ACTIONS: Final = {
    "pause": "let no tick of a task fire until it is resumed; jobs that are there already run",
    "resume": "let the ticks of a task fire again; of those missed meanwhile its option missed= decides; "
    "also ends the pause of a task that was renamed or removed",
    "run-now": "run a task once now, beside its ticks",
}
NO_TASK: Final = "No task of this project recurs: give one every= or cron=."


class Command(DelayQCommand):
    """Command that lists recurring tasks and acts on one."""

    help = "Lists recurring tasks with their last and next ticks, pauses and resumes them, runs one now."
    examples = (
        "delayq_recurring list",
        "delayq_recurring pause shop.tasks.nightly",
        "delayq_recurring resume shop.tasks.nightly",
        "delayq_recurring run-now shop.tasks.nightly",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        actions.add_parser("list", help="list the recurring tasks of this project", description="List them.")
        for name, text in ACTIONS.items():
            action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
            action.add_argument("task", help="name of the task")
        for action in actions.choices.values():
            action.add_argument("--json", action="store_true", help="print JSON")
        share_options(parser, actions.choices.values())

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action, broker = options["action"], connections.broker()
        if action == "list":
            tasks = read_recurring(broker)
            lines = recurring_table(tasks) if tasks else [NO_TASK]
            self.print_answer([recurring_as_json(one) for one in tasks], *lines)
            return
        if action == "resume":
            name, effect = resume(broker, registry, options["task"]), "is not paused"
        else:
            work = work_of(registry, options["task"])
            name, effect = work.task.name, "is paused: its ticks do not fire"
            if action == "pause":
                pause_recurring(broker, name)
            else:
                effect = f"runs now ({run_now(broker, work)})"
        self.print_answer({"task": name, "action": action}, f"{printable(name)} {effect}")
