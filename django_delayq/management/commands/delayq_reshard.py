"""Command ``manage.py delayq_reshard``: change the number of shards of a queue during operation."""

from __future__ import annotations

import time
from typing import Any, Final

from django.core.management.base import CommandError

from ... import connections
from ...core.broker import Broker
from ...core.inputs import check_queue_name
from ...core.resharding import EpochProgress
from ...status.formatting import table
from ..base import DelayQCommand

#: pause between two checks of --wait
POLL_SECONDS: Final = 0.5


class Command(DelayQCommand):
    """Command that changes the number of shards of a queue."""

    help = (
        "Changes the number of shards of a queue while workers and producers continue. New jobs go to the new shards; "
        "the running workers empty the old ones. Change the number in the settings as well."
    )
    examples = ("delayq_reshard orders --shards 12 --wait", "delayq_reshard orders --status")

    options = """
        queue       name of the queue
        --shards N  new number of shards
        --wait      wait until the old shards are empty
        --status    only show the jobs in the old and new shards
        --json      print one JSON object
    """

    def run(self, **options: Any) -> None:
        """Change the number, wait, and show the result."""
        broker = connections.broker()
        name = broker.require_queue(check_queue_name(options["queue"])).name
        if options["shards"] is None and not (options["status"] or options["wait"]):
            raise CommandError("the number of shards is missing: give --shards N, or --status to see the present ones")
        if options["shards"] is not None and not options["status"]:
            broker.reshard(name, options["shards"])
        if options["wait"]:
            self.wait(broker, name)
        self.show(name, broker.epochs.progress(name))

    def wait(self, broker: Broker, name: str) -> None:
        """Wait until no job is left in the old shards."""
        with self.progress("reshard") as progress:
            total = 0
            while left := _left(broker.epochs.progress(name)):
                total = max(total, left)
                progress.update(total - left, total)
                time.sleep(POLL_SECONDS)
            progress.update(total, total)

    def show(self, name: str, epochs: list[EpochProgress]) -> None:
        """Print the counts of each epoch."""
        rows = [
            {
                "epoch": epoch.epoch,
                "state": epoch.state,
                "shards": epoch.shards,
                "jobs": _jobs(epoch),
                "reserved": epoch.counts.reserved,
                "morgue": epoch.counts.morgue,
            }
            for epoch in epochs
        ]
        old, notes = [epoch for epoch in epochs if epoch.state == "old"], []
        if _left(epochs):
            notes = ["The workers are emptying the old shards. --status shows what is left."]
        elif any(epoch.counts.morgue for epoch in old):
            notes = ["The old shards are kept while their morgue has jobs: retry or discard these with delayq_jobs."]
        elif old:
            notes = ["The old shards are empty. A dispatcher removes them within three minutes."]
        self.print_answer({"queue": name, "epochs": rows}, *table(rows, left=2), *notes)


def _left(epochs: list[EpochProgress]) -> int:
    """Return the number of jobs in the old shards."""
    return sum(_jobs(epoch) for epoch in epochs if epoch.state == "old")


def _jobs(epoch: EpochProgress) -> int:
    counts = epoch.counts
    return counts.ready + counts.delayed + counts.reserved
