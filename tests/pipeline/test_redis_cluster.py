"""The whole pipeline on a Redis Cluster of three masters: what is exact on one server is exact here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import call_command
from django.utils import timezone

from django_delayq import connections, schedule, task as make_task
from django_delayq.core import fsck, loads
from django_delayq.core.errors import QueueFull
from django_delayq.core.job import Job, NewJob
from django_delayq.core.loads import BulkLoadLimits, memory_of
from django_delayq.core.outcomes import ack, bury, fail
from django_delayq.core.queue import Queue
from django_delayq.core.snapshot import Part, read_jobs
from django_delayq.models.history import HourlyStat, PipelineRun
from django_delayq.pipeline.bulk import BulkOptions, bulk
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import read
from django_delayq.pipeline.inputs import Files
from django_delayq.pipeline.write_options import WriteOptions
from django_delayq.pipeline.writer import check_redis
from shop.models import Customer, Order
from shop.tasks import remind_customer
from tests.core.bulk_loads_stage import write as write_load

from ..support.moments import in_days
from .test_command import TODAY, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from django_delayq.connections import DjangoBroker
    from tests.support.cluster_box import ClusterBox

ROWS = 5_000
SHARDS = 6
REMINDERS = "notifications"


def spreads(cluster: ClusterBox, prefix: str) -> bool:
    """Return True if the six shards of each queue of these tests are spread over all masters."""
    return all(
        len({cluster.node_of(f"{prefix}:{{{queue}:0.{place}}}:body").port for place in range(SHARDS)})
        == len(cluster.nodes)
        for queue in ("spread", "orders", REMINDERS)
    )


@pytest.fixture
def broker(
    spark: SparkSession, cluster_box: ClusterBox, prefix: str, settings: Any, tmp_path: Path, transactional_db: None
) -> Iterator[DjangoBroker]:
    """The settings name the emptied cluster, and a history of this test's own; queues have six shards."""
    cluster_box.flush()
    prefix = next(name for name in (f"{prefix}-{n}" for n in range(1000)) if spreads(cluster_box, name))
    settings.DELAYQ = {
        **settings.DELAYQ,
        "REDIS": cluster_box.setting,
        "PREFIX": prefix,
        "PIPELINE": {"root": str(tmp_path / "history")},
        "QUEUES": {REMINDERS: {"shards": SHARDS}},
    }
    connections.close_broker()
    yield connections.broker()
    fsck.assert_invariants(connections.broker())
    connections.close_broker()


@pytest.fixture
def door(broker: DjangoBroker, cluster_box: ClusterBox) -> dict[str, str]:
    """The options that lead a format to the cluster."""
    return {"redis": json.dumps(cluster_box.setting), "prefix": broker.prefix}


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """5,000 rows in two files."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for n in range(2):
        numbers = range(ROWS // 2 * n, ROWS // 2 * (n + 1))
        pq.write_table(pa.table({"pk": list(numbers)}), folder / f"{n}.parquet", row_group_size=500)
    return folder


def by_master(cluster: ClusterBox, queue: Queue, place: str = "waiting") -> dict[int, int]:
    """Count the jobs of a queue by master (its port), and assert that no job is read twice."""
    found: Counter[int] = Counter()
    idents: list[str] = []
    for number in queue.numbers:
        here = [i for some in read_jobs(queue.deployment, Part(queue.name, number, place)) for i in some["id"]]
        found[cluster.node_of(queue.shard(number).keys[0]).port] += len(here)
        idents += here
    assert len(set(idents)) == len(idents)
    return dict(found)


def put(queue: Queue, kind: str, count: int, task: str, delay_ms: int = 0) -> None:
    """Jobs ``<kind>-0`` …, one by one: many at once would be told of by events of their own."""
    for n in range(count):
        queue.schedule(NewJob(f"{kind}-{n}", task, delay_ms=delay_ms))


def settle(queue: Queue, how: Callable[[Job, int], Any]) -> int:
    """Runs all due jobs; how many there were."""
    done = 0
    for number in queue.numbers:
        while held := queue.reserve(number, 250, worker="w:1").jobs:
            assert all(queue.settle([how(job, int(queue.deployment.now_ms())) for job in held]))
            done += len(held)
    return done


def test_the_rows_of_files_get_to_every_master_and_only_once(
    spark: SparkSession, broker: DjangoBroker, cluster_box: ClusterBox, parquet: Path, door: dict[str, str]
) -> None:
    make_task(name="cluster.mail", queue="spread", shards=SHARDS)(lambda pk: None)
    words = (
        "bulk",
        str(parquet),
        "--task",
        "cluster.mail",
        "--id",
        "mail-{pk}",
        "--due",
        "+1h",
        "--args",
        "pk",
        "--yes",
    )
    told = run(*words, "--run-id", "r1")
    assert {name: told[name] for name in ("state", "rows", "created", "known", "bad", "was_over")} == {
        "state": "finished",
        "rows": ROWS,
        "created": ROWS,
        "known": 0,
        "bad": 0,
        "was_over": False,
    }
    there = by_master(cluster_box, broker.queue("spread"))
    assert sum(there.values()) == ROWS
    assert set(there) == {node.port for node in cluster_box.nodes}
    assert min(there.values()) > ROWS / SHARDS / 2

    assert run(*words, "--run-id", "r1")["was_over"] is True
    told = run(*words, "--run-id", "r2")
    assert (told["rows"], told["created"], told["known"]) == (ROWS, 0, ROWS)
    assert by_master(cluster_box, broker.queue("spread")) == there
    row = PipelineRun.objects.filter(run_id="r1").earliest("pk")
    assert (row.state, row.rows, row.created, row.total) == ("finished", ROWS, ROWS, ROWS)

    chunks = spark.read.format("delayq.events").options(**door).load().where("outcome = 'bulk'")
    assert chunks.selectExpr("sum(jobs)", "sum(created)").first() == (2 * ROWS, ROWS)


def test_a_run_that_is_gone_on_with_knows_its_chunks_on_every_master(
    spark: SparkSession,
    broker: DjangoBroker,
    cluster_box: ClusterBox,
    parquet: Path,
    door: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the jobs have run and are gone, so that nothing but the ledgers knows them."""
    options = BulkOptions(
        **door,
        queue="spread",
        task="cluster.mail",
        id="mail-{pk}",
        args=("pk",),
        run_id="r",
        more={"shards": str(SHARDS)},
    )
    source = Files((str(parquet),))
    seen: list[int] = []
    monkeypatch.setattr(loads, "close_load", lambda broker, load: load)
    first = bulk(spark, source, options, watch=lambda counts, total: seen.append(sum(counts.values())))
    assert (first.rows, first.created, seen[-1]) == (ROWS, ROWS, ROWS)
    assert settle(broker.queue("spread"), lambda job, now: ack(job, now, 1)) == ROWS
    again = bulk(spark, source, options)
    assert (again.rows, again.created, again.before) == (ROWS, ROWS, ROWS)
    assert by_master(cluster_box, broker.queue("spread")) == {node.port: 0 for node in cluster_box.nodes}
    kept = loads.read_load(broker, "r")
    assert kept is not None
    assert dict(loads.progress(broker, kept)) == {"created": ROWS}


def figures() -> list[tuple[Any, ...]]:
    return list(HourlyStat.objects.order_by("queue").values_list("queue", "runs", "succeeded", "failed", "buried"))


def ended(job: Job, now_ms: int) -> Any:
    """By its number: one of ten fails, one of ten is buried, the others succeed."""
    digit = int(job.id.rpartition("-")[2]) % 10
    if digit == 0:
        return fail(job, now_ms, 5, delay_ms=10**8, error_class="ValueError")
    return bury(job, now_ms, 1, reason="why") if digit == 1 else ack(job, now_ms, 12)


@pytest.mark.slow
def test_the_history_of_all_masters_is_exact(spark: SparkSession, broker: DjangoBroker, settings: Any) -> None:
    orders, mails = broker.queue("orders", shards=SHARDS), broker.queue("mails", shards=2)
    put(orders, "order", 300, "shop.pay")
    put(mails, "mail", 50, "shop.post")
    assert (settle(orders, ended), settle(mails, ended)) == (300, 50)
    assert run("status", "--json")["unread"] == 350

    told = run("run", "--max-rows", "200")
    assert {name: told[name] for name in ("state", "rows", "days")} == {
        "state": "finished",
        "rows": 350,
        "days": [TODAY],
    }
    assert figures() == [("mails", 50, 40, 5, 5), ("orders", 300, 240, 30, 30)]
    stored = read(spark, f"{settings.DELAYQ['PIPELINE']['root']}/events").where("outcome != 'bulk'")
    assert stored.selectExpr("count(*)", "count(distinct queue, id)").first() == (350, 350)
    assert run("run")["rows"] == 0
    after = run("status", "--json")
    assert (after["unread"], after["last_run"]["rows"], after["events"]["days"]) == (0, 0, 1)

    put(orders, "later", 30, "shop.pay")
    assert settle(orders, ended) == 30
    assert run("run")["rows"] == 30
    assert figures() == [("mails", 50, 40, 5, 5), ("orders", 330, 264, 33, 33)]
    assert list(PipelineRun.objects.order_by("-pk").values_list("kind", "state", "rows")) == [
        ("history", "finished", 30),
        ("history", "finished", 0),
        ("history", "finished", 350),
    ]


def reconcile() -> dict[str, Any]:
    """Compare the orders of the shop with their reminders, and restore those."""
    out = StringIO()
    words = ["--model", "shop.Order", "--created", "created_at", "--task", "shop.remind_customer"]
    words += ["--id", "remind-{pk}", "--due", "expires_at", "--args", "pk", "--json"]
    call_command("delayq_reconcile", *words, stdout=out, stderr=StringIO(), no_color=True)
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def test_missing_jobs_are_put_back_where_they_belong(broker: DjangoBroker, cluster_box: ClusterBox) -> None:
    customer = Customer.objects.create(name="Ada", email="ada@example.com")
    now = timezone.now()
    times = {"created_at": now - timedelta(hours=1), "expires_at": now + timedelta(hours=1)}
    Order.objects.bulk_create(Order(customer=customer, **times) for _ in range(300))
    pks = list(Order.objects.order_by("pk").values_list("pk", flat=True))
    for pk in pks[::2]:
        schedule(remind_customer, pk, id=f"remind-{pk}", delay=3600)
    told = reconcile()
    assert {name: told[name] for name in ("state", "rows", "known", "missing", "outcomes")} == {
        "state": "finished",
        "rows": 300,
        "known": 150,
        "missing": 150,
        "outcomes": {"created": 150},
    }
    there = by_master(cluster_box, broker.queue(REMINDERS))
    assert sum(there.values()) == 300
    assert set(there) == {node.port for node in cluster_box.nodes}
    told = reconcile()
    assert (told["missing"], told["outcomes"]) == (0, {})


def frame(spark: SparkSession, door: dict[str, str], **options: str) -> DataFrame:
    return spark.read.format("delayq").options(**door, **options).load()


def states(spark: SparkSession, door: dict[str, str]) -> dict[str, int]:
    found = frame(spark, door, states="*").groupBy("state").count().collect()
    return {row["state"]: row["count"] for row in found}


def test_jobs_of_every_state_are_read_and_repaired_on_all_masters(
    spark: SparkSession, broker: DjangoBroker, door: dict[str, str]
) -> None:
    queue = broker.queue("orders", shards=SHARDS)
    put(queue, "order", 200, "shop.pay")
    assert settle(queue, ended) == 200  # 160 are gone, 20 wait for another try, 20 are in the morgue
    put(queue, "far", 200, "shop.post", 10**8)
    put(queue, "now", 60, "shop.work")
    held = [job for number in queue.numbers for job in queue.reserve(number, 60, worker="w:2").jobs]
    for job in held[:20]:
        queue.schedule(NewJob(job.id, "shop.work", delay_ms=10**8))
    assert states(spark, door) == {"waiting": 220, "reserved": 60, "gated": 20, "morgue": 20}
    assert frame(spark, door, states="*", queue="orders", ids="far-1,far-2,order-1,order-10").count() == 4
    ids = spark.read.format("delayq").schema("id string, due timestamp").options(**door).load()
    assert ids.count() == ids.distinct().count() == 280
    found = spark.read.format("delayq.events").options(**door).load().groupBy("outcome").count().collect()
    assert {row["outcome"]: row["count"] for row in found} == {"succeeded": 160, "failed": 20, "buried": 20}

    def do(verb: str, where: str, *more: str) -> dict[str, Any]:
        told = run("jobs", verb, "--where", where, *more, "--yes")
        assert told["state"] == "finished"
        return {name: told[name] for name in ("selected", "outcomes")}

    later = in_days(365).isoformat()
    assert do("reschedule", "task = 'shop.post' AND id LIKE 'far-1%'", "--at", later) == {
        "selected": 111,
        "outcomes": {"moved": 111},
    }
    moved = frame(spark, door).where(f"due = timestamp '{later}'")
    assert moved.selectExpr("count(*)", "count(distinct shard)").first() == (111, SHARDS)
    assert do("cancel", "task = 'shop.post' AND due < now() + interval 30 days") == {
        "selected": 89,
        "outcomes": {"cancelled": 89},
    }
    retried = do("retry", "state = 'waiting' AND failures > 0 OR state = 'morgue' AND shard < 3")["outcomes"]["retried"]
    left = states(spark, door)
    assert (left["waiting"], left["morgue"]) == (111 + retried, 20 - (retried - 20))
    assert 20 < retried < 40, "of the morgues of three shards"
    assert do("discard", "state = 'morgue'") == {"selected": left["morgue"], "outcomes": {"discarded": left["morgue"]}}
    assert states(spark, door) == {"waiting": left["waiting"], "reserved": 60, "gated": 20}
    queue.settle([ack(job, int(broker.now_ms()), 1) for job in held])


def test_the_fullest_master_counts(
    spark: SparkSession, broker: DjangoBroker, cluster_box: ClusterBox, door: dict[str, str]
) -> None:
    """A write waits if any of them is nearly full."""
    opened, one = loads.open_load(broker, "r", queue="one"), NewJob("a", "t", due_ms=1, delay_ms=None)
    write_load(broker, opened, [one], BulkLoadLimits(patience=0))
    for node in cluster_box.nodes:
        used = node.client().info("memory")["used_memory"]
        node.client().config_set("maxmemory", used + used // 10)
        assert sum(told["maxmemory"] > 0 for told in memory_of(broker).values()) == 1
        with pytest.raises(QueueFull, match=r"Redis uses 9\d% of its maxmemory"):
            write_load(broker, opened, [one], BulkLoadLimits(patience=0))
        node.client().config_set("maxmemory", 0)


def test_any_master_may_be_the_forgetful_one(broker: DjangoBroker, cluster_box: ClusterBox) -> None:
    wanted = WriteOptions.parse({"queue": "q", "task": "t"})
    for policy in "allkeys-lru", "volatile-lru":
        for node in cluster_box.nodes:
            node.client().config_set("maxmemory-policy", policy)
            with pytest.raises(PipelineError, match=f"maxmemory-policy '{policy}'"):
                check_redis(broker, wanted)
            node.client().config_set("maxmemory-policy", "noeviction")
    check_redis(broker, wanted)
