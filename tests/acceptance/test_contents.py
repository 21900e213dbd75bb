"""Content of Redis that a worker cannot use does not stop it: unreadable bodies, unknown tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.core_stored import pack
from tests.support.redis_box import RedisBox

from .conftest import MakeMill
from .world import Mill, until


@pytest.fixture(scope="module")
def shared(redis_box: RedisBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    """One worker for the tests that only need one."""
    with Mill(redis_box.url, tmp_path_factory.mktemp("shared")) as mill:
        mill.start("--threads", 3)
        yield mill


@pytest.fixture
def running(shared: Mill) -> Iterator[Mill]:
    """The shared worker; it is the same process afterwards, with nothing in hand."""
    before = shared.nodes[0].children()
    yield shared
    shared.wait_empty()
    assert shared.nodes[0].children() == before, shared.nodes[0].said
    shared.check()


def spoil(mill: Mill, ident: str, body: bytes) -> None:
    """Overwrite the stored body of a job."""
    queue = mill.broker.queue("default")
    mill.broker.client.hset(queue.shard(queue.shard_of(ident)).names["body"], ident, body)


def postponed_at_ms(mill: Mill, ident: str) -> int:
    """Return since when a waiting job is postponed."""
    view = mill.view(ident)
    return view.job.postponed_at_ms if view is not None and view.state == "delayed" else 0


def backdate(mill: Mill, ident: str, *, hours: int) -> None:
    """Make a job that waits for minutes look as if it were postponed for so much longer."""
    since = postponed_at_ms(mill, ident)
    queue = mill.broker.queue("default")
    key = queue.shard(queue.shard_of(ident)).names["state"]
    state = mill.broker.client.hget(key, ident)
    earlier = state.replace(pack(since), pack(since - hours * 3_600_000))
    assert earlier != state
    mill.broker.client.hset(key, ident, earlier)


def test_t14_one_unreadable_body_among_a_thousand_goes_to_the_morgue_and_the_rest_runs(running: Mill) -> None:
    later = running.broker.now_ms() + 700
    ids = running.put_many("grind", 999, delay_ms=None, due_ms=int(later))
    bad = running.put("grind", id="t14-bad", delay_ms=None, due_ms=int(later))
    spoil(running, bad, b"\xff\x00not a body at all")
    running.wait_ended(ids)
    view = running.buried(bad)
    assert (view.reason, view.error_class) == ("undecodable", "Undecodable")
    assert view.job.args == b"\xff\x00not a body at all", "its bytes are kept for a person"
    starts = running.starts_by_id()
    assert {ident: starts[ident] for ident in ids} == dict.fromkeys(ids, 1)
    assert bad not in starts


def test_t15_a_job_of_the_next_release_waits_uncounted_for_a_worker_that_knows_it(make_mill: MakeMill) -> None:
    mill = make_mill()
    old = mill.start()
    ident = mill.put("novelty", 7, id="novelty")

    def given_back() -> bool:
        view = mill.view(ident)
        return view is not None and view.state == "delayed" and view.job.reserves > 0

    until(given_back, "the old release to give it back")
    view = mill.view(ident)
    assert view is not None
    assert (view.job.failures, view.job.postponed_for) == (0, "unknown task")
    assert "no task named mill.novelty" in old.said
    known = mill.put("grind")
    mill.wait_ended([known])

    # Side by side with the next release the old one may get hold of it again, which must do no harm.
    mill.start(MILL_RELEASE="new")
    mill.wait_starts(ident)
    mill.wait_empty()
    (start,) = mill.starts(ident)
    assert (start["attempt"], start["number"]) == (1, 7)
    assert old.stop()[0] == 0


def test_t61_a_job_whose_task_was_removed_goes_to_the_morgue_after_a_day_of_waiting(running: Mill) -> None:
    ident = running.put("removed", id="t61")
    until(lambda: postponed_at_ms(running, ident), "the first release")
    backdate(running, ident, hours=23)
    seen = running.view(ident)
    assert seen is not None
    running.broker.queue("default").run_now(ident)

    def released_again() -> bool:
        view = running.view(ident)
        return view is not None and view.state == "delayed" and view.job.reserves > seen.job.reserves

    until(released_again, "another release, since its day is not over")
    backdate(running, ident, hours=1)
    running.broker.queue("default").run_now(ident)
    view = running.buried(ident)
    assert (view.reason, view.error_class) == ("unknown task", "UnknownTask")
    assert "aliases=('mill.removed',)" in view.error["message"]
