#!/usr/bin/env python
"""Demo of the data pipeline on this machine, from end to end: a campaign for a million customers and its history.

    make demo-pipeline                        (or: python example_project/pipeline.py)
    make demo-pipeline CUSTOMERS=20000        with fewer customers
    make demo-pipeline ARGS=--look            afterwards: the admin, with the history of the last run

The demo writes a file of customers whose messages are due within the next minute; Spark schedules a job for each; two
worker processes run them on time. Meanwhile one failure is caused and repaired, and another one afterwards. Spark
computes the history, which is compared with all other counters. Each step prints its command and its duration. All
files are in ``.demo-pipeline/``; Ctrl-C ends everything.
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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from stage import HOST, NEEDED, ROOT, Failed, Part, Stage, check_packages

if TYPE_CHECKING:
    from django_delayq.core import Counts

QUEUE = "greetings"
#: the jobs of the campaign fall due in the minute after the file is written, once Spark has had time to schedule them
LEAD = timedelta(seconds=20)
SPAN = timedelta(seconds=30)
#: with very many customers the span is longer: jobs a second that two cores run, beside all else
RATE = 1_500
#: seconds between two reports of progress
REPORT = 15
#: lines of output that a command shows
MOST_LINES = 4
#: providers that accept a message at the third attempt, and none until they are up again (see shop/mail.py)
SLOW, NOWHERE = "slow.example", "nowhere.example"
SLOW_EVERY = 500
#: with fewer customers, addresses that cannot be reached are more frequent, so that a few are included
NOWHERE_EVERY = 20_000
LEAST_NOWHERE = 5
ORDERS_LOST = 7

BULK = """delayq_pipeline bulk '{path}' --format csv --schema 'customer LONG, address STRING, due TIMESTAMP'
    --task shop.greet --id 'night:{{customer}}:{day}' --due due --args customer,address"""
RETRY = f"""delayq_pipeline jobs retry --queues {QUEUE} --where "state = 'morgue'" --yes"""
RECONCILE = """delayq_reconcile --model shop.Order --filter '{"status": "placed"}' --task shop.cancel_order
    --id 'order-{id}' --args id --due expires_at --created created_at --grace 1s"""
HISTORY = """SELECT sum(runs), sum(succeeded), sum(failed), sum(buried) FROM django_delayq_hourlystat WHERE queue = ?"""
LATENESS = """SELECT lateness_p50_ms, lateness_p99_ms, lateness_max_ms FROM django_delayq_hourlystat WHERE queue = ?
    ORDER BY runs DESC LIMIT 1"""


class Story:
    """Night of a shop with very many customers."""

    def __init__(self, stage: Stage) -> None:
        from django_delayq.core import Broker, RedisConfig, connect

        self.stage, self.options = stage, stage.options
        self._broker = Broker(connect(RedisConfig.parse(stage.redis.url)), prefix="shop")
        self._began, self._steps = time.monotonic(), 0
        self._workers_log = stage.folder / "workers.log"
        # All events wait in Redis until the history reads them. Some jobs have three attempts.
        stage.env["SHOP_EVENTS_CAP"] = str(max(100_000, self.options.customers))
        stage.env["SHOP_MAILBOX"] = str(stage.folder / "mailbox")

    def tell(self) -> None:
        """Run all steps."""
        customers, day = self.options.customers, f"{datetime.now(UTC):%Y-%m-%d}"
        path = self.stage.folder / "customers.csv"
        bulk = BULK.format(path=path, day=day)
        with self.step("The shop: its database and products, and a check of what the pipeline needs"):
            self.run("delayq_pipeline doctor", most=1)
            self.run("migrate --verbosity 0")
            self.run("shop_seed --demo-user", most=1)
        with self.step(f"A file with {customers:,} customers, whose messages are due within the next minute"):
            at = write_customers(path, customers, datetime.now(UTC))
            providers = f"{at[SLOW]:,} of them to a slow provider, {at[NOWHERE]:,} at one that is down"
            self.say(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {providers}")
        with self.step("The campaign, scheduled by Spark: one job for each customer. Two workers wait for them"):
            workers = self.start_workers(2)
            self.run(f"{bulk} --run-id night-{day} --yes", most=1)
            expect("jobs created", self.counts(QUEUE).counters["created"], customers)
        with self.step("Meanwhile a mistake: cancellations of unpaid orders get lost. The reconcile restores them"):
            self.reconcile()
        with self.step("The minute of the campaign"):
            self.work(workers)
        with self.step("The provider is up again: an SQL condition selects the jobs of the morgue to retry"):
            self.run(RETRY, most=1)
            self.work(self.start_workers(1, SHOP_NOWHERE_IS_BACK="1"))
        with self.step("The history: Spark reads what happened, and writes figures to the shop's database"):
            self.run("delayq_pipeline run", most=1)
            p50, p99, longest = self.query(LATENESS)
            self.say(f"lateness of an attempt: median {p50:,} ms, 99 of 100 within {p99:,} ms, longest {longest:,} ms")
        with self.step("Is it all there, once? Four that counted by themselves are compared"):
            self.compare(at)
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

    def run(self, command: str, most: int = MOST_LINES) -> None:
        self.stage.manage(command, most, "spark" if "pipeline" in command else "demo")

    def counts(self, queue: str) -> Counts:
        return self._broker.inspector.counts(queue)

    def waiting(self, queue: str) -> int:
        counts = self.counts(queue)
        return counts.ready + counts.delayed

    def start_workers(self, processes: int, **env: str) -> Part:
        """Start worker processes, whose output goes to a file."""
        arguments = ("delayq_worker", "--queues", QUEUE, "--processes", str(processes), "--threads", "2")
        self.say(f"$ {shlex.join(('manage.py', *arguments))}   (output: {self._workers_log})")
        return self.stage.start("worker", *arguments, log=self._workers_log, **env)

    def work(self, workers: Part) -> None:
        """Wait until no job is left, and end the workers."""
        begin = told = time.monotonic()
        while left := self.counts(QUEUE).live:
            if workers.poll() is not None:
                raise Failed(f"The workers have ended, {left:,} jobs are left. Their output: {self._workers_log}.")
            if time.monotonic() - told >= REPORT:
                told = time.monotonic()
                self.say(f"{self.acked():,} done, {left:,} left")
            time.sleep(0.2)  # other processes: there is no event to wait for
        self.stage.end(workers)
        self.say(f"{self.acked():,} jobs are done, after {time.monotonic() - begin:.1f} s")

    def acked(self) -> int:
        return self.counts(QUEUE).counters.get("acked", 0)

    def query(self, sql: str) -> tuple[int, ...]:
        """Return the row that the shop's database has for the queue of the campaign."""
        with closing(sqlite3.connect(self.stage.env["SHOP_DB"])) as database:
            return tuple(database.execute(sql, [QUEUE]).fetchone())

    def compare(self, at: Counter[str]) -> None:
        """Check that the file, the core's counters, the history and the mailbox agree."""
        runs, succeeded, failures, buried = self.query(HISTORY)
        core = self.counts(QUEUE)
        mailbox = (self.stage.folder / "mailbox").glob("*.txt")
        letters = Counter(line for file in mailbox for line in file.read_text().split())
        # jobs for a slow provider fail twice; for one that is down they fail twice and then move to the morgue
        done, failed, given_up = at.total(), 2 * (at[SLOW] + at[NOWHERE]), at[NOWHERE]
        for what, wanted, found in (
            ("jobs done", done, {"core": core.counters["acked"], "history": succeeded, "mailbox": letters.total()}),
            ("customers with a message", done, {"file": done, "mailbox": len(letters)}),
            ("runs that failed", failed, {"core": core.counters["failed"], "history": failures}),
            ("jobs into the morgue", given_up, {"core": core.counters["buried"], "history": buried}),
            ("jobs in the morgue now", 0, {"core": core.morgue}),
            ("runs of any kind", done + failed + given_up, {"history": runs}),
        ):
            for who, number in found.items():
                expect(f"{what}, by the {who}", number, wanted)
            self.say(f"{what:<26} {wanted:>11,}   by {', '.join(found)}")
        self.say("0 lost, 0 doubled")

    def reconcile(self) -> None:
        """Place orders, lose some of their jobs, and find them by comparing the table with the queue."""
        self.run("shop_traffic --rate 20 --seconds 2 --pay 0 --seed night", most=0)
        there = self.waiting("orders")
        self.run(f"shop_mishap --orders {ORDERS_LOST}", most=1)
        expect("jobs of unpaid orders after the mistake", self.waiting("orders"), there - ORDERS_LOST)
        self.run(RECONCILE, most=1)
        expect("jobs of unpaid orders after the reconcile", self.waiting("orders"), there)
        self.say(f"{ORDERS_LOST} of {there} were missing, and are back")

    def farewell(self) -> None:
        """Print how long it took, and how to continue."""
        folder, seconds = self.options.folder, time.monotonic() - self._began
        look = "--look" if folder.name == ".demo-pipeline" else shlex.quote(f"--look --folder {folder}")
        self.stage.plain(f"\n   {seconds:.1f} s in all, for {self.options.customers:,} customers")
        self.stage.plain(f"   The history and its charts in the admin:   make demo-pipeline ARGS={look}\n")


def write_customers(path: Path, rows: int, now: datetime) -> Counter[str]:
    """Write a file of numbered customers, the same for the same arguments. Return their number by provider."""
    nowhere_every = max(1, min(NOWHERE_EVERY, rows // LEAST_NOWHERE))
    providers: Counter[str] = Counter()
    begin = now + LEAD
    step = max(SPAN, timedelta(seconds=rows / RATE)) / rows
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("customer", "address", "due"))
        for number in range(1, rows + 1):
            provider = SLOW if number % SLOW_EVERY == 0 else "example.com"
            provider = NOWHERE if number % nowhere_every == 0 else provider
            providers[provider] += 1
            due = (begin + step * number).isoformat(timespec="milliseconds")
            out.writerow((number, f"customer-{number}@{provider}", due))
    return providers


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


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        check_packages([*NEEDED, "pyspark", "pyarrow", "pandas"], "demo-pipeline", "demo,spark")
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
