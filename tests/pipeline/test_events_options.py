"""The readers of events without Spark around them: their options, and a Redis that is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from django_delayq.core.errors import Misconfigured, QueueUnavailable
from django_delayq.pipeline import options as redis_options
from django_delayq.pipeline.events import EventsOptions, EventsReader, EventsSource, EventsStreamReader
from django_delayq.pipeline.schemas import EVENTS
from tests.support.redis_box import RedisBox

from .events_stage import emit, ids_of, offsets


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quue": "q"}, "'quue' is no option here. Did you mean 'queue'?"),
        ({"startingoffsets": "latest"}, "Did you mean 'startingOffset'"),
        ({"redis": ""}, "which Redis"),
        ({"redis": '{"URL": '}, "begins like JSON"),
        ({"redis": "localhost"}, "without a scheme"),
        ({"redisEnv": "DELAYQ_NO_SUCH"}, "keep one of them"),
        ({"redis": "", "redisEnv": "DELAYQ_NO_SUCH"}, "'DELAYQ_NO_SUCH', which is not set"),
        ({"queue": ","}, "option queue"),
        ({"queue": "a b"}, "queue name 'a b'"),
        ({"startingOffset": "now"}, "earliest, latest or JSON"),
        ({"startingOffset": '{"q": {"0": "x"}}'}, "no position"),
        ({"startingOffset": '{"q": {"first": "0-1"}}'}, "invalid literal"),
        ({"startingOffset": '{"q": "0-1"}'}, "offsets must be like"),
        ({"startingOffset": "[]"}, "no JSON object"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger must be a whole number from 1"),
        ({"fetch": "many"}, "fetch must be a whole number from 1 to 10000, got 'many'"),
        ({"failOnDataLoss": "0"}, "failOnDataLoss must be one of true, false"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_at_once(options: dict[str, str], said: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        EventsSource(CaseInsensitiveDict({"redis": "redis://localhost", **options})).schema()
    assert said in str(caught.value)


def test_a_password_is_in_no_message() -> None:
    for wrong in ('{"URL": "redis://:hunter2@h"', "redis//:hunter2@host"):
        with pytest.raises(Misconfigured) as caught:
            redis_options.config_of({"redis": wrong})
        assert "hunter2" not in f"{caught.value!r} {caught.value.__context__!r}" or caught.value.__suppress_context__
        assert "hunter2" not in str(caught.value)


def test_where_redis_is_may_be_json_or_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redis_options.config_of({"redis": '{"CLUSTER": ["a:1", "b:2"]}'}).cluster_nodes == (("a", 1), ("b", 2))
    monkeypatch.setenv("QUEUE_REDIS", "redis://:geheim@host:7/3")
    found = redis_options.config_of(CaseInsensitiveDict({"redisENV": "QUEUE_REDIS"}))
    assert (found.host, found.port, found.db, found.password) == ("host", 7, 3, "geheim")


def test_names_of_options_are_read_whatever_their_case(redis_url: str) -> None:
    given = CaseInsensitiveDict(
        {"REDIS": redis_url, "MAXROWSPERTRIGGER": "5", "failondataloss": "FALSE", "QUEUE": "b, a"}
    )
    found = EventsOptions.parse(given)
    assert found == EventsOptions(queues=("a", "b"), max_rows=5, fail_on_loss=False)


def test_a_redis_that_is_gone_is_a_clear_error_within_seconds(redis_factory: Callable[..., RedisBox]) -> None:
    box = redis_factory(tcp=True)
    options = CaseInsensitiveDict({"redis": box.url})
    reader = EventsStreamReader(options, EVENTS)
    with redis_options.open_broker(options) as broker:
        broker.queue("q")
        emit(broker, 1)
    start = reader.initialOffset()
    (task,) = reader.partitions(start, offsets(reader, start))
    box.close()
    began_at = time.monotonic()
    for act in (lambda: offsets(reader, start), lambda: ids_of(reader, task), lambda: make_batch(options)):
        with pytest.raises(QueueUnavailable, match="cannot be used now"):
            act()
    assert time.monotonic() - began_at < 15
    reader.stop()


def make_batch(options: CaseInsensitiveDict) -> Any:
    return EventsReader(options, EVENTS).partitions()


def test_executors_need_no_django() -> None:
    program = "import sys, django_delayq.core.events, django_delayq.pipeline.events; print('django' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)


def test_a_worker_that_plans_or_commits_a_write_does_without_pandas() -> None:
    """Spark forks one for each, and the import takes longer than their work."""
    program = "import sys, django_delayq.pipeline.jobs, django_delayq.pipeline.writer; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)
