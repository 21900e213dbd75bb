"""The outbox as a scene: rows as a process left them that died behind its commit, and the duties that find them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connection, connections, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.db.utils import OperationalError
from django.dispatch import Signal

from django_delayq.connections import DjangoBroker
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import NewJob, Payload, new_id, new_key
from django_delayq.core.outcomes import ack, bury
from django_delayq.models import OutboxJob
from django_delayq.outbox import duties, push, rows
from django_delayq.outbox.duties import Marks, Reconciler, Relay
from django_delayq.settings.conf import Conf, conf
from django_delayq.worker.loop import Changes

QUEUE = "orders"
TASK = "depot.note"
State = OutboxJob.State


def there(using: str = "default") -> list[tuple[str, str]]:
    """Id and state of each row, in the order of the calls."""
    return list(OutboxJob.objects.using(using).order_by("pk").values_list("job_id", "state"))


@contextmanager
def hears(signal: Signal, *names: str) -> Iterator[list[Any]]:
    """The named arguments of each signal that is sent in the block; of an error its class."""
    heard: list[Any] = []

    def receiver(**said: Any) -> None:
        values = [type(said[name]) if name == "error" else said[name] for name in names]
        heard.append(tuple(values) if len(values) > 1 else values[0])

    signal.connect(receiver)
    try:
        yield heard
    finally:
        signal.disconnect(receiver)


@contextmanager
def locked(stage: Stage, ident: str) -> Iterator[None]:
    """A transaction of somebody else holds the row of a job."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            stage.table.select_for_update().get(job_id=ident)
            held.set()
            done.wait(20)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        yield
    finally:
        done.set()
        thread.join(10)


def together(threads: int, live: Callable[[], object], goes_on: Callable[[], bool]) -> None:
    """So many threads call ``live()`` again and again, until ``goes_on()`` is false."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while goes_on():
                try:
                    live()
                except OperationalError:
                    if connection.vendor != "sqlite":  # there it may be locked for once, and the loop goes on
                        raise
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in running)


class Stage:
    """One database's outbox, one Redis."""

    def __init__(self, broker: DjangoBroker, alias: str = "default", batch: int = rows.CHUNK) -> None:
        self.broker = broker
        self.alias = alias
        self.batch = batch
        self.settings: Conf = conf()
        self.changes = Changes()

    # --- what is there

    def write(
        self,
        ident: str = "",
        *,
        queue: str = QUEUE,
        task: str = TASK,
        due_ms: int = 0,
        payload: Any = None,
        state: str = State.UNSENT,
        record: bytes | None = None,
        **options: Any,
    ) -> OutboxJob:
        """A row; due now unless ``due_ms`` is given. ``payload``: of a merged job."""
        key = new_key(durable=True)
        ident = ident or new_id()
        if payload is None:
            new = NewJob(ident, task, encode_args(["x"], {}), key=key, **options)
        else:
            merged: dict[str, Any] = {"on_conflict": "merge", "due_policy": "keep", **options}
            new = NewJob(ident, task, payload=Payload(encode(payload), "1", key), **merged)
        row = OutboxJob(
            key=uuid.UUID(bytes=key),
            queue=queue,
            job_id=ident,
            task=task,
            state=state,
            due_ms=due_ms or int(self.broker.now_ms()),
            record=rows.pack_job(new) if record is None else record,
        )
        row.save(using=self.alias, force_insert=True)
        return row

    def sent(self, *args: Any, **options: Any) -> OutboxJob:
        """A row whose job is with Redis."""
        row = self.write(*args, **options)
        assert self.relay().turn() == {"sent": 1}
        row.refresh_from_db(using=self.alias)
        return row

    def move(self, due_ms: int, *, state: str = State.MOVED, **fields: Any) -> None:
        """All rows were rescheduled."""
        self.table.update(due_ms=due_ms, state=state, **fields)

    def rows(self) -> dict[str, str]:
        """State by id of the job."""
        return dict(self.table.order_by("id").values_list("job_id", "state"))

    @property
    def table(self) -> Any:
        return OutboxJob.objects.using(self.alias)

    def waiting(self, queue: str = QUEUE) -> list[str]:
        """Ids of the jobs in Redis, in the order of their due times."""
        return [view.id for view in self.broker.inspector.page(queue, "waiting", limit=1000).jobs]

    def count(self, queue: str = QUEUE) -> int:
        counts = self.broker.inspector.counts(queue)
        return counts.ready + counts.delayed

    # --- time passes

    def age(self, seconds: float, *fields: str) -> None:
        """All rows are so much older."""
        names = fields or ("created_at", "sent_at", "checked_at", "claimed_until")
        self.table.update(**{name: F(name) - timedelta(seconds=seconds) for name in names})

    def hold(self, row: OutboxJob, seconds: float = 60.0) -> None:
        """Let another process claim the row."""
        self.table.filter(pk=row.pk).update(claim=uuid.uuid4(), claimed_until=Now() + timedelta(seconds=seconds))

    # --- who works

    def push(self) -> push.Push:
        """A batch of a relay, step by step."""
        return push.Push(self.alias, self.broker, self.batch)

    def relay(self) -> Relay:
        relay = Relay(self.settings, self.alias, self.broker)
        relay.batch = self.batch
        return relay

    def marks(self) -> Marks:
        return Marks([self.alias], self.broker, self.changes)

    def reconciler(self) -> Reconciler:
        reconciler = Reconciler(self.alias, self.broker, self.changes)
        reconciler.batch = self.batch
        return reconciler

    def now(self) -> Any:
        """The database's time; None if there are no rows."""
        return duties.database_time(self.alias)

    def take_down(self) -> tuple[int, int]:
        """All marks of all shards: how many, and how many had to wait."""
        marks = self.marks()
        found = [marks.take_down(queue.name, number) for queue in self.broker.queues() for number in queue.numbers]
        return sum(one for one, _ in found), sum(other for _, other in found)

    def marked(self) -> list[str]:
        """Ends that wait to be taken down."""
        return sorted(
            mark.end for queue in self.broker.queues() for number in queue.numbers for mark in queue.marks(number)
        )

    def finish(self, ident: str, queue: str = QUEUE) -> None:
        """A worker runs the job and acknowledges it."""
        (job,) = self.broker.queue(queue).reserve_id(ident, worker="w").jobs
        assert self.broker.queue(queue).settle([ack(job, 0, 0)]) == [True]

    def bury(self, ident: str, queue: str = QUEUE) -> None:
        """A worker runs the job and gives it up."""
        (job,) = self.broker.queue(queue).reserve_id(ident, worker="w").jobs
        assert self.broker.queue(queue).settle([bury(job, 0, 0, reason="exhausted")]) == [True]

    def lose_everything(self) -> None:
        """FLUSHALL; then the next look of a worker around, which puts the queues back."""
        self.broker.client.flushall()
        self.broker.served((), every=True)
