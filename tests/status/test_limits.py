"""Limits in a snapshot: which due jobs wait behind which, in the report, in JSON and as warnings."""

from __future__ import annotations

from dataclasses import replace

from django_delayq import limits
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.limits import Limiter
from django_delayq.core.options import Limits
from django_delayq.limits import LimitsPage, LimitStatus
from django_delayq.status import Snapshot, take, warnings_of
from django_delayq.status.json_form import as_json
from django_delayq.status.report import report

from .conftest import T0

HOUR = 3_600_000


def test_a_snapshot_has_the_limits_of_queues_with_parked_jobs(delayq: Broker) -> None:
    delayq.queue("plain").schedule(NewJob("a", "work"))
    mail = delayq.queue("mail", shards=2)
    mail.schedule_many(NewJob(str(number), "work", group="acme") for number in range(5))
    limits.set("mail", group="acme", concurrency=2, rate="30/m", burst=4)
    Limiter(delayq.registry).call(pause=[("group:mail:acme", 2 * HOUR)])
    snapshot = take(delayq, outbox=False)
    (page,) = snapshot.limits
    assert (page.queue, page.due, [(one.name, one.jobs) for one in page.waiting]) == ("mail", 5, [("group acme", 5)])
    assert take(delayq, outbox=False, limits=False).limits == ()
    plain, mail_json = sorted(as_json(snapshot)["queues"], key=lambda queue: queue["name"], reverse=True)
    assert plain["waiting"] == []
    (one,) = mail_json["waiting"]
    assert {**one, "since": None, "next_start": None} == {
        "kind": "group",
        "name": "acme",
        "concurrency": 2,
        "rate": 0.5,
        "burst": 4,
        "at_run_time": True,
        "leases": 0,
        "jobs": 5,
        "since": None,
        "next_start": None,
    }
    assert one["since"] < one["next_start"]


def test_the_report_has_a_line_for_each_limit_with_waiting_jobs() -> None:
    task = LimitStatus("task", "shop.slow", Limits(3), False, 3, None, 0, 40, T0 - 90_000)
    group = LimitStatus("group", "acme\x1b", Limits(interval_us=2e6, burst=1), True, 0, T0 + 12_000, 0, 7, T0 - 1000)
    idle = replace(task, jobs=0, since_ms=None)
    pages = (LimitsPage("mail", 50, T0, [task, idle], "zoo"), LimitsPage("news", 7, T0, [group]))
    lines = report(Snapshot(T0, limits=pages))
    assert "\n".join(lines[lines.index("") :]).split("\n\n")[1].splitlines() == [
        "queue  limit           running   rate  waiting         for     next start",
        "mail   task shop.slow      3/3      –       40  1 min 30 s  when one ends",
        "news   group acme\\x1b        0  0.5/s        7         1 s        in 12 s",
        "mail: groups behind zoo are not shown; 50 jobs are due in all",
    ]


def test_a_limit_that_lets_no_job_start_for_long_is_a_warning() -> None:
    far = LimitStatus("group", "acme", Limits(), False, 0, T0 + 2 * HOUR, 0, 7, T0)
    near = replace(far, subject="near", next_ms=T0 + HOUR / 2)
    found = warnings_of(Snapshot(T0, limits=(LimitsPage("mail", 14, T0, [far, near]),)))
    assert [(one.level, one.text) for one in found if one.check == "concurrency"] == [
        ("INFO", "Due jobs of mail (14) wait behind limits."),
        ("WARN", "Queue mail: the limit of group acme lets no job start for another 2 h."),
    ]
