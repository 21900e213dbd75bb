"""Command ``manage.py delayq_reshard``: change the number of shards of a queue during operation."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import CommandError

from ... import connections
from ...core.broker import Broker
from ...core.inputs import check_queue_name
from ...core.operations.resharding import Progress
from ...status.formatting import table
from ..base import DelayQCommand, positive

#: seconds between two checks of --wait
LOOK: Final = 0.5


class Command(DelayQCommand):
    """Command that changes the number of shards of a queue."""

    help = (
        "Changes the number of shards of a queue without a stop: new jobs go to the new shards, those in the old ones "
        "are worked off by the running workers. The shard count in the settings should be changed too."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("queue", metavar="QUEUE")
        parser.add_argument("--shards", type=positive(int, "a whole number"), metavar="N", help="how many from now on")
        parser.add_argument("--wait", action="store_true", help="until no job is left in the old shards")
        parser.add_argument("--status", action="store_true", help="only show what lies in the old and new shards")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, **options: Any) -> None:
        """Change the number, wait, and show the result."""
        broker, name = connections.broker(), check_queue_name(options["queue"])
        broker.require_queue(name)
        if options["shards"] is None and not (options["status"] or options["wait"]):
            raise CommandError("how many shards? Give --shards N; or --status to see what is")
        if options["shards"] is not None and not options["status"]:
            broker.reshard(name, options["shards"])
        if options["wait"]:
            self.wait(broker, name)
        self.show(name, broker.epochs.progress(name), as_json=options["json"])

    def wait(self, broker: Broker, name: str) -> None:
        """Wait until no job is left in the old shards."""
        with self.progress("reshard") as shown:
            most = 0
            while left := _left(broker.epochs.progress(name)):
                most = max(most, left)
                shown.update(most - left, most)
                time.sleep(LOOK)
            shown.update(most, most)

    def show(self, name: str, epochs: list[Progress], *, as_json: bool) -> None:
        """Print the counts of each epoch."""
        if as_json:
            self.print_json(
                {
                    "queue": name,
                    "epochs": [
                        {
                            "epoch": one.epoch,
                            "shards": one.shards,
                            "state": one.state,
                            "jobs": _jobs(one),
                            "reserved": one.counts.reserved,
                            "morgue": one.counts.morgue,
                        }
                        for one in epochs
                    ],
                }
            )
            return
        head = ("epoch", "state", "shards", "jobs", "reserved", "morgue")
        rows = [
            (one.epoch, one.state, one.shards, _jobs(one), one.counts.reserved, one.counts.morgue) for one in epochs
        ]
        for line in table(head, rows, left=2):
            self.stdout.write(line)
        old = [one for one in epochs if one.state == "old"]
        if _left(epochs):
            self.stdout.write("Old shards are emptied by the workers; see again with --status.")
        elif any(one.counts.morgue for one in old):
            self.stdout.write("Old shards stay while there are jobs in their morgue: kick or discard them.")
        elif old:
            self.stdout.write("Old shards are empty; a dispatcher takes them off within three minutes.")


def _left(epochs: list[Progress]) -> int:
    """Return the number of jobs in the old shards."""
    return sum(_jobs(one) for one in epochs if one.state == "old")


def _jobs(epoch: Progress) -> int:
    counts = epoch.counts
    return counts.ready + counts.delayed + counts.reserved
