"""A request whose replies from Redis are lost is answered with 503; sent again under its key it changes nothing more.

Between the two attempts what the first one did goes on: its jobs run, ids are used for other jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError

from django_delayq import schedule
from django_delayq.core.broker import Broker
from django_delayq.core.job import Job, NewJob
from django_delayq.core.outcomes import ack
from django_delayq.models import OutboxJob
from django_delayq.outbox import row_verbs
from tests.support.api_caller import Caller

from ..support.redis_box import RedisBox
from ..support.tcp_proxy import TcpProxy
from .errands import bury, carry, keep, live, put, waiting

pytestmark = pytest.mark.one_server("the line is that to one server")
MARK = "bytes-that-no-other-command-has"
ERRANDS = "v1/queues/errands/jobs"
RAW = "v1/queues/raw/jobs"


@pytest.fixture
def line(
    api: Caller, delayq: Broker, settings: Any, redis_box: RedisBox, proxy_factory: Callable[[Any], TcpProxy]
) -> Iterator[TcpProxy]:
    """The API's own line to Redis. Scripts are loaded, so that the next call is one command."""
    proxy = proxy_factory(str(redis_box.socket_path))
    queues = {"raw": {"kind": "pull"}, "wide": {"kind": "pull", "shards": 4}}
    patient = {"budget": 1}  # a busy machine must not leave durable jobs to the relay
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": proxy.url, "QUEUES": queues, "OUTBOX": patient}
    for path, job in ((ERRANDS, {"task": "errands.carry"}), (RAW, {"body": ""})):
        assert api.post(path, {**job, "id": "first"})[0] == 201
        assert api.post(path.replace("jobs", "cancel"), {"ids": ["first"]})[1]["counts"] == {"cancelled": 1}
    yield proxy
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis_box.url}


class Sender:
    """Sends a request, loses its answer, and sends it again."""

    def __init__(self, api: Caller, line: TcpProxy) -> None:
        self._api = api
        self._line = line
        self._losing = False
        self._request: tuple[str, Any] = ("", None)

    def lose(self, path: str, body: Any, *words: str) -> None:
        """Redis does what is asked for, but no reply to a command with the mark (and ``words``) arrives."""
        wanted = [word.encode() for word in (MARK, *words)]
        self._request = path, body
        self._losing, before = True, self._line.cuts_done
        self._line.cut_after_request(when=lambda sent: self._losing and all(word in sent for word in wanted), times=9)
        status, answer = self.again()
        self._losing = False
        assert (status, answer["code"]) == (503, "unavailable")
        assert self._line.cuts_done - before >= 2, "it is sent once more by itself"

    def again(self, key: str = "k1") -> tuple[int, Any]:
        """The same request under the same key."""
        return self._api.post(*self._request, **{"Idempotency-Key": key})


@pytest.fixture
def sender(api: Caller, line: TcpProxy) -> Sender:
    return Sender(api, line)


def run_all(broker: Broker, queue: str) -> list[Job]:
    """Every job that is due is done."""
    opened = broker.queue(queue)
    jobs = [job for number in opened.numbers for job in opened.reserve(number, 250, worker="w1").jobs]
    assert all(opened.settle([ack(job, 1, 1) for job in jobs]))
    return jobs


# --- jobs that are put in


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RAW, {"body": MARK}),
        (RAW, {"body": MARK, "id": "own"}),
        (RAW, {"body": MARK, "id": "own", "on_conflict": "error"}),
        (ERRANDS, {"task": "errands.carry", "args": [MARK]}),
        (ERRANDS, {"task": "errands.collect", "id": "own", "payload": MARK}),
    ],
)
def test_a_job_that_has_run_between_two_attempts_is_not_put_in_again(
    path: str, body: dict[str, Any], sender: Sender, broker: Broker
) -> None:
    sender.lose(path, body)
    queue = path.split("/")[2]
    (job,) = run_all(broker, queue)
    status, answer = sender.again()
    assert (status, answer["id"], answer["outcome"]) == (201, job.id, "created")
    assert run_all(broker, queue) == []


def test_of_many_jobs_that_have_run_none_is_put_in_again(sender: Sender, broker: Broker) -> None:
    sender.lose("v1/queues/wide/jobs", {"jobs": [{"body": f"{n}"} for n in range(300)] + [{"body": MARK}]})
    first = {job.id for job in run_all(broker, "wide")}
    status, answer = sender.again()
    ids = [job["id"] for job in answer["results"]]
    assert (status, answer["counts"], len(set(ids))) == (200, {"created": 301}, 301)
    second = [job.id for job in run_all(broker, "wide")]
    assert (first.isdisjoint(second), sorted([*first, *second])) == (True, sorted(ids))


def test_more_shards_between_two_attempts_make_no_difference(sender: Sender, broker: Broker) -> None:
    sender.lose("v1/queues/wide/jobs", {"jobs": [{"body": MARK, "id": f"{n}"} for n in range(9)]})
    first = run_all(broker, "wide")
    broker.reshard("wide", 7)
    assert sender.again()[1]["counts"] == {"created": 9}
    assert len(first) + len(run_all(broker, "wide")) == 9


def test_what_was_refused_beside_jobs_that_were_taken_is_tried_again_if_the_refusal_reached_nobody(
    api: Caller, sender: Sender, broker: Broker
) -> None:
    assert api.patch("v1/queues/errands", {"max_length": 1})[0] == 200
    call = {"task": "errands.carry", "args": [MARK]}
    sender.lose(ERRANDS, {"jobs": [{**call, "id": "one"}, {**call, "id": "two"}]})
    run_all(broker, "errands")
    assert [job["outcome"] for job in sender.again()[1]["results"]] == ["created", "created"]
    assert waiting(broker) == ["two"]
    assert [job["outcome"] for job in sender.again()[1]["results"]] == ["created", "created"]
    assert waiting(broker) == ["two"]


def test_durable_jobs_that_are_done_stay_so_when_others_of_their_request_are_sent_again(
    sender: Sender, broker: Broker
) -> None:
    jobs = [{"task": "errands.keep", "args": [n]} for n in range(3)] + [{"task": "errands.carry", "args": [MARK]}]
    sender.lose(ERRANDS, {"jobs": jobs})
    assert len(run_all(broker, "errands")) == 4
    OutboxJob.objects.all().delete()  # as the dispatcher does, which learns of their ends
    status, answer = sender.again()
    assert (status, answer["counts"]) == (200, {"created": 4})
    assert run_all(broker, "errands") == []
    assert not OutboxJob.objects.exists()


# --- jobs that there are


def load(api: Caller, verb: str, more: dict[str, Any]) -> None:
    """The verb's script is loaded, so that the next call is one command."""
    assert api.post(f"v1/queues/errands/{verb}", {"ids": ["nobody"], **more})[0] == 200


VERBS = [("cancel", {}, "cancelled"), ("reschedule", {"delay": 3600}, "moved"), ("run-now", {}, "moved")]


@pytest.mark.parametrize(("verb", "more", "outcome"), VERBS)
def test_a_verb_leaves_a_later_job_of_its_id_alone(
    verb: str, more: dict[str, Any], outcome: str, api: Caller, sender: Sender, broker: Broker
) -> None:
    load(api, verb, more)
    put(broker, carry, id=MARK, delay=60)
    sender.lose(f"v1/queues/errands/{verb}", {"ids": [MARK], **more})
    put(broker, carry, id=MARK, delay=600)
    assert sender.again()[1]["counts"] == {outcome: 1}
    assert 590_000 < live(broker, MARK).due_ms - broker.now_ms() <= 600_000


def rows() -> list[tuple[str, int]]:
    """State and due time of the rows of d1."""
    found = OutboxJob.objects.filter(job_id="d1").exclude(state="cancelled")
    return [(row.state, row.expected_ms) for row in found]


@pytest.mark.parametrize("durable", [True, False], ids=["was durable", "was plain"])
@pytest.mark.parametrize(("verb", "more", "outcome"), VERBS)
def test_rows_of_a_later_durable_job_are_left_alone(
    verb: str,
    more: dict[str, Any],
    outcome: str,
    durable: bool,
    transactional_db: None,
    api: Caller,
    sender: Sender,
    broker: Broker,
) -> None:
    load(api, verb, more)
    schedule(keep, 1, id="d1", delay=60) if durable else put(broker, carry, id="d1", delay=60)
    put(broker, carry, id=MARK, delay=60)
    sender.lose(f"v1/queues/errands/{verb}", {"ids": ["d1", MARK], **more})
    broker.queue("errands").cancel("d1")
    schedule(keep, 2, id="d1", delay=600)
    before = rows()
    status, answer = sender.again()
    assert (status, answer["counts"]) == (200, {"outbox": 1, outcome: 1} if durable else {outcome: 2})
    assert rows() == before
    assert abs(live(broker, "d1").due_ms - before[-1][1]) < 1000


def test_durable_jobs_whose_rows_could_not_be_changed_at_first_are_cancelled_the_second_time(
    transactional_db: None, api: Caller, sender: Sender, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(api, "cancel", {})
    for ident in ("d1", "d2"):
        schedule(keep, 1, id=ident, delay=60)
    request = "v1/queues/errands/cancel", {"ids": ["d1", "d2"]}

    def away(*_: Any) -> None:
        raise OperationalError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(row_verbs.rows, "change", away)
        assert api.post(*request, **{"Idempotency-Key": "k1"})[0] == 503
    assert waiting(broker) == ["d1", "d2"]
    assert api.post(*request, **{"Idempotency-Key": "k1"})[1]["counts"] == {"cancelled": 2}
    assert waiting(broker) == []


@pytest.mark.parametrize(("verb", "outcome"), [("kick", "kicked"), ("discard", "discarded")])
def test_of_several_records_of_an_id_one_leaves_the_morgue(
    verb: str, outcome: str, api: Caller, sender: Sender, broker: Broker
) -> None:
    load(api, verb, {})
    for _ in range(2):
        put(broker, carry, id=MARK)
        bury(broker, MARK)
    sender.lose(f"v1/queues/errands/{verb}", {"ids": [MARK]})
    run_all(broker, "errands")
    assert sender.again()[1]["counts"] == {outcome: 1}
    assert len(broker.inspector.graves("errands", MARK)) == 1


@pytest.mark.parametrize("verb", ["ack", "fail", "release", "bury"])
def test_an_end_that_counted_is_answered_so(verb: str, api: Caller, sender: Sender, broker: Broker) -> None:
    for ident in (MARK, "last-attempt"):
        broker.queue("raw").schedule(NewJob(ident, "raw", options=b'{"max_attempts":1}' if ident != MARK else b""))
    held = api.post("v1/queues/raw/reserve", {"max": 2})[1]["jobs"]
    body = {"jobs": [{"id": job["id"], "lease": job["lease"]} for job in held]}
    assert api.post(f"v1/queues/raw/{verb}", {"jobs": [{**body["jobs"][0], "lease": "0.1"}]})[0] == 200
    sender.lose(f"v1/queues/raw/{verb}", body, api.user.username)  # not the look at the jobs before
    assert [one["counted"] for one in sender.again()[1]["results"]] == [True, True]
