"""Classification of all errors of Redis and its connections; back-off."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest
import redis
from redis import exceptions as errors
from redis.sentinel import MasterNotFoundError

from django_delayq.core import IdTaken, InvalidJob, Misconfigured, QueueFull, QueueUnavailable
from django_delayq.core.redis.faults import REDIS_ERRORS, Backoff, Fault, classify

from ..support.redis_box import RedisBox

_SCRIPT_62 = "Error running script (call to f_0ab): @user_script:1: @user_script: 1: -{} told from within"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        # the line
        (errors.ConnectionError("Error 111 connecting to x:1. Connection refused."), Fault.TRANSIENT),
        (errors.ConnectionError("max number of clients reached"), Fault.TRANSIENT),
        (errors.TimeoutError("Timeout reading from socket"), Fault.TRANSIENT),
        (errors.BusyLoadingError("Redis is loading the dataset in memory"), Fault.TRANSIENT),
        (errors.InvalidResponse("Protocol Error: b'x'"), Fault.TRANSIENT),
        (MasterNotFoundError("No master found for 'shop'"), Fault.TRANSIENT),
        (OSError(104, "reset"), Fault.TRANSIENT),
        (ConnectionResetError(), Fault.TRANSIENT),
        (TimeoutError(), Fault.TRANSIENT),
        (socket.gaierror(-3, "Temporary failure in name resolution"), Fault.TRANSIENT),
        # local
        (errors.MaxConnectionsError("Too many connections"), Fault.SATURATION),
        # plain text, as redis-py has no class for them
        (errors.ResponseError("BUSY Redis is busy running a script."), Fault.TRANSIENT),
        (errors.ResponseError("UNKILLABLE Sorry the script already executed write commands"), Fault.TRANSIENT),
        (errors.ResponseError("MISCONF Redis is configured to save RDB snapshots"), Fault.TRANSIENT),
        (errors.ResponseError("NOREPLICAS Not enough good replicas to write."), Fault.TRANSIENT),
        (errors.ResponseError("UNBLOCKED force unblock from blocking operation"), Fault.TRANSIENT),
        (errors.ResponseError("LOADING Redis is loading"), Fault.TRANSIENT),
        (errors.ResponseError("READONLY You can't write against a read only replica."), Fault.TRANSIENT),
        (errors.ResponseError("MASTERDOWN Link with MASTER is down"), Fault.TRANSIENT),
        (errors.ResponseError("CLUSTERDOWN Hash slot not served"), Fault.TRANSIENT),
        (errors.ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"), Fault.TRANSIENT),
        (errors.ResponseError("MOVED 5 127.0.0.1:1"), Fault.TRANSIENT),
        (errors.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), Fault.OVERLOAD),
        (errors.ResponseError("NOAUTH Authentication required."), Fault.CONFIG),
        (errors.ResponseError("WRONGPASS invalid username-password pair"), Fault.CONFIG),
        (errors.ResponseError("NOPERM this user has no permissions"), Fault.CONFIG),
        (errors.ResponseError("DENIED Redis is running in protected mode"), Fault.CONFIG),
        (errors.ResponseError("DB index is out of range"), Fault.CONFIG),
        (errors.ResponseError("BUSYGROUP Consumer Group name already exists"), Fault.BUG),
        (errors.ResponseError("WRONGTYPE Operation against a key"), Fault.BUG),
        (errors.ResponseError("ERR wrong number of arguments"), Fault.BUG),
        (errors.ResponseError("value says OOM in its middle"), Fault.BUG),
        (errors.ResponseError(""), Fault.BUG),
        # the same from within a script, before Redis 7
        (errors.ResponseError(_SCRIPT_62.format("OOM")), Fault.OVERLOAD),
        (errors.ResponseError(_SCRIPT_62.format("READONLY")), Fault.TRANSIENT),
        (errors.ResponseError(_SCRIPT_62.format("MISCONF")), Fault.TRANSIENT),
        (errors.ResponseError(_SCRIPT_62.format("NOREPLICAS")), Fault.TRANSIENT),
        (errors.ResponseError("Error running script (call to f_0): @user_script:1: WRONGTYPE Oper"), Fault.BUG),
        (errors.ResponseError("The user executing the script can't run this command script: 0"), Fault.CONFIG),
        # classes
        (errors.OutOfMemoryError("command not allowed"), Fault.OVERLOAD),
        (errors.ReadOnlyError("You can't write"), Fault.TRANSIENT),
        (errors.NoScriptError("No matching script."), Fault.TRANSIENT),
        (errors.MasterDownError("Link with MASTER is down"), Fault.TRANSIENT),
        (errors.ClusterDownError("Hash slot not served"), Fault.TRANSIENT),
        (errors.ClusterError("TTL exhausted."), Fault.TRANSIENT),
        (errors.TryAgainError("Multiple keys"), Fault.TRANSIENT),
        (errors.MovedError("5 127.0.0.1:1"), Fault.TRANSIENT),
        (errors.AskError("5 127.0.0.1:1"), Fault.TRANSIENT),
        (errors.SlotNotCoveredError("slot 5"), Fault.TRANSIENT),
        (errors.RedisClusterException("Redis Cluster cannot be connected."), Fault.TRANSIENT),
        (errors.RedisClusterException("cannot be connected: invalid username-password pair"), Fault.CONFIG),
        (errors.RedisClusterException("Cluster mode is not enabled on this node"), Fault.CONFIG),
        (errors.ClusterCrossSlotError("Keys in request"), Fault.BUG),
        (errors.AuthenticationError("invalid username-password pair"), Fault.CONFIG),
        (errors.AuthenticationWrongNumberOfArgsError("x"), Fault.CONFIG),
        (errors.AuthorizationError("x"), Fault.CONFIG),
        (errors.NoPermissionError("x"), Fault.CONFIG),
        (errors.ConnectionError("Error 1 ... [SSL: CERTIFICATE_VERIFY_FAILED] ..."), Fault.CONFIG),
        (ssl.SSLCertVerificationError(1, "x"), Fault.CONFIG),
        (errors.DataError("Invalid input of type: 'list'"), Fault.BUG),
        (errors.WatchError("x"), Fault.BUG),
        (errors.ExecAbortError("x"), Fault.BUG),
        # ours
        (QueueUnavailable("x"), Fault.TRANSIENT),
        (QueueFull("x"), Fault.OVERLOAD),
        (Misconfigured("x"), Fault.CONFIG),
        (InvalidJob("x"), Fault.BUG),
        (IdTaken("x"), Fault.BUG),
        # everybody else's
        (ValueError("x"), Fault.BUG),
        (KeyboardInterrupt(), Fault.BUG),
    ],
    ids=lambda value: f"{type(value).__name__}: {value}"[:60] if isinstance(value, BaseException) else str(value),
)
def test_every_error_has_one_kind(error: BaseException, fault: Fault) -> None:
    assert classify(error) is fault


def test_the_cause_of_our_own_error_counts() -> None:
    ours = QueueUnavailable("x")
    ours.__cause__ = errors.MaxConnectionsError("Too many connections")
    assert classify(ours) is Fault.SATURATION


def test_every_error_class_of_redis_py_is_caught_by_the_tuple() -> None:
    known = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    ]
    uncaught = {kind.__name__ for kind in known if not issubclass(kind, REDIS_ERRORS)}
    assert uncaught <= {"ChildDeadlockedError", "IncorrectPolicyType"}


_WRITE = "redis.call('SET', KEYS[1], '1')"


def _said(client: redis.Redis) -> list[Fault]:
    """Return the faults of a writing command and of a writing script."""
    faults = []
    calls: list[tuple[Any, ...]] = [("SET", "x", "1"), ("EVAL", _WRITE, 1, "x")]
    for call in calls:
        with pytest.raises(errors.RedisError) as caught:
            client.execute_command(*call)
        faults.append(classify(caught.value))
    return faults


def test_a_real_server_is_understood_in_commands_and_scripts(redis_factory: Any) -> None:
    """Redis 6.2 hides the code of an error inside of a script; newer ones do not."""
    box: RedisBox = redis_factory()
    client = box.client()
    client.config_set("maxmemory", 1)
    assert _said(client) == [Fault.OVERLOAD] * 2
    client.config_set("maxmemory", 0)
    client.config_set("min-replicas-to-write", 1)
    assert _said(client) == [Fault.TRANSIENT] * 2
    client.config_set("min-replicas-to-write", 0)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert _said(client) == [Fault.TRANSIENT] * 2
    client.execute_command("REPLICAOF", "NO", "ONE")
    client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", "-set"])
    assert _said(client) == [Fault.CONFIG] * 2


def test_a_pause_is_between_its_bounds_and_grows() -> None:
    backoff = Backoff()
    pauses = [backoff.next() for _ in range(200)]
    assert all(0.05 <= pause <= 5 for pause in pauses)
    assert pauses[0] <= 0.1
    assert max(pauses[20:]) > 4
    assert min(pauses[20:]) < 1
    assert backoff.failures == 200


def test_a_pause_is_short_again_after_success() -> None:
    backoff = Backoff(base=0.01, cap=1)
    for _ in range(20):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.02


def test_what_only_a_person_can_mend_is_tried_seldom() -> None:
    backoff = Backoff()
    pauses = [backoff.next(Fault.CONFIG) for _ in range(30)]
    assert pauses[0] <= 0.1  # it may be a moment of a deployment
    assert all(15 <= pause <= 30 for pause in pauses[10:])


def test_pauses_are_finite_after_any_number_of_failures() -> None:
    backoff = Backoff(cap=2)
    pauses = [backoff.next() for _ in range(2_000)]  # powers of two from the 1,024th on are no floats
    assert all(0 <= pause <= 2 for pause in pauses)
