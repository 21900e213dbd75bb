#!/usr/bin/env python
"""Demo of the data pipeline on this machine, from end to end: a campaign for a million customers and its history.

    make demo-pipeline                        (or: python example_project/pipeline.py)
    make demo-pipeline CUSTOMERS=20000        with fewer customers
    make demo-pipeline ARGS=--look            afterwards: the admin, with the history of the last run

The demo writes a file of customers; Spark schedules a job for each; two worker processes run them; Spark computes the
history, which is compared with all other counters. Then two failures are caused and repaired. Each step prints its
command and its duration. All files are in ``.demo-pipeline/``; Ctrl-C ends everything.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from stage import HOST, NEEDED, ROOT, Failed, Stage, check_packages

if TYPE_CHECKING:
    from django_delayq.core import Counts

QUEUE = "greetings"
#: period, up to now, over which the jobs of the campaign fall due
SPREAD = timedelta(minutes=5)
SLOW_EVERY = 500
#: with fewer customers, addresses that cannot be reached are more frequent, so that a few are included
NOWHERE_EVERY = 20_000
LEAST_NOWHERE = 5
ORDERS_LOST = 7

BULK = """delayq_pipeline bulk '{path}' --format csv --schema 'customer LONG, address STRING, due TIMESTAMP'
    --task shop.greet --id 'night:{{customer}}:{day}' --due due --args customer,address"""
RETRY = f"""delayq_pipeline jobs retry --queues {QUEUE} --where "state = 'morgue'" --yes"""
RECONCILE = """delayq_pipeline reconcile --model shop.Order --filter '{"status": "placed"}' --task shop.cancel_order
    --id 'order-{id}' --args id --due expires_at --created created_at --grace 1s"""
HISTORY = """SELECT sum(runs), sum(succeeded), sum(failed), sum(buried) FROM django_delayq_hourlystat WHERE queue = ?"""


@dataclass(frozen=True)
class Campaign:
    """Contents of a file of customers.

    Attributes:
        slow: customers whose provider accepts a message at the third attempt.
        nowhere: customers whose provider is down.
    """

    path: Path
    rows: int
    slow: int
    nowhere: int


class Story:
    """Night of a shop with very many customers."""

    def __init__(self, stage: Stage) -> None:
        from django_delayq.core import Broker, RedisConfig, connect

        self.stage, self.options = stage, stage.options
        self._broker = Broker(connect(RedisConfig.parse(stage.redis.url)), prefix="shop")
        self._began, self._steps = time.monotonic(), 0
        # All events wait in Redis until the history reads them. Some jobs have three attempts.
        stage.env["SHOP_EVENTS_CAP"] = str(max(100_000, self.options.customers))
        stage.env["SHOP_MAILBOX"] = str(stage.folder / "mailbox")

    def tell(self) -> None:
        """Run all steps."""
        customers, day = self.options.customers, f"{datetime.now(UTC):%Y-%m-%d}"
        path = self.stage.folder / "customers.csv"
        bulk = BULK.format(path=path, day=day)
        with self.step("The shop: its database and products, and a check of what the pipeline needs"):
            self.run("migrate --verbosity 0")
            self.run("shop_seed --demo-user")
            self.run("delayq_pipeline doctor")
        with self.step(f"A file with {customers:,} customers, as another department would send it"):
            campaign = write_customers(path, customers, datetime.now(UTC))
            providers = f"{campaign.slow:,} of them to a slow provider, {campaign.nowhere:,} at one that is down"
            self.say(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {providers}")
        with self.step("A preview of the campaign; nothing is written (--dry-run)"):
            self.run(f"{bulk} --dry-run")
        with self.step("The campaign, scheduled by Spark: one job for each customer"):
            self.run(f"{bulk} --run-id night-{day} --yes")
            expect("jobs in the queue", self.waiting(QUEUE), customers)
        with self.step("Two worker processes run it"):
            self.work(processes=2)
        with self.step("The history: Spark reads what happened, computes and writes it to the shop's database"):
            self.run("delayq_pipeline run")
        with self.step("Is it all there, once? Four that counted by themselves are compared"):
            self.compare(campaign, repaired=False)
        with self.step(
            "A mistake: the cancellations of some unpaid orders get lost. The daily reconcile restores them"
        ):
            self.reconcile()
        with self.step("The provider is up again: an SQL condition selects the jobs of the morgue to retry"):
            self.run(RETRY)
            self.work(processes=1, SHOP_NOWHERE_IS_BACK="1")
            self.run("delayq_pipeline run")
            self.compare(campaign, repaired=True)
        self.farewell()

    # -- steps -------------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce and time one step."""
        self._steps += 1
        self.stage.plain("\n" + self.stage.paint(f"{self._steps}. {title}", "1"))
        begin = time.monotonic()
        yield
        self.stage.plain(f"   {time.monotonic() - begin:.1f} s")

    def say(self, text: str) -> None:
        self.stage.line("demo", text)

    def run(self, command: str) -> None:
        """Run a command of the project as a user would type it."""
        speaker = "spark" if command.startswith("delayq_pipeline") else "demo"
        self.stage.manage(*shlex.split(command), speaker=speaker)

    def counts(self, queue: str) -> Counts:
        return self._broker.inspector.counts(queue)

    def waiting(self, queue: str) -> int:
        counts = self.counts(queue)
        return counts.ready + counts.delayed

    def work(self, *, processes: int, **env: str) -> None:
        """Run workers until no job is left."""
        begin, first = time.monotonic(), self.acked()
        arguments = ("delayq_worker", "--queues", QUEUE, "--processes", str(processes), "--threads", "2")
        log = self.stage.folder / "workers.log"
        self.say(f"$ {shlex.join(('manage.py', *arguments))}   (output: {log})")
        worker, told = self.stage.start("worker", *arguments, log=log, **env), begin
        while left := self.counts(QUEUE).live:
            if worker.poll() is not None:
                raise Failed(f"The workers have ended ({left:,} jobs are left). Their output is in {log}.")
            if time.monotonic() - told >= 5:
                told = time.monotonic()
                self.say(f"{self.acked() - first:,} done, {left:,} left")
            time.sleep(0.2)  # other processes: there is no event to wait for
        seconds, done = time.monotonic() - begin, self.acked() - first
        self.stage.end(worker)
        self.say(f"{done:,} jobs done in {seconds:.1f} s, {done / seconds:,.0f} a second with their start")

    def acked(self) -> int:
        return self.counts(QUEUE).counters.get("acked", 0)

    def compare(self, campaign: Campaign, *, repaired: bool) -> None:
        """Check that the file, the core's counters, the history and the mailbox agree."""
        with closing(sqlite3.connect(self.stage.env["SHOP_DB"])) as database:
            runs, succeeded, failures, buried = database.execute(HISTORY, [QUEUE]).fetchone()
        core = self.counts(QUEUE)
        mailbox = (self.stage.folder / "mailbox").glob("*.txt")
        letters = Counter(line for file in mailbox for line in file.read_text().split())
        done = campaign.rows - (0 if repaired else campaign.nowhere)
        # jobs for a slow provider fail twice; for one that is down they fail twice and then move to the morgue
        failed = 2 * (campaign.slow + campaign.nowhere)
        for what, found, wanted in (
            ("jobs created, by the core", core.counters["created"], campaign.rows),
            ("jobs done, by the core", core.counters["acked"], done),
            ("jobs done, by the history", succeeded, done),
            ("customers who got a message", len(letters), done),
            ("messages, all in all", letters.total(), done),
            ("runs that failed, by the core", core.counters["failed"], failed),
            ("runs that failed, by the history", failures, failed),
            ("jobs into the morgue, by the core", core.counters["buried"], campaign.nowhere),
            ("jobs into the morgue, by the history", buried, campaign.nowhere),
            ("jobs in the morgue now", core.morgue, 0 if repaired else campaign.nowhere),
            ("runs of any kind, by the history", runs, done + failed + campaign.nowhere),
        ):
            expect(what, found, wanted)
            self.say(f"{what:<38} {found:>11,}")
        self.say("0 lost, 0 doubled")

    def reconcile(self) -> None:
        """Place orders, lose some of their jobs, and find them by comparing the table with the queue."""
        self.run("shop_traffic --rate 20 --seconds 2 --pay 0 --seed night")
        there = self.waiting("orders")
        self.run(f"shop_mishap --orders {ORDERS_LOST}")
        expect("jobs of unpaid orders after the mistake", self.waiting("orders"), there - ORDERS_LOST)
        self.run(RECONCILE)
        expect("jobs of unpaid orders after the reconcile", self.waiting("orders"), there)
        self.say(f"{ORDERS_LOST} of {there} were missing, and are back")

    def farewell(self) -> None:
        """Print how long it took, and how to continue."""
        folder, seconds = self.options.folder, time.monotonic() - self._began
        look = "--look" if folder.name == ".demo-pipeline" else shlex.quote(f"--look --folder {folder}")
        self.stage.plain(f"\n   {seconds:.1f} s in all, for {self.options.customers:,} customers")
        self.stage.plain(f"   The history and its charts in the admin:   make demo-pipeline ARGS={look}\n")


def write_customers(path: Path, rows: int, now: datetime) -> Campaign:
    """Write a file of numbered customers with address and due time, the same for the same arguments."""
    nowhere_every = max(1, min(NOWHERE_EVERY, rows // LEAST_NOWHERE))
    providers: Counter[str] = Counter()
    begin, step = now - SPREAD, SPREAD / rows
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("customer", "address", "due"))
        for number in range(1, rows + 1):
            provider = "slow.example" if number % SLOW_EVERY == 0 else "example.com"
            provider = "nowhere.example" if number % nowhere_every == 0 else provider
            providers[provider] += 1
            due = (begin + step * number).isoformat(timespec="milliseconds")
            out.writerow((number, f"customer-{number}@{provider}", due))
    return Campaign(path, rows, providers["slow.example"], providers["nowhere.example"])


def expect(what: str, found: int, wanted: int) -> None:
    """Raise Failed if a number differs from the expected one."""
    if found != wanted:
        raise Failed(f"{what}: {found:,}, and it has to be {wanted:,}. This is a fault of the pipeline: please report.")


def look(stage: Stage) -> None:
    """Serve the admin with the data of the last run until Ctrl-C."""
    web = stage.serve()
    admin = f"http://{HOST}:{stage.options.port}/admin/django_delayq"
    stage.plain(
        f"\n   {admin}/hourlystat/    login admin, password admin\n   {admin}/pipelinerun/   the runs of the pipeline"
    )
    stage.plain("\n   Ctrl-C stops.\n")
    if web.wait():
        raise Failed("The web server ended; its output is above.")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The data pipeline on Spark, from end to end.")
    parser.add_argument("--customers", type=_customers, default=1_000_000, help="how many (default 1,000,000)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo-pipeline", help="for all data (.demo-pipeline)")
    parser.add_argument("--look", action="store_true", help="show the last story's history in the admin")
    parser.add_argument("--port", type=int, default=8000, help="of the admin (default 8000)")
    return parser.parse_args(arguments)


def _customers(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdigit() or not 100 <= int(digits) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of customers from 100 to 100,000,000")
    return int(digits)


def check_java() -> None:
    """Raise Failed if Spark would not find a Java."""
    from django_delayq.pipeline import java
    from django_delayq.pipeline.errors import SparkMissing
    from django_delayq.pipeline.session import check

    try:
        check()
        java.find()
    except SparkMissing as error:
        raise Failed(f"{error}\n`make demo-pipeline` makes an environment with everything in it") from error


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        check_packages([*NEEDED, "pyspark", "pyarrow", "pandas"], "demo-pipeline", "demo,spark-java")
        check_java()
        if options.look and not (options.folder / "shop.sqlite3").exists():
            raise Failed(f"There is no story in {options.folder} yet. First: make demo-pipeline")
        with Stage(options, empty=not options.look, appendfsync="no") as stage:
            look(stage) if options.look else Story(stage).tell()
    except Failed as error:
        print(f"\n{error}\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nended by Ctrl-C; everything that was started is stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
