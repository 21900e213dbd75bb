"""Steps of the pipeline demo: a night of a shop with very many customers."""

from __future__ import annotations

import csv
import http.client
import shlex
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from demo_parts import CannotStart
from pipeline_stage import Failed, Stage, typed

QUEUE, TASK = "greetings", "shop.greet"
#: period, up to now, over which the jobs of the campaign fall due
SPREAD = timedelta(minutes=5)
SLOW_EVERY = 500
#: with fewer customers, addresses that cannot be reached are more frequent, so that a few are included
NOWHERE_EVERY = 20_000
LEAST_NOWHERE = 5
ORDERS_LOST = 7


@dataclass(frozen=True)
class Campaign:
    """Contents of a file of customers."""

    path: Path
    rows: int
    #: customers whose provider accepts a message at the third attempt
    slow: int
    #: customers whose provider is down
    nowhere: int


def story(stage: Stage) -> None:
    """Run all steps."""
    customers, day = stage.options.customers, f"{datetime.now(UTC):%Y-%m-%d}"
    with stage.step("The shop: its database and products, and a check of what the pipeline needs"):
        stage.manage("migrate", "--verbosity", "0")
        stage.manage("shop_seed", "--demo-user")
        stage.manage("delayq_pipeline", "doctor")
    with stage.step(f"A file with {customers:,} customers, as another department would send it"):
        campaign = write_customers(stage.folder / "customers.csv", customers, datetime.now(UTC))
        size = campaign.path.stat().st_size / 1e6
        stage.say(
            f"{campaign.path}: {size:.1f} MB, {campaign.slow:,} of them to a slow provider, "
            f"{campaign.nowhere:,} at one that is down"
        )
    # As a user would type it: a path, a task, the id template, the due time, and the columns of the arguments.
    bulk = (
        "delayq_pipeline",
        "bulk",
        str(campaign.path),
        "--format",
        "csv",
        "--schema",
        "customer LONG, address STRING, due TIMESTAMP",
        "--task",
        TASK,
        "--id",
        f"night:{{customer}}:{day}",
        "--due",
        "due",
        "--args",
        "customer,address",
    )
    with stage.step("A preview of the campaign; nothing is written (--dry-run)"):
        stage.manage(*bulk, "--dry-run", speaker="spark")
    with stage.step("The campaign, scheduled by Spark: one job for each customer"):
        stage.manage(*bulk, "--run-id", f"night-{day}", "--yes", speaker="spark")
        expect("jobs in the queue", jobs(stage), customers)
    with stage.step("Two worker processes run it"):
        work(stage, processes=2)
    with stage.step("The history: Spark reads what happened, computes and writes it to the shop's database"):
        stage.manage("delayq_pipeline", "run", speaker="spark")
    with stage.step("Is it all there, once? Four that counted by themselves are compared"):
        compare(stage, campaign, repaired=False)
    with stage.step("A mistake: the cancellations of some unpaid orders get lost. The daily reconcile puts them back"):
        reconcile(stage)
    with stage.step("The provider is up again: an SQL condition selects the jobs of the morgue to retry"):
        stage.manage(
            "delayq_pipeline",
            "jobs",
            "retry",
            "--queues",
            QUEUE,
            "--where",
            "state = 'morgue'",
            "--yes",
            speaker="spark",
        )
        work(stage, processes=1, SHOP_NOWHERE_IS_BACK="1")
        stage.manage("delayq_pipeline", "run", speaker="spark")
        compare(stage, campaign, repaired=True)
    with stage.step("Pictures of the night"):
        files = stage.manage("shop_pictures", str(stage.results))["files"]
    farewell(stage, files)


# --- parts -----------------------------------------------------------------------------------------------------------
def write_customers(path: Path, rows: int, now: datetime) -> Campaign:
    """Write a file of numbered customers with address and due time, the same for the same arguments."""
    nowhere_every = max(1, min(NOWHERE_EVERY, rows // LEAST_NOWHERE))
    providers: Counter[str] = Counter()
    begin, step = now - SPREAD, SPREAD / rows
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("customer", "address", "due"))
        for number in range(1, rows + 1):
            provider = "example.com"
            if number % nowhere_every == 0:
                provider = "nowhere.example"
            elif number % SLOW_EVERY == 0:
                provider = "slow.example"
            providers[provider] += 1
            due = (begin + step * number).isoformat(timespec="milliseconds")
            out.writerow((number, f"customer-{number}@{provider}", due))
    return Campaign(path, rows, providers["slow.example"], providers["nowhere.example"])


def jobs(stage: Stage) -> int:
    """Return the number of waiting jobs of the campaign."""
    counts = stage.counts(QUEUE)
    return counts.ready + counts.delayed


def work(stage: Stage, *, processes: int, **env: str) -> None:
    """Run workers until no job is left."""
    done = stage.counts(QUEUE).counters.get("acked", 0)
    log = stage.folder / "workers.log"
    arguments = ("delayq_worker", "--queues", QUEUE, "--processes", str(processes), "--threads", "2")
    stage.say(f"$ {typed(arguments)}   (output: {log})")
    worker = stage.start("worker", *arguments, log=log, **env)
    seconds = stage.drain(QUEUE, worker)
    stage.stop(worker)
    done = stage.counts(QUEUE).counters.get("acked", 0) - done
    stage.say(f"{done:,} jobs done in {seconds:.1f} s, {done / max(seconds, 0.001):,.0f} a second with their start")


def compare(stage: Stage, campaign: Campaign, *, repaired: bool) -> None:
    """Check that the file, the core's counters, the history and the mailbox agree."""
    told = stage.manage("shop_pictures", "--queue", QUEUE)
    core = stage.counts(QUEUE)
    letters = Counter(line for file in stage.mailbox.glob("*.txt") for line in file.read_text().split())
    done = campaign.rows - (0 if repaired else campaign.nowhere)
    # jobs for a slow provider fail twice; for one that is down they fail twice and then move to the morgue
    failed = 2 * (campaign.slow + campaign.nowhere)
    for what, found, wanted in (
        ("jobs created, by the core", core.counters["created"], campaign.rows),
        ("jobs done, by the core", core.counters["acked"], done),
        ("jobs done, by the history", told["succeeded"], done),
        ("customers who got a message", len(letters), done),
        ("messages, all in all", letters.total(), done),
        ("runs that failed, by the core", core.counters["failed"], failed),
        ("runs that failed, by the history", told["failed"], failed),
        ("jobs into the morgue, by the core", core.counters["buried"], campaign.nowhere),
        ("jobs into the morgue, by the history", told["buried"], campaign.nowhere),
        ("jobs in the morgue now", core.morgue, 0 if repaired else campaign.nowhere),
        ("runs of any kind, by the history", told["runs"], done + failed + campaign.nowhere),
    ):
        expect(what, found, wanted)
        stage.say(f"{what:<38} {found:>11,}")
    stage.say("0 lost, 0 doubled")


def expect(what: str, found: int, wanted: int) -> None:
    """Raise Failed if a number differs from the expected one."""
    if found != wanted:
        raise Failed(f"{what}: {found:,}, and it has to be {wanted:,}. This is a fault of the pipeline: please report.")


def reconcile(stage: Stage) -> None:
    """Place orders, lose some of their jobs, and find them by comparing the table with the queue."""
    stage.manage("shop_traffic", "--rate", "20", "--seconds", "2", "--pay", "0", "--seed", "night")
    there = waiting(stage)
    stage.manage("shop_mishap", "--orders", str(ORDERS_LOST))
    expect("jobs of unpaid orders after the mistake", waiting(stage), there - ORDERS_LOST)
    stage.manage(
        "delayq_pipeline",
        "reconcile",
        "--model",
        "shop.Order",
        "--filter",
        '{"status": "placed"}',
        "--task",
        "shop.cancel_order",
        "--id",
        "order-{id}",
        "--args",
        "id",
        "--due",
        "expires_at",
        "--created",
        "created_at",
        "--grace",
        "1s",
        speaker="spark",
    )
    expect("jobs of unpaid orders after the reconcile", waiting(stage), there)
    stage.say(f"{ORDERS_LOST} of {there} were missing, and are back")


def waiting(stage: Stage) -> int:
    """Return the number of waiting jobs of the shop's orders."""
    counts = stage.counts("orders")
    return counts.ready + counts.delayed


def farewell(stage: Stage, files: list[str]) -> None:
    """Print the durations, the paths of the pictures, and how to continue."""
    lines = [f"   {seconds:7.1f} s  {title}" for title, seconds in stage.took]
    total = sum(seconds for _title, seconds in stage.took)
    folder = "" if stage.options.folder.name == ".demo-pipeline" else f" --folder {shlex.quote(str(stage.folder))}"
    look = f"make demo-pipeline ARGS={shlex.quote('--look' + folder)}"
    stage.out.plain(
        "\n"
        + "\n".join(
            [
                *lines,
                f"   {total:7.1f} s  in all, for {stage.options.customers:,} customers",
                "",
                f"   Pictures   {files[0]}",
                *(f"              {file}" for file in files[1:]),
                "",
                f"   The history in the admin:   {look}",
                "",
            ]
        )
    )


# --- afterwards ------------------------------------------------------------------------------------------------------
def look(stage: Stage) -> None:
    """Serve the admin with the data of the last run until Ctrl-C."""
    host = f"127.0.0.1:{stage.options.port}"
    web = stage.start("web", "runserver", "--noreload", host)
    until = time.monotonic() + 60
    while not _answers(host):
        if web.popen.poll() is not None or time.monotonic() > until:
            web.print_output(from_start=True)
            raise CannotStart("The web server does not respond; its output is above. Another port: --port 8001")
        time.sleep(0.1)  # another process: there is no event to wait for
    stage.out.plain(
        f"\n   http://{host}/admin/django_delayq/hourlystat/    login admin, password admin\n"
        f"   http://{host}/admin/django_delayq/pipelinerun/   the runs of the pipeline\n\n   Ctrl-C stops.\n"
    )
    web.print_output(from_start=False)
    if web.wait():
        raise Failed("The web server ended; its output is above.")


def _answers(host: str) -> bool:
    connection = http.client.HTTPConnection(host, timeout=5)
    try:
        connection.request("GET", "/admin/login/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
