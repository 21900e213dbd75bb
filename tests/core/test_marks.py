"""Completions: every end of a durable job is reported to components outside Redis (F9, G1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from django_delayq.core import NewJob, Payload, Settlement, ack, bury, fail, release
from tests.support.core_values import CompletionMark, is_durable, new_key

from .bulk_stage import cancel_all, delete_failed, discard_all, kick_all, kill_failed
from .stage import Stage

Act = Callable[[Stage], object]


def key_of(number: int) -> bytes:
    """Return the durable key for a number."""
    return b"\x80" + number.to_bytes(15, "big")


def put(stage: Stage, ident: str, number: int, **options: object) -> str:
    return stage.put(ident, key=key_of(number), **options)  # type: ignore[arg-type]


def add(stage: Stage, ident: str, data: bytes, number: int, score: str = "5", **options: object) -> str:
    options = {"on_conflict": "merge", "due_policy": "keep"} | options
    payload = Payload(data, score, key_of(number))
    return stage.put(ident, task="sync", payload=payload, **options)  # type: ignore[arg-type]


def taken(stage: Stage) -> dict[int, str]:
    """Collect the completions; return their ends by the numbers of their keys."""
    return {int.from_bytes(key[1:], "big"): end for key, end in stage.taken_marks().items()}


def run(settle: Callable[..., Settlement], **changes: object) -> Act:
    """Reserve everything and settle it."""
    return lambda stage: stage.settle(*(replace(settle(job), **changes) for job in stage.take()))  # type: ignore[arg-type]


def then(*acts: Act) -> Act:
    return lambda stage: [act(stage) for act in acts]


done, dead = run(lambda job: ack(job, 1, 2)), run(lambda job: bury(job, 1, 2, reason="why"))
failed, given_back = run(lambda job: fail(job, 1, 2, delay_ms=0)), run(release)
expired = run(lambda job: Settlement(job, verb="expire", outcome="expired"))
oldest = run(lambda job: bury(job, 1, 2, reason="why"), oldest=True)


def while_it_runs(meanwhile: Act, end: Act) -> Act:
    """Return an act that reserves, calls ``meanwhile``, and lets ``end`` settle the reserved jobs."""

    def act(stage: Stage) -> None:
        jobs = stage.take()
        meanwhile(stage)
        stage.take = lambda: jobs  # type: ignore[assignment,misc]
        end(stage)
        del stage.take  # type: ignore[attr-defined]

    return act


def limited(stage: Stage) -> None:
    stage.broker.limit("q", morgue_max=1)
    stage.put("other")
    stage.buried(stage.take_one())


def outlived(stage: Stage) -> None:
    stage.broker.limit("q", morgue_ttl=1)
    stage.wait(2000)
    stage.queue.tick(0)


PLAIN: dict[str, tuple[Act, str | None]] = {
    "acked": (done, "done"),
    "acked along with a reserve": (
        lambda s: s.queue.settle_reserve(0, [ack(s.take_one(), 1, 2)], 5, worker="w"),
        "done",
    ),
    "acked while newer content is gated": (while_it_runs(lambda s: put(s, "a", 9), done), "done"),
    "failed": (failed, None),
    "given back": (given_back, None),
    "failed and superseded": (while_it_runs(lambda s: put(s, "a", 9), failed), "done"),
    "given back and superseded": (while_it_runs(lambda s: put(s, "a", 9), given_back), "done"),
    "expired": (expired, "done"),
    "expired while newer content is gated": (while_it_runs(lambda s: put(s, "a", 9), expired), "done"),
    "cancelled": (lambda s: s.queue.cancel("a"), "done"),
    "cancelled, running": (while_it_runs(lambda s: s.queue.cancel("a"), lambda s: None), None),
    "cancelled, then acked": (while_it_runs(lambda s: s.queue.cancel("a"), done), "done"),
    "cancelled, then failed": (while_it_runs(lambda s: s.queue.cancel("a"), failed), "done"),
    "cancelled, then buried": (while_it_runs(lambda s: s.queue.cancel("a"), dead), "done"),
    "cancelled, then expired": (while_it_runs(lambda s: s.queue.cancel("a"), expired), "done"),
    "replaced": (lambda s: put(s, "a", 9), "done"),
    "refused to another": (lambda s: put(s, "a", 9, on_conflict="ignore"), None),
    "moved": (lambda s: s.queue.reschedule("a", delay_ms=5), None),
    "cancelled with all": (lambda s: cancel_all(s.queue), "done"),
    "deleted after a failure": (then(failed, lambda s: delete_failed(s.queue)), "done"),
    "killed after a failure": (then(failed, lambda s: kill_failed(s.queue)), "buried"),
    "buried": (dead, "buried"),
    "buried while newer content is gated": (while_it_runs(lambda s: put(s, "a", 9), dead), "buried"),
    "discarded": (then(dead, lambda s: s.queue.discard("a")), "done"),
    "discarded with all": (then(dead, lambda s: discard_all(s.queue)), "done"),
    "too many in the morgue": (then(dead, limited), "done"),
    "too long in the morgue": (then(dead, outlived), "done"),
    "kicked": (then(dead, lambda s: s.queue.kick("a")), "live"),
    "kicked with all": (then(dead, lambda s: kick_all(s.queue)), "live"),
    "kicked in vain": (then(dead, lambda s: s.put("a"), lambda s: s.queue.kick("a")), "buried"),
    "kicked and done": (then(dead, lambda s: s.queue.kick("a"), done), "done"),
    "kicked and buried": (then(dead, lambda s: s.queue.kick("a"), dead), "buried"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_end_of_a_durable_job_is_marked_when_it_was(stage: Stage, name: str) -> None:
    act, end = PLAIN[name]
    put(stage, "a", 1)
    act(stage)
    assert taken(stage).get(1) == end


@pytest.mark.parametrize("name", PLAIN)
def test_of_a_job_for_which_nobody_waits_no_mark_is_left(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("tests.core.test_marks.key_of", lambda number: b"\x7f" + number.to_bytes(15, "big"))
    put(stage, "a", 1)
    PLAIN[name][0](stage)
    assert stage.taken_marks() == {}


GATED: dict[str, tuple[Act, str | None]] = {
    "replaced": (lambda s: put(s, "a", 9), "done"),
    "cancelled": (lambda s: s.queue.cancel("a"), "done"),
    "moved": (lambda s: s.queue.run_now("a"), None),
    "ignored": (lambda s: put(s, "a", 9, on_conflict="ignore"), None),
    "live after the run": (lambda s: s.done(*s.queue.leases(0)), None),
    "replaced by what is kicked": (lambda s: s.queue.kick("a", replace=True), "done"),
}


@pytest.mark.parametrize("name", GATED)
def test_the_end_of_gated_content_is_marked(stage: Stage, name: str) -> None:
    act, end = GATED[name]
    stage.in_morgue("a")
    stage.put("a")
    stage.take()
    assert put(stage, "a", 1) == "gated"
    act(stage)
    assert taken(stage).get(1) == end


@pytest.mark.parametrize("many", [True, False])
def test_a_job_that_is_replaced_by_one_out_of_the_morgue_is_done(stage: Stage, many: bool) -> None:
    put(stage, "a", 1)
    stage.buried(stage.take_one())
    put(stage, "a", 2)
    if many:
        assert kick_all(stage.queue, replace=True) == {"kicked": 1}
    else:
        assert stage.queue.kick("a", replace=True) == "kicked"
    assert taken(stage) == {1: "live", 2: "done"}


# -- merged jobs -----------------------------------------------------------------------------------------------------

MERGED: dict[str, tuple[Act, dict[int, str]]] = {
    "acked": (done, {1: "done", 2: "done"}),
    "acked with an equal payload behind it": (
        while_it_runs(lambda s: add(s, "a", b"p", 3), done),
        {1: "done", 2: "done"},
    ),
    "failed": (failed, {}),
    "failed with another payload behind it": (while_it_runs(lambda s: add(s, "a", b"r", 3), failed), {}),
    "failed with an equal payload behind it": (while_it_runs(lambda s: add(s, "a", b"p", 3), failed), {3: "done"}),
    "failed with an equal payload of lower score behind it": (
        while_it_runs(lambda s: add(s, "a", b"p", 3, "-1"), failed),
        {1: "done"},
    ),
    "given back with an equal payload behind it": (
        while_it_runs(lambda s: add(s, "a", b"p", 3), given_back),
        {3: "done"},
    ),
    "expired": (expired, {1: "done", 2: "done"}),
    "expired with another payload behind it": (
        while_it_runs(lambda s: add(s, "a", b"r", 3), expired),
        {1: "done", 2: "done"},
    ),
    "cancelled": (lambda s: s.queue.cancel("a"), {1: "done", 2: "done"}),
    "cancelled, then failed": (while_it_runs(lambda s: s.queue.cancel("a"), failed), {1: "done", 2: "done"}),
    "cancelled with another payload behind it": (
        while_it_runs(lambda s: [add(s, "a", b"r", 3), s.queue.cancel("a")], lambda s: None),
        {3: "done"},
    ),
    "replaced": (lambda s: add(s, "a", b"r", 3, on_conflict="replace"), {1: "done", 2: "done"}),
    "an equal payload comes": (lambda s: add(s, "a", b"p", 3, "9"), {3: "done"}),
    "an equal payload of lower score comes": (lambda s: add(s, "a", b"p", 3, "-1"), {1: "done"}),
    "the last ones are kept": (
        lambda s: add(s, "a", b"r", 3, "9", payloads="last", max_payloads=1),
        {1: "done", 2: "done"},
    ),
    "the first ones are kept": (lambda s: add(s, "a", b"r", 3, "-9", payloads="first", max_payloads=2), {2: "done"}),
    "none more is taken in": (lambda s: add(s, "a", b"r", 3, "9", payloads="first", max_payloads=2), {}),
    "cancelled with all": (lambda s: cancel_all(s.queue), {1: "done", 2: "done"}),
    "deleted after a failure": (then(failed, lambda s: delete_failed(s.queue)), {1: "done", 2: "done"}),
    "killed after a failure": (then(failed, lambda s: kill_failed(s.queue)), {1: "buried", 2: "buried"}),
    "buried": (dead, {1: "buried", 2: "buried"}),
    "the oldest is buried": (oldest, {1: "buried"}),
    "the oldest is buried, the rest acked": (then(oldest, done), {1: "buried", 2: "done"}),
    "discarded": (then(dead, lambda s: s.queue.discard("a")), {1: "done", 2: "done"}),
    "discarded with all": (then(dead, lambda s: discard_all(s.queue)), {1: "done", 2: "done"}),
    "too long in the morgue": (then(dead, outlived), {1: "done", 2: "done"}),
    "kicked": (then(dead, lambda s: s.queue.kick("a")), {1: "live", 2: "live"}),
    "the oldest is kicked": (then(oldest, lambda s: s.queue.kick("a")), {1: "live"}),
    "the oldest is kicked, all are done": (then(oldest, lambda s: s.queue.kick("a"), done), {1: "done", 2: "done"}),
    "kicked onto an equal payload": (
        then(dead, lambda s: add(s, "a", b"p", 3), lambda s: s.queue.kick("a")),
        {1: "live", 2: "live", 3: "done"},
    ),
    "kicked onto an equal payload of lower score": (
        then(dead, lambda s: add(s, "a", b"p", 3, "0"), lambda s: s.queue.kick("a")),
        {1: "done", 2: "live"},
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_the_end_of_each_durable_payload_is_marked(stage: Stage, name: str) -> None:
    act, ends = MERGED[name]
    add(stage, "a", b"p", 1, "1")
    add(stage, "a", b"q", 2, "2")
    act(stage)
    assert taken(stage) == ends


@pytest.mark.parametrize("name", MERGED)
def test_of_payloads_for_which_nobody_waits_no_mark_is_left(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("tests.core.test_marks.key_of", lambda number: b"\x7f" + number.to_bytes(15, "big"))
    add(stage, "a", b"p", 1, "1")
    add(stage, "a", b"q", 2, "2")
    MERGED[name][0](stage)
    assert stage.taken_marks() == {}


@pytest.mark.parametrize("score", ["-1", "9"])
@pytest.mark.parametrize("first", [True, False])
def test_the_payload_that_stays_bears_the_key_for_which_somebody_waits(stage: Stage, score: str, first: bool) -> None:
    """This holds for both of two equal payloads, because the row of the durable one waits for its end."""
    ways = [lambda: add(stage, "a", b"p", 1, "1"), lambda: stage.add("a", b"p", score)]
    if not first:
        ways = [lambda: stage.add("a", b"p", "1"), lambda: add(stage, "a", b"p", 1, score)]
    for way in ways:
        way()
    (job,) = stage.take()
    assert [(payload.score, payload.key) for payload in job.payloads] == [(min("1", score), key_of(1))]
    stage.done(job)
    assert taken(stage) == {1: "done"}


def test_what_many_payloads_leave_behind_is_marked_piece_by_piece(stage: Stage) -> None:
    for number in range(300):
        add(stage, "a", b"%d" % number, number, str(number))
    (job,) = stage.take()
    assert len(job.payloads) == 250
    stage.done(job)
    assert taken(stage) == dict.fromkeys(range(250), "done")
    stage.failed(stage.take_one())
    kill_failed(stage.queue)
    assert taken(stage) == dict.fromkeys(range(250, 300), "buried")


def test_nobody_waits_for_what_the_library_makes_of_a_run(stage: Stage) -> None:
    """The rest of a merged attempt, whose key is derived from the attempt's, is not durable by accident."""
    rests = set()
    for number in range(20):
        for data in (b"p", b"q", b"r"):
            stage.add(f"j{number}", data)
    for job in stage.take():
        stage.settle(replace(bury(job, 1, 2, reason="why"), oldest=True))
    for job in stage.take():
        rests.add(job.key)
    assert len(rests) == 20
    assert not any(map(is_durable, rests))


# -- taking marks ----------------------------------------------------------------------------------------------------


def test_a_mark_stays_until_it_is_taken_and_one_that_changed_meanwhile_stays(stage: Stage) -> None:
    put(stage, "a", 1)
    stage.buried(stage.take_one())
    (buried,) = stage.queue.marks(0)
    assert buried == CompletionMark(key_of(1), "buried", buried.stamp)
    assert abs(buried.stamp - stage.us) < 1000
    assert stage.queue.marks(0) == [buried]
    stage.queue.kick("a")
    (live,) = stage.queue.marks(0, [buried])
    assert (live.end, live.stamp > buried.stamp) == ("live", True)
    stage.buried(stage.take_one())
    (again,) = stage.queue.marks(0, [buried, live])
    assert (again.end, again.stamp > live.stamp) == ("buried", True)
    assert stage.queue.marks(0, [again]) == []
    assert stage.shard_is_empty() is False, "the grave is still there"


def test_marks_are_told_a_chunk_at_a_time_and_forgotten_however_many_they_are(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n}", "work", key=key_of(n)) for n in range(600))
    while jobs := stage.take(250):
        stage.done(*jobs)
    assert len(stage.queue.marks(0)) == 250
    assert len(stage.queue.marks(0, limit=7)) == 7
    assert stage.queue.marks(0, limit=0) == []
    marks = stage.queue.marks(0, limit=1000)
    assert len({mark.key for mark in marks}) == 600
    assert stage.queue.marks(0, marks) == []
    assert stage.shard_is_empty()


@pytest.mark.server
def test_acks_for_which_nobody_waits_cost_nothing_more(stage: Stage) -> None:
    def commands() -> int:
        stats = stage.broker.client.info("commandstats")
        return sum(told["calls"] for name, told in stats.items() if "|" not in name)

    def cost(news: list[NewJob]) -> int:
        stage.queue.schedule_many(news)
        jobs = stage.take(100)
        before = commands()
        assert all(stage.done(*jobs))
        return commands() - before

    plain = cost([NewJob(f"p{n}", "work", key=new_key()) for n in range(100)])
    assert cost([NewJob("d", "work", key=key_of(1))] + [NewJob(f"p{n}", "work") for n in range(99)]) == plain + 1
