"""Metrics of Redis: server, memory, persistence, errors, scripts, and the last check."""

from __future__ import annotations

from typing import Final

from .metric import counter, gauge, histogram

REDIS_INFO: Final = gauge(
    "delayq_redis_info",
    "delayq.redis.info",
    "1",
    "Always 1; the server. Of a cluster the first master; the other numbers are totals of all masters.",
    "version",
    "mode",
    "role",
    "policy",
)
REDIS_MEMORY: Final = gauge(
    "delayq_redis_memory_used_bytes",
    "delayq.redis.memory.used",
    "By",
    "Memory that Redis uses. Near delayq_redis_memory_max_bytes schedule() is refused; give it more in time.",
)
REDIS_MEMORY_PEAK: Final = gauge(
    "delayq_redis_memory_peak_bytes", "delayq.redis.memory.peak", "By", "Peak memory of Redis.", merge="max"
)
REDIS_MEMORY_MAX: Final = gauge(
    "delayq_redis_memory_max_bytes",
    "delayq.redis.memory.max",
    "By",
    "Memory limit of Redis (maxmemory); 0 = none.",
    merge="max",
)
REDIS_UPTIME: Final = gauge(
    "delayq_redis_uptime_seconds",
    "delayq.redis.uptime",
    "s",
    "Seconds since the start of Redis; a fall is a restart.",
)
REDIS_CLIENTS: Final = gauge("delayq_redis_clients", "delayq.redis.clients", "{connection}", "Connections to Redis.")
REDIS_COMMANDS: Final = gauge(
    "delayq_redis_commands_per_second",
    "delayq.redis.commands",
    "{command}/s",
    "Present rate of commands from all clients.",
)
REDIS_EVICTED: Final = counter(
    "delayq_redis_evicted_keys_total",
    "delayq.redis.evicted_keys",
    "{key}",
    "Keys that Redis evicted. Above 0: set maxmemory-policy noeviction, then run delayq_fsck.",
)
REDIS_AOF: Final = gauge(
    "delayq_redis_aof",
    "delayq.redis.aof",
    "1",
    "1: Redis keeps an append-only file. 0: a restart loses the changes since its last snapshot.",
)
REDIS_SAVED: Final = gauge(
    "delayq_redis_saved",
    "delayq.redis.saved",
    "1",
    "0: the last write of the append-only file or of a snapshot failed; check the disk of Redis.",
)
REDIS_SAVE_AGE: Final = gauge(
    "delayq_redis_last_save_age_seconds",
    "delayq.redis.last_save_age",
    "s",
    "Seconds since the last snapshot.",
)
REDIS_REPLICAS: Final = gauge(
    "delayq_redis_replicas",
    "delayq.redis.replicas",
    "{server}",
    "Connected replicas. Fewer than configured: a failover has fewer candidates, or loses more.",
)
REDIS_ERRORS: Final = counter(
    "delayq_redis_errors_total",
    "delayq.redis.errors",
    "{error}",
    "Calls to Redis that failed in workers and in processes that pull, by kind. transient: a restart or the network. "
    "overload: it is full. saturation: too few connections. config: change the configuration.",
    "class",
)
SCRIPT: Final = histogram(
    "delayq_script_seconds",
    'Duration of calls of each script; only with METRICS = {"scripts": True}.',
    "script",
)
FSCK: Final = gauge(
    "delayq_fsck_violations",
    "delayq.fsck.violations",
    "{violation}",
    "Violations found by the last delayq_fsck. Above 0: run it again and follow its advice.",
    merge="max",
)
FSCK_AT: Final = gauge(
    "delayq_fsck_timestamp_seconds",
    "delayq.fsck.timestamp",
    "s",
    "Time of the last delayq_fsck, Unix time.",
)
