"""Stored answers for POST requests with the same ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header).

Keys belong to a user: two users may use the same key. A key identifies the method, the path, the query and the raw
bytes of the body; with another request it is refused (422). While the first request is in progress, the same key is
answered with 409. The answer is stored in Redis for ``API["keep_answers"]`` seconds; an answer with reserved jobs no
longer than their leases. Answers that change with time (5xx and 429), answers to be requested again
(``"complete": false``), and answers larger than 1 MiB are not stored. They are sent with ``Idempotent-Answer:
not-kept``, and the same key is a new request afterwards.

A process may die after executing a request and before storing the answer, or Redis may be unavailable then. The key is
"in progress" until 60 seconds after the request began, and the next request with it is executed again. A request that
takes longer than those 60 seconds is treated like a dead one. What is executed again is recognised, because these are
derived from the user, the key, the request and the position in it:

* The request ids of the calls to Redis that store jobs, settle them, or cancel, move, kick or discard them by id. Each
  call gets its first reply and changes nothing.
* The ids of produced jobs without an id, and the keys of their generations. When the request ids are forgotten, a job
  that still waits is replaced by an equal one. A job that has run, or is running, is stored and runs again under the
  same key, so that ``@exactly_once`` skips it.
* The entries in the inbox by which rows of durable jobs are written, cancelled or moved once for each request.

How long each of them lasts, and what is not recognised, is in ``docs/http.md`` ("What is recognised").
"""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any, Final

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections
from ..access.problems import Problem
from ..access.views import identity_of
from ..core.errors import DelayQError
from ..core.job import derived_key, digest_of, id_from
from ..core.redis.scripts import clear_errors
from ..settings.conf import conf

#: seconds after which an unfinished request counts as dead
UNDER_WAY: Final = 60
#: seconds that a mark lives until its request knows that it is stored: a Redis that stalled may store it only after the
#: request was refused
CLAIM_SECONDS: Final = 10
#: maximum size of a stored answer in bytes
LARGEST: Final = 1024 * 1024
HEADER: Final = "Idempotency-Key"

logger: Final = logging.getLogger("django_delayq.api")

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_HEADERS: Final = ("Content-Type", "Location", "Retry-After")
_RUNNING: Final = b"r"
_ANSWERED: Final = b"a"
_DIGEST: Final = 16


class Replayed(Exception):
    """Raised for a request that was answered before; ``response`` is that answer."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__()
        self.response = response


class IdempotencyRecord:
    """Place in Redis for the answer of a request with a key. Until then it holds a mark: the request is in progress."""

    def __init__(self, name: str, fingerprint: bytes, keep: float) -> None:
        self._name = name
        self._fingerprint = fingerprint
        self._keep_ms = int(keep * 1000)
        self._mark = _RUNNING + fingerprint + os.urandom(16)

    def begin(self) -> None:
        """Mark the request as in progress.

        Raises:
            Replayed: the request was answered before.
            Problem: it is in progress (409), or the key was used for another request (422).
            QueueUnavailable: Redis is unavailable, so the request must not be executed.
        """
        client = connections.hurried_broker().client
        with clear_errors():
            # The key found by SET NX may expire before GET.
            for _ in range(3):
                stored = client.set(self._name, self._mark, nx=True, ex=CLAIM_SECONDS)
                entry: bytes | None = self._mark if stored else client.get(self._name)
                if entry == self._mark:  # also if the command was sent again, and the first one had arrived
                    if client.expire(self._name, UNDER_WAY):
                        return
                elif entry is not None:
                    self._answer_from(entry, client.ttl(self._name))
        raise _in_progress(1)

    def _answer_from(self, entry: bytes, ttl: int) -> None:
        if entry[1 : 1 + _DIGEST] != self._fingerprint:
            raise Problem(
                "idempotency_mismatch",
                f"this {HEADER} was used for another request; take a new key for each request",
            )
        if entry[:1] == _RUNNING:
            raise _in_progress(max(1, ttl))
        raise Replayed(_unpack(entry[1 + _DIGEST :]))

    def job_id(self, place: int) -> str:
        """Return the id for a job without one: 20 characters, like random ids."""
        return id_from(self._derived("id", place)[:15])

    def job_key(self, place: int, ident: str) -> bytes:
        """Return the key of a job's generation."""
        return derived_key(self._derived("key", place, ident))

    def call(self, place: int = 0) -> bytes:
        """Return the request id for a call to Redis."""
        return self._derived("call", place)

    def _derived(self, *words: object) -> bytes:
        return digest_of(self._name.encode(), self._fingerprint, *[str(word).encode() for word in words])

    def keep(self, response: Response) -> None:
        """Store the answer as soon as it is rendered, or drop the key if such an answer is not stored."""
        if response.status_code >= 500 or response.status_code == 429 or _is_incomplete(response.data):
            self.drop()
            response["Idempotent-Answer"] = "not-kept"
            return
        response.add_post_render_callback(self._keep)

    def keep_at_most(self, ms: int) -> None:
        """Limit the time for which the answer is stored."""
        self._keep_ms = min(self._keep_ms, ms)

    def drop(self) -> None:
        """Store no answer, so that the same key is a new request."""
        self._replace(None)

    def _keep(self, response: HttpResponse) -> None:
        if len(response.content) > LARGEST:
            response["Idempotent-Answer"] = "not-kept"
            self._replace(None)
        else:
            self._replace(_ANSWERED + self._fingerprint + _pack(response))

    def _replace(self, answer: bytes | None) -> None:
        """Replace our mark by an answer (None = delete it). While Redis is unavailable the mark stays until it ends."""
        try:
            with clear_errors():
                client = connections.hurried_broker().client
                if client.get(self._name) != self._mark:
                    return  # the request took so long that it counted as dead, or this is a repeated call
                if answer is None:
                    client.delete(self._name)
                else:
                    client.set(self._name, answer, px=self._keep_ms)
        except DelayQError as error:
            logger.warning(
                "the response of a request with an %s was not stored; its key is in progress for up to %s s: %s",
                HEADER,
                UNDER_WAY,
                error,
            )


def begin(request: Request) -> IdempotencyRecord | None:
    """Claim the request's key and return the place for its answer; None if the request has no key.

    Raises:
        Replayed: the request was answered before.
        Problem: the key is malformed (400), is in progress (409), or was used for another request (422).
        QueueUnavailable: Redis is unavailable.
    """
    key = request.headers.get(HEADER) if request.method == "POST" else None
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise Problem("invalid", f"an {HEADER} is 1 to 255 visible ASCII characters, without spaces")
    request.data  # noqa: B018 (reads the body; an invalid one is refused here)
    raw: bytes = getattr(request, "delayq_raw", b"")
    place = digest_of(identity_of(request.user), key.encode()).hex()
    record = IdempotencyRecord(
        f"{connections.hurried_broker().prefix}:answer:{place}",
        digest_of(b"POST", request.get_full_path().encode(), raw),
        conf().api.keep_answers,
    )
    record.begin()
    return record


def _is_incomplete(answer: Any) -> bool:
    """Return True if the answer is incomplete, so that the client has to send the request again."""
    return isinstance(answer, dict) and answer.get("complete") is False


def _in_progress(seconds: float) -> Problem:
    text = f"a request with this {HEADER} is in progress; repeat it later to get its response"
    return Problem("idempotency_in_progress", text, retry_after=seconds)


def _pack(response: HttpResponse) -> bytes:
    headers = {name: response[name] for name in _HEADERS if name in response}
    head = json.dumps({"status": response.status_code, "headers": headers}).encode()
    return head + b"\n" + response.content


def _unpack(stored: bytes) -> HttpResponse:
    head, _, content = stored.partition(b"\n")
    answer = json.loads(head)
    response = HttpResponse(content, status=answer["status"])
    for name, value in answer["headers"].items():
        response[name] = value
    response["Idempotent-Replayed"] = "true"
    return response
