"""The DELAYQ setting: read late, checked, and read again when a test changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from django_delayq import connections
from django_delayq.core.errors import Misconfigured
from django_delayq.runtime.wiring import make_config
from django_delayq.settings.conf import Conf, conf


def test_an_empty_dict_means_the_defaults() -> None:
    made = Conf.read("DELAYQ", {})
    assert made == Conf()
    assert (made.prefix, made.tasks_module, made.max_args_bytes, made.lease) == ("delayq", "tasks", 1024 * 1024, 15)
    assert (made.worker.processes, made.worker.threads, made.worker.grace) == (1, 5, 25)
    assert made.queue("anything").shards is None


def test_everything_can_be_set(tmp_path: Path) -> None:
    orders = {"shards": 5, "weight": 2, "priorities": "weighted", "starve_after": 60}
    feed = {"kind": "pull", "max_length": 10, "morgue_max": 5, "morgue_ttl": 3600}
    worker = {"quarantine": 4, "queues": ["orders"], "max_rss": 500, "conn_max_age": None, "scheduler": "builtins.max"}
    api = {"allow": "a.f", "throttle": {"produce": "10/min"}, "authentication": ["a.g"], "max_jobs": 20}
    pipeline = {"root": "s3a://lake/history", "sla": {"mail": 5, "*": 30}, "keep_hours_days": None}
    plain = {
        "REDIS": "redis://localhost/3",
        "PREFIX": "shop:live",
        "CONTEXT": {"trace": "a.e"},
        "TASKS_MODULE": "jobs",
        "TASK_DEFAULTS": {"max_attempts": 3},
        "MAX_ARGS_BYTES": 100,
        "LEASE": 30,
        "ALLOW_FAR": True,
    }
    parts = {"WORKER": worker, "EVENTS": {"cap": 5}, "API": api, "METRICS": {"public": True}, "PIPELINE": pipeline}
    lists = {"MIDDLEWARE": ["a.b"], "SCHEDULE_MIDDLEWARE": ["a.c"], "HOOKS": {"worker_init": "a.d"}}
    folder = {"EMBEDDED_DIR": tmp_path}
    made = Conf.read("DELAYQ", {"QUEUES": {"orders": orders, "feed": feed}, **plain, **parts, **lists, **folder})
    for section, given in (
        (made.queue("orders"), orders),
        (made.queue("feed"), feed),
        (made.worker, {**worker, "queues": ("orders",)}),
        (made.events, {"cap": 5}),
        (made.api, {**api, "authentication": ("a.g",), "max_wait": 20.0}),
        (made.metrics, {"public": True, "scripts": False}),
        (made.pipeline, pipeline),
        (made, {name.lower(): value for name, value in plain.items()} | {"embedded_dir": str(tmp_path)}),
    ):
        assert {name: getattr(section, name) for name in given} == given
    assert (made.queue("feed").starve_after, made.queue("feed").priorities) == (None, "strict")
    assert (make_config(made).quarantine, make_config(made, quarantine=1).quarantine) == (4, 1)
    assert (make_config(made).heartbeat, make_config(Conf(lease=6.0)).heartbeat) == (5, 2)
    assert (made.middleware, made.schedule_middleware) == (("a.b",), ("a.c",))
    assert made.hooks.paths() == {"worker_init": "a.d"}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (None, "DELAYQ must be a dict"),
        ({"API": {"throttle": {"reserve": "1/s"}}}, r"throttle'\] must be one of view, produce"),
        ({"API": {"throttle": {"view": "often"}}}, "must be a rate like '1000/min'"),
        ({"API": {"max_wait": 21}}, "max_wait"),
        ({"METRICS": {"public": 1}}, "public"),
        ({"PIPELINE": {"root": ""}}, r"root'\] must be a text"),
        ({"PIPELINE": {"conf": {"spark.ui.enabled": False}}}, r"\['conf'\]\['spark.ui.enabled'\] must be a text"),
        ({"PIPELINE": {"sla": {"mail": "soon"}}}, r"\['sla'\]\['mail'\] must be a number"),
        ({"PIPELINE": {"keep_events_days": 0}}, "keep_events_days"),
        ({"REDSI": "x"}, "unknown key 'REDSI'. Did you mean 'REDIS'"),
        ({"redis": "x"}, "unknown key 'redis'. Did you mean 'REDIS'"),
        ({"REDIS": 5}, r"DELAYQ\['REDIS'\] must be"),
        ({"PREFIX": "a{b}"}, "no braces"),
        ({"QUEUES": ["a"]}, r"DELAYQ\['QUEUES'\] must be a dict"),
        ({"QUEUES": {"a b": {}}}, "letters, digits"),
        ({"QUEUES": {"a": {"shard": 5}}}, r"DELAYQ\['QUEUES'\]\['a'\]: unknown key 'shard'. Did you mean 'shards'"),
        ({"QUEUES": {"a": {"shards": 0}}}, r"shards'\] must be 1 to 1024, got 0"),
        ({"QUEUES": {"a": {"kind": "pul"}}}, "Did you mean 'pull'"),
        ({"WORKER": {"treads": 5}}, r"DELAYQ\['WORKER'\]: unknown key 'treads'. Did you mean 'threads'"),
        ({"WORKER": {"threads": "5"}}, r"threads'\] must be an int"),
        ({"WORKER": {"grace": -1}}, r"grace'\] must be 0 or more seconds, got -1"),
        ({"WORKER": {"dispatcher": 1}}, r"dispatcher'\] must be True or False"),
        ({"WORKER": {"queues": "orders"}}, r"queues'\] must be a list"),
        ({"WORKER": {"queues": ["9 lives"]}}, r"DELAYQ\['WORKER'\]\['queues'\]: queue name '9 lives' is not usable"),
        ({"QUEUES": {"9 lives": {}}}, r"DELAYQ\['QUEUES'\]: queue name '9 lives' is not usable"),
        ({"MIDDLEWARE": "a.b"}, "must be a list of strings"),
        ({"EVENTS": {"cap": -1}}, r"cap'\] must be 0 or more, got -1"),
        ({"TASKS_MODULE": "my tasks"}, "must be a module name"),
        ({"TASK_DEFAULTS": {"retries": 3}}, r"TASK_DEFAULTS'\]: unknown option 'retries'"),
        ({"TASK_DEFAULTS": {"max_attempts": 0}}, "max_attempts must be 1 to"),
        ({"TASK_DEFAULTS": {"aliases": ["x"]}}, "aliases belongs to one task"),
        ({"TASK_DEFAULTS": {"merge": True}}, "merge belongs to one task"),
        ({"TASK_DEFAULTS": {"cron": "@daily"}}, "cron belongs to one task"),
        ({"TASK_DEFAULTS": {"on_conflict": "merge"}}, "merged tasks merge"),
        ({"TASK_DEFAULTS": {"batch_size": 0}}, "batch_size must be 1 to 250"),
        ({"TASK_DEFAULTS": {"expires": -1}}, "expires must be more than 0"),
        ({"TASK_DEFAULTS": {"missed": "x"}}, "missed must be one of"),
        ({"QUEUES": {"a": {"max_length": 0}}}, r"max_length'\] must be 1 or more, got 0"),
        ({"QUEUES": {"a": {"morgue_max": "5"}}}, r"morgue_max'\] must be an int"),
        ({"QUEUES": {"a": {"morgue_ttl": 0}}}, r"morgue_ttl'\] must be 1 or more seconds, got 0"),
        ({"QUEUES": {"a": {"priorities": "fair"}}}, r"priorities'\] must be one of strict, weighted"),
        ({"QUEUES": {"a": {"starve_after": 0.5}}}, r"starve_after'\] must be 1 or more seconds, got 0.5"),
        ({"WORKER": {"scheduler": "lag"}}, r"scheduler'\] must be a dotted path like 'shop.module.name', got 'lag'"),
        ({"QUEUES": {"a": {"weight": 0}}}, r"weight'\] must be 0.001 or more, got 0"),
        ({"WORKER": {"prefetch_ms": -1}}, r"prefetch_ms'\] must be 0 or more milliseconds, got -1"),
        ({"MIRROR": {"keep_days": -1}}, r"keep_days'\] must be 0.001 or more days, got -1"),
        ({"OUTBOX": {"keep_days": "x"}}, r"keep_days'\] must be a number of days, not str: 'x'"),
        ({"INBOX": {"keep_days": 0}}, r"keep_days'\] must be 0.001 or more days, got 0"),
        ({"OUTBOX": {"budget": 5}}, r"budget'\] must be 0.01 to 1 seconds, got 5"),
        ({"QUEUES": {"a": {"shards": 2000}}}, r"shards'\] must be 1 to 1024, got 2000"),
        ({"CONTEXT": ["trace"]}, r"CONTEXT'\] must be a dict"),
        ({"CONTEXT": {"a b": "x.y"}}, "like that of a Python variable"),
        ({"CONTEXT": {"a": "x"}}, "must be a dotted path"),
        ({"SCHEDULE_MIDDLEWARE": "a.b"}, "must be a list of strings"),
        ({"HOOKS": {"worker_int": "a.b"}}, "Did you mean 'worker_init'"),
        ({"HOOKS": {"last_words": 5}}, r"last_words'\] must be a dotted path"),
        ({"MAX_ARGS_BYTES": 0}, "MAX_ARGS_BYTES"),
        ({"EMBEDDED_DIR": 5}, "path of a folder"),
        ({"LEASE": 0.5}, r"LEASE'\] must be 1 to 3600 seconds, got 0.5"),
        ({"ALLOW_FAR": "yes"}, "must be True or False"),
    ],
)
def test_a_wrong_setting_says_where_and_what_to_do(raw: Any, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        Conf.read("DELAYQ", raw)


def test_override_settings_makes_new_settings_and_a_new_broker(delayq: Any, settings: Any) -> None:
    assert conf().prefix == delayq.prefix
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": "other"}
    assert conf().prefix == "other"
    assert connections.broker().prefix == "other"
    assert connections.broker() is connections.broker()


def test_tasks_and_settings_give_a_queue_its_shards(delayq: Any, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"wide": {"shards": 3}}}
    assert connections.queue("wide").shards == 3
    assert connections.queue("plain").shards == 1


def cache(backend: str) -> dict[str, Any]:
    return {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "jobs": {"BACKEND": backend}}


def test_a_django_redis_cache_alias_is_a_connection(redis_url: str, prefix: str, settings: Any) -> None:
    pytest.importorskip("django_redis")
    settings.CACHES = {"jobs": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_url}}
    settings.DELAYQ = {"REDIS": "jobs", "PREFIX": prefix}
    assert connections.queue("orders").name == "orders"
    connections.close_broker()


def test_a_wrong_alias_says_what_to_do(settings: Any) -> None:
    settings.CACHES = cache("django.core.cache.backends.dummy.DummyCache")
    settings.DELAYQ = {"REDIS": "job"}
    with pytest.raises(Misconfigured, match=r"no alias in CACHES. Did you mean 'jobs'"):
        connections.broker()
    settings.DELAYQ = {"REDIS": "jobs"}
    with pytest.raises(Misconfigured, match="DummyCache is not on Redis"):
        connections.broker()


def test_without_redis_the_embedded_one_needs_a_folder(settings: Any) -> None:
    settings.DELAYQ = {}
    del settings.BASE_DIR
    with pytest.raises(Misconfigured, match=r"DELAYQ\['EMBEDDED_DIR'\]"):
        connections.broker()


def test_without_redis_the_embedded_one_is_started(settings: Any, tmp_path: Path) -> None:
    from django_delayq import embedded

    settings.DELAYQ = {"EMBEDDED_DIR": tmp_path / "store"}
    assert connections.queue("orders").name == "orders"
    connections.close_broker()
    embedded.release_all()
