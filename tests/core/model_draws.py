"""Random acts for the comparison of the queue with its model: jobs, settlements, and the register of acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from django_delayq.core import Job, NewJob, Payload, Settlement, ack, bury, fail, release

from .model_values import DURABLE, Which

IDS = ("a", "b", "d")  # a and b share shard 1, d has shard 0
SHARDS = 2
LEASE_MS = 15_000
WINDOW_MS = 120_000
START_US = 1_700_000_000_000_000

Past = tuple[str, int]
Ending = Callable[[Job], Settlement]

ids = st.sampled_from(IDS)
#: which of the jobs handed out so far: still held, or known to a holder that lost it to another, or any
pasts = st.tuples(st.sampled_from(["held", "held", "lost", "any"]), st.integers(0, 3))
delays = st.sampled_from([0, 0, 0, 1, 1000, 20_000])
#: limited tasks, and how many jobs of which lane are granted
Drawn = tuple[tuple[str, ...], int, int]
#: mostly a caller knows no limits
limits: st.SearchStrategy[Drawn | None] = st.one_of(
    st.none(),
    st.none(),
    st.tuples(
        st.lists(st.sampled_from(["work", "sync", "both"]), max_size=2, unique=True).map(tuple),
        st.integers(0, 3),
        st.sampled_from([0, 0, 1, 2]),
    ),
)
served: st.SearchStrategy[Which] = st.sampled_from(["all", "all", "others", "quarantined"])
#: mostly a job may start however late it is
options = st.sampled_from(
    [
        *[b"", b'{"timeout":3}'] * 3,
        b'{"expires_in_ms":0}',
        b'{"expires_in_ms":1500}',
        b'{"expires_ms":%d}' % (START_US // 1000 + 2000),
        b'{"expires_in_ms":1500,"expires_ms":%d}' % (START_US // 1000 + 20_000),
    ]
)


@st.composite
def new_jobs(draw: Any) -> NewJob:
    """Draw a job; an id mostly has one kind (a plain, b merged, d both), sometimes the other kind or another task."""
    ident = draw(ids)
    odd = draw(st.integers(0, 11))
    merged = (ident == "b" or (ident == "d" and draw(st.booleans()))) != (odd == 0)
    task = "other" if odd == 1 else {"a": "work", "b": "sync", "d": "both"}[ident]
    score = draw(st.sampled_from(["-1.5", "0", "1", "2", "1e3", ""]))
    payload = Payload(draw(st.sampled_from([b"p", b"q", b"r", b"s"])), score, b"") if merged else None
    absolute = draw(st.integers(0, 3)) == 0
    return NewJob(
        ident,
        task,
        b"args-%d" % draw(st.integers(0, 9)),
        due_ms=START_US // 1000 + draw(st.sampled_from([-5, 0, 1, 2000, 30_000])) if absolute else None,
        delay_ms=None if absolute else draw(delays),
        priority=draw(st.sampled_from([4, 4, 4, 0, 7])),
        options=draw(options),
        on_conflict=draw(st.sampled_from(["replace", "replace", "ignore", "error"] + ["merge"] * (4 if merged else 0))),
        due_policy=draw(st.sampled_from(["keep", "replace", "earliest", "latest", "inherit"])),
        score_policy=draw(st.sampled_from(["min", "max", "first", "last"])),
        payloads=draw(st.sampled_from(["all", "last", "first"])),
        max_payloads=draw(st.sampled_from([1, 2, 3, 10_000, 10_000])),
        reset_retries=draw(st.booleans()),
        payload=payload,
        key=draw(st.sampled_from([b"", DURABLE])),
    )


@st.composite
def endings(draw: Any) -> Ending:
    """Return a function that makes a settlement of a job: one of the verbs with its arguments."""
    verb = draw(st.sampled_from(["ack", "fail", "fail", "release", "bury", "bury", "expire", "record", "ack_early"]))
    delay = draw(delays)
    of_merged: dict[str, Any] = {
        "inherit": draw(st.booleans()),
        "oldest": draw(st.booleans()),
        "score_policy": draw(st.sampled_from(["min", "max", "first", "last"])),
    }
    if verb == "ack":
        return lambda job: ack(job, 1, 2)
    if verb == "fail":
        outcome = draw(st.sampled_from(["failed", "timeout", "crashed"]))
        quarantine, own = draw(st.booleans()), draw(st.booleans())
        return lambda job: replace(
            fail(
                job,
                1,
                2,
                delay_ms=delay,
                outcome=outcome,
                error_class="E",
                error=b"%d" % job.token,
                quarantine=quarantine,
                own_crash=own,
            ),
            **of_merged,
        )
    if verb == "bury":
        outcome = draw(st.sampled_from(["buried", "exhausted", "poison", "undecodable"]))
        return lambda job: replace(
            bury(job, 1, 2, reason="why", outcome=outcome, error_class="E", error=b"dead"), **of_merged
        )
    if verb == "ack_early":
        return lambda job: Settlement(job, 1, 2, verb=verb, event=False)
    if verb == "record":
        end = draw(st.sampled_from(["succeeded", "failed", "crashed"]))
        once = draw(st.booleans())
        return lambda job: Settlement(job, 1, 2, verb=verb, outcome=end, once=once)
    if verb == "expire":
        return lambda job: Settlement(job, 1, 2, verb=verb, outcome="late")
    unclear, old_place, began = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    priority = draw(st.sampled_from([None, None, 0, 7]))
    quarantine, postponed = draw(st.sampled_from([None, True, False])), draw(st.sampled_from(["", "", "x", "y"]))
    return lambda job: replace(
        release(
            job,
            delay_ms=None if old_place else delay,
            priority=priority,
            unclear=unclear,
            quarantine=quarantine,
            reason=postponed,
            postpone=bool(postponed),
            began=began,
        ),
        **of_merged,
    )


def by_id(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (job.id, job.token))


@dataclass
class Call:
    """Recorded call, to be sent again."""

    script: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    number: int
    reply: Any
    sent_ms: int
    token: int | None = None
    worker: str = ""
    ttr_ms: int | None = None


ACTS: dict[str, tuple[Callable[[Any], object], st.SearchStrategy[dict[str, Any]]]] = {}
#: how often each act is chosen; one rule that chooses, because of many rules hypothesis switches some off in each life.
#: The first ones are those that a life begins with.
WEIGHTS = {
    "schedule": 5,
    "reserve": 8,
    "settle_what_is_held": 9,
    "schedule_what_lives": 4,
    "schedule_many": 3,
    "settle": 2,
    "ack_and_reserve": 2,
    "reap": 4,
    "send_again": 4,
    "kick": 3,
    "kick_all": 2,
    "discard": 2,
    "retry_selected": 2,
    "end_selected": 3,
    "end_all_failed": 3,
    "the_clock_moves": 2,
    "resume": 4,
    "resume_producers": 4,
    "end_the_limit": 3,
    "schedule_all_or_none": 2,
    "reserve_by_id": 3,
    "record_the_end": 4,
}


def act(possible: Callable[[Any], object], **arguments: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """Register a method as an act of the machine, chosen when ``possible``, with drawn arguments."""

    def registered(method: Any) -> Any:
        ACTS[method.__name__] = possible, st.fixed_dictionaries(arguments)
        return method

    return registered


def anytime(_: Any) -> bool:
    return True


def possible_acts(machine: Any) -> list[str]:
    """Return the names of the acts that are possible now, as often as they weigh."""
    names = [name for name in sorted(ACTS, key=[*WEIGHTS, *ACTS].index) if ACTS[name][0](machine)]
    return [name for name in names for _ in range(WEIGHTS.get(name, 1))]
