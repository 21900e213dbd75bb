"""Handlers that misbehave and processes that die: what was in hand runs again, and nobody else pays."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.event_entries import read_events
from tests.support.processes import alive
from tests.support.redis_box import RedisBox
from tests.support.seeds import seed_of_run

from .conftest import MakeMill
from .world import Mill, Node, until


@pytest.fixture(scope="module")
def shared(redis_box: RedisBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    """Three processes for the tests in which one or two of them die."""
    with Mill(redis_box.url, tmp_path_factory.mktemp("shared")) as mill:
        mill.start("--processes", 3, "--threads", 2)
        yield mill


@pytest.fixture
def running(shared: Mill) -> Iterator[Mill]:
    """The shared worker, whole before and after the test, with nothing in hand."""
    shared.nodes[0].wait_ready(3)
    yield shared
    shared.wait_empty()
    assert shared.nodes[0].process.poll() is None, shared.nodes[0].said
    shared.check()


@pytest.mark.parametrize(
    ("misdeed", "reason", "error"),
    [
        ("stumble", "exhausted", "ValueError"),
        ("raise_nonsense", "exhausted", "Silent"),
        ("exit_softly", "exhausted", "SystemExit"),
        ("interrupt", "exhausted", "KeyboardInterrupt"),
        ("dawdle", "exhausted", "JobTimeout"),
        ("segfault", "poison", "Crashed"),
        ("exit_hard", "poison", "Crashed"),
    ],
)
def test_a_job_that_misbehaves_goes_to_the_morgue_and_the_next_one_is_not_disturbed(
    running: Mill, misdeed: str, reason: str, error: str
) -> None:
    culprit = running.put(misdeed, id=f"culprit-{misdeed}", options=b'{"max_attempts":1}')
    view = running.buried(culprit)
    assert (view.reason, view.error_class.rpartition(".")[2]) == (reason, error)
    assert len(running.starts(culprit)) == 1
    following = [running.put("grind", id=f"after-{misdeed}-{number}") for number in range(6)]
    running.wait_ended(following)
    assert [line["attempt"] for line in running.starts() if line["id"] in following] == [1] * 6


def test_the_hook_of_a_task_whose_process_died_is_called_by_the_supervisor_with_a_database(running: Mill) -> None:
    ident = running.put("exit_hard", id="heard", options=b'{"max_attempts":1}')
    running.buried(ident)
    (line,) = running.lines("given up", ident)
    assert (line["pid"], line["found"]) == (running.nodes[0].pid, 7)
    assert "ended with exit code 0" in line["error"]


def test_a_result_that_nobody_can_store_or_print_is_no_failure(running: Mill) -> None:
    ident = running.put("nonsense", id="nonsense")
    running.wait_ended([ident])
    running.wait_empty()
    assert (len(running.starts(ident)), running.view(ident)) == (1, None)


def test_t10_a_crash_in_the_last_of_two_attempts_leaves_the_job_in_the_morgue(running: Mill) -> None:
    ident = running.put("die", id="t10-last", options=b'{"max_attempts":2}')
    running.wait_starts(ident)
    hasten(running, ident)
    view = running.buried(ident)
    assert (view.reason, view.job.failures, view.job.crashes, len(running.starts(ident))) == ("poison", 2, 2, 2)


def test_t11_a_job_that_kills_its_process_ends_in_the_morgue_and_the_others_go_on(running: Mill) -> None:
    others = running.put_many("grind", 30, 0.03)
    killer = running.put("die", id="t11-killer")
    others += running.put_many("grind", 30, 0.03)
    hasten(running, killer)
    view = running.buried(killer)
    # Two threads: a first crash beside another job is counted, and proves nothing.
    assert view.reason == "poison" and view.job.crashes in (3, 4)
    assert [line["attempt"] for line in running.starts(killer)] == list(range(1, view.job.crashes + 1))
    running.wait_ended(others)
    running.wait_empty()
    assert {grave.id for grave in running.broker.inspector.page("default", "morgue", limit=250).jobs}.isdisjoint(others)
    again = {ident: count - 1 for ident, count in running.starts_by_id().items() if ident in others and count > 1}
    # Beside the first crash ran one other job, and a few had just ended; from then on it runs in quarantine.
    assert set(again.values()) <= {1}, again
    assert len(again) <= 4, again


def hasten(mill: Mill, ident: str) -> None:
    """The second and later crashes are retried after ten seconds and more: do not wait for that."""

    def over() -> bool:
        view = mill.view(ident)
        if view is None or view.state == "morgue":
            return True
        if view.state == "delayed":
            mill.broker.queue("default").run_now(ident)
        return False

    until(over, f"the end of {ident}")


def test_t41_a_handler_that_never_returns_costs_its_process_and_only_itself_an_attempt(make_mill: MakeMill) -> None:
    mill = make_mill(WORKER={"grace": 2.0})
    node = mill.start("--threads", 3)
    (before,) = node.children()
    quick = mill.put("wait_for", str(mill.gate("quick")), id="ends-in-time")
    slow = mill.put("wait_for", str(mill.gate("slow")), id="does-not-end")
    mill.wait_starts(quick)
    mill.wait_starts(slow)
    culprit = mill.put("never_return", id="culprit")
    mill.wait_starts(culprit)
    until(lambda: "ignores its time limit" in node.said, "the end of the patience")
    waiting = mill.put("grind", id="waiting")
    mill.gate("quick").touch()
    view = mill.buried(culprit)
    assert (view.reason, view.error_class, view.job.failures) == ("exhausted", "JobTimeout", 1)

    mill.gate("slow").touch()
    mill.wait_ended([quick, slow, waiting])
    mill.wait_empty()
    assert node.children() != [before]
    assert not alive(before)
    assert mill.starts_by_id() == {culprit: 1, quick: 1, slow: 2, waiting: 1}
    assert {line["attempt"] for line in mill.starts()} == {1}, "the one that was interrupted does not pay either"


def test_t17_t63_the_work_of_a_machine_that_is_gone_runs_elsewhere_when_its_leases_end(make_mill: MakeMill) -> None:
    lease = 1.5
    mill = make_mill(lease=lease)
    mill.broker.queue("default", shards=8)
    gone = mill.start("--threads", 4)
    held = [mill.put("wait_for", str(mill.gate()), id=f"held-{number}") for number in range(4)]
    for ident in held:
        mill.wait_starts(ident)
    stays = mill.start("--threads", 4)
    gone.kill()
    died = time.time()
    mill.gate().touch()
    others = [mill.put("grind", id=f"other-{number}") for number in range(40)]  # ids that lie in all shards
    mill.wait_ended([*held, *others])
    mill.wait_empty()
    (pid,) = stays.children()
    again = [line for line in mill.starts() if line["id"] in held and line["pid"] == pid]
    assert sorted(line["id"] for line in again) == held
    assert {line["attempt"] for line in again} == {2}
    slowest = max(line["at"] for line in again) - died
    assert slowest < lease + 1.5, f"the last one began {slowest:.2f} s after the end of its machine"
    assert {mill.broker.queue("default").shard_of(ident) for ident in others} == set(range(8))
    assert mill.counts().morgue == 0


def test_a_supervisor_that_is_killed_leaves_no_consumer_behind(make_mill: MakeMill) -> None:
    mill = make_mill(lease=1.5, WORKER={"grace": 1.0})
    node = mill.start("--processes", 2, "--threads", 2)
    ident = mill.put("wait_for", str(mill.gate()), id="in-hand")
    mill.wait_starts(ident)
    pids = node.children()
    node.process.kill()
    node.wait()
    until(lambda: not any(map(alive, pids)), "the end of its children", 6.0)
    after = mill.put("grind", id="after")
    assert mill.starts(after) == []
    mill.gate().touch()
    mill.start()
    mill.wait_ended([after, ident])
    assert len(mill.starts(ident)) == 2


class Flow:
    """A producer that schedules short jobs, now and a little later, until told to stop."""

    def __init__(self, mill: Mill, dice: random.Random, seconds: float = 0.02) -> None:
        self.accepted: list[str] = []
        self._mill = mill
        self._dice = dice
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _produce(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            number += 1
            delay_ms = self._dice.choice((0, 0, 100, 400))
            self.accepted.append(self._mill.put("grind_on", self._seconds, delay_ms=delay_ms))


def kill_at_random(mill: Mill, kills: int, *, each: int) -> None:
    """``kills`` times SIGKILL for a random process of a flowing worker; then nothing may be lost or unexplained.

    A supervisor answers processes that die fast with growing pauses, so it is relieved by a new one after ``each``
    kills.
    """
    seed, done = seed_of_run(), 0
    dice = random.Random(seed)
    with Flow(mill, random.Random(seed + 1)) as flow:
        while done < kills:
            node = mill.start("--processes", 4, "--threads", 3)
            for _ in range(min(each, kills - done)):
                until(lambda node=node: len(node.serving()) >= 2, "two processes that serve")  # type: ignore[misc]
                threading.Event().wait(dice.uniform(0, 0.4))  # a random moment is the point
                kill_one(node, dice)
                done += 1
            if done < kills:
                assert node.stop()[0] == 0
    mill.wait_ended(flow.accepted, 60)
    mill.wait_empty()
    starts = mill.starts_by_id()
    assert set(starts) == set(flow.accepted), "nothing lost, nothing made up"
    assert mill.counts().morgue == 0
    recorded = read_events(mill.broker, "default", 0, limit=20_000)
    causes = Counter(event.id for event in recorded if event.outcome in ("crashed", "lost", "released"))
    unexplained = {ident: (count, causes[ident]) for ident, count in starts.items() if count - 1 > causes[ident]}
    assert not unexplained, f"runs and recorded causes of {unexplained}"
    print(f"{kills} kills, {len(flow.accepted)} jobs, {starts.total() - len(starts)} extra runs, 0 lost")


def kill_one(node: Node, dice: random.Random) -> int:
    """SIGKILL for one of its processes; returns which."""
    pid = dice.choice(node.serving())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid


def test_no_job_is_lost_in_ten_kills_at_random_moments(make_mill: MakeMill) -> None:
    kill_at_random(make_mill(), 10, each=10)


@pytest.mark.slow
def test_no_job_is_lost_in_fifty_kills_at_random_moments(make_mill: MakeMill) -> None:
    kill_at_random(make_mill(), 50, each=10)
