"""Answers that are given again to the same ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header), for POST.

The key is the user's own: two users may use the same one. It stands for the method, the path, the query and the raw
bytes of the body; with anything else it is refused (422). While the first request is under way the same key is answered
with 409. Its answer is kept in Redis for ``API["keep_answers"]`` seconds; jobs that were reserved no longer than they
are held. Not kept is what changes by waiting (5xx and 429), what is to be asked again (``"complete": false``), or has
more than 1 MiB: it is given once, with ``Idempotent-Answer: not-kept``, and the same key is a new request afterwards.

What is guaranteed:

* An answer that was kept is given again, and nothing is done a second time, as long as it is kept and Redis has it.
* A request that is refused at its beginning because Redis does not answer does nothing. Its mark may reach Redis later
  and then holds the key for 10 seconds (60, if Redis stalled between storing the mark and extending it).
* A process may die after it has done what was asked for and before the answer is kept, or Redis may not answer then.
  Then the key is "in progress" until 60 seconds after the request began, and afterwards the request is carried out once
  more. A request that takes longer than those 60 seconds counts as dead as well.
* The request ids of the calls to Redis that put jobs in, end them, or cancel, move, kick or discard them by their ids
  follow from the user, the key, the request and the place in it. So a request that is carried out once more, after a
  503 or a death, is recognised: each call gets its first reply and changes nothing. This holds for two minutes or
  100,000 calls of a shard, whichever ends first, and not if Redis loses its data. Jobs that were refused because the
  queue was full or paused are tried again. Of ends, those are recognised that all had the same outcome.
* The ids of produced jobs that have none, and the keys of their generations, follow from the same. So after those two
  minutes a job that still waits is replaced by its like. One that has run, or is running, is stored and runs again,
  under the same key, so that ``@exactly_once`` skips it; ``on_conflict: "error"`` refuses it while the first one lives.
* Rows of durable jobs are written once for each request, whatever becomes of Redis: an entry in the inbox remembers the
  request for ``INBOX["keep_days"]`` days.
* Reserving jobs again takes other jobs; the first ones come back when their leases end.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from typing import TYPE_CHECKING, Any, Final

from django.http import HttpResponse

from ..core.errors import DelayQError
from ..core.job import id_from, not_durable
from ..core.redis.scripts import clear_errors
from ..settings.conf import conf
from . import brokers
from .permissions import identity_of
from .problems import Problem

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.response import Response

#: seconds after which a request that did not end counts as dead
UNDER_WAY: Final = 60
#: seconds that a mark lives until its request knows that it is stored: a Redis that stalled may store it only after the
#: request was refused
CLAIM_SECONDS: Final = 10
#: bytes of the largest answer that is kept
LARGEST: Final = 1024 * 1024
HEADER: Final = "Idempotency-Key"

logger: Final = logging.getLogger("django_delayq.api")

_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_HEADERS: Final = ("Content-Type", "Location", "Retry-After")
_RUNNING: Final = b"r"
_ANSWERED: Final = b"a"
_DIGEST: Final = 32


class Replayed(Exception):
    """The request was answered before; ``response`` is that answer."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__()
        self.response = response


class Kept:
    """Where the answer of a request with a key is to be kept; until then it says that the request is under way."""

    def __init__(self, name: str, fingerprint: bytes, keep: float) -> None:
        self._name = name
        self._fingerprint = fingerprint
        self._keep_ms = int(keep * 1000)
        self._mark = _RUNNING + fingerprint + os.urandom(16)

    def begin(self) -> None:
        """Says that the request is under way.

        Raises:
            Replayed: it was answered already.
            Problem: it is under way (409), or the key was used for something else (422).
            QueueUnavailable: Redis cannot be asked, so nothing is done.
        """
        client = brokers.broker().client
        with clear_errors():
            # What was there may end between the two looks.
            for _ in range(3):
                stored = client.set(self._name, self._mark, nx=True, ex=CLAIM_SECONDS)
                found: bytes | None = self._mark if stored else client.get(self._name)
                if found == self._mark:  # also if the command was sent again, and the first one had arrived
                    if client.expire(self._name, UNDER_WAY):
                        return
                elif found is not None:
                    self._meet(found, client.ttl(self._name))
        raise _in_progress(1)

    def _meet(self, found: bytes, ttl: int) -> None:
        if found[1 : 1 + _DIGEST] != self._fingerprint:
            raise Problem(
                422,
                "idempotency_mismatch",
                f"this {HEADER} was used for another request; take a new key for each request",
            )
        if found[:1] == _RUNNING:
            raise _in_progress(max(1, ttl))
        raise Replayed(_unpack(found[1 + _DIGEST :]))

    def job_id(self, place: int) -> str:
        """Return the id of a job that has none. 20 characters, as random ones have."""
        return id_from(self._derived("id", place)[:15])

    def job_key(self, place: int, ident: str) -> bytes:
        """Return the key of a job's generation."""
        return not_durable(self._derived("key", place, ident)[:16])

    def call(self, place: int = 0) -> bytes:
        """Return the request id of a call to Redis."""
        return self._derived("call", place)[:16]

    def _derived(self, *words: object) -> bytes:
        return _digest(self._name.encode(), self._fingerprint, *[str(word).encode() for word in words])

    def keep(self, response: Response) -> None:
        """Keeps the answer as soon as it is written down."""
        if response.status_code >= 500 or response.status_code == 429 or _goes_on(response.data):
            self.drop()
            response["Idempotent-Answer"] = "not-kept"
            return
        response.add_post_render_callback(self._keep)

    def keep_at_most(self, ms: int) -> None:
        """The answer will be worth nothing after so long."""
        self._keep_ms = min(self._keep_ms, ms)

    def drop(self) -> None:
        """Nothing is kept: the same key is a new request."""
        self._replace(None)

    def _keep(self, response: HttpResponse) -> None:
        if len(response.content) > LARGEST:
            response["Idempotent-Answer"] = "not-kept"
            self._replace(None)
        else:
            self._replace(_ANSWERED + self._fingerprint + _pack(response))

    def _replace(self, answer: bytes | None) -> None:
        """Put something in the place of our mark. While Redis does not answer the mark stays until it ends."""
        try:
            self._put(answer)
        except DelayQError as error:
            logger.warning(
                "the answer of a request with an %s is not kept; its key is in progress for up to %s s: %s",
                HEADER,
                UNDER_WAY,
                error,
            )

    def _put(self, answer: bytes | None) -> None:
        """Puts it in the place of our mark, if that is still there.

        Raises:
            QueueUnavailable: Redis cannot be asked.
        """
        with clear_errors():
            client = brokers.broker().client
            if client.get(self._name) != self._mark:
                return  # it took so long that it counted as dead
            if answer is None:
                client.delete(self._name)
            else:
                client.set(self._name, answer, px=self._keep_ms)


def begin(request: Request) -> Kept | None:
    """What is known of the request's key; None if it has none.

    Raises:
        Replayed: it was answered before.
        Problem: the key cannot be one (400), is in progress (409), or was used for another request (422).
        QueueUnavailable: Redis cannot be asked.
    """
    if request.method != "POST":
        return None
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise Problem(400, "invalid", f"an {HEADER} is 1 to 255 visible ASCII characters, without spaces")
    request.data  # noqa: B018 (reads the body; a wrong one is refused here)
    raw: bytes = getattr(request, "delayq_raw", b"")
    path = request.get_full_path()
    words = (request.method.encode(), path.encode(), raw)
    kept = Kept(
        f"{brokers.broker().prefix}:answer:{_digest(identity_of(request.user), key.encode()).hex()}",
        _digest(*words),
        conf().api.keep_answers,
    )
    kept.begin()
    return kept


def calls(kept: Kept | None, number: int) -> list[bytes | None]:
    """Return the request ids of so many calls to Redis; None, which is a new one, for a request without a key."""
    return [None if kept is None else kept.call(place) for place in range(number)]


def _goes_on(answer: Any) -> bool:
    """Whether it says that the same is to be asked again, for the rest."""
    return isinstance(answer, dict) and answer.get("complete") is False


def _digest(*words: bytes) -> bytes:
    found = hashlib.sha256()
    for word in words:
        found.update(b"%d:" % len(word))
        found.update(word)
    return found.digest()


def _in_progress(seconds: float) -> Problem:
    said = f"a request with this {HEADER} is under way; ask for its answer later"
    return Problem(409, "idempotency_in_progress", said, retry_after=seconds)


def _pack(response: HttpResponse) -> bytes:
    headers = {name: response[name] for name in _HEADERS if name in response}
    head = json.dumps({"status": response.status_code, "headers": headers}).encode()
    return head + b"\n" + response.content


def _unpack(stored: bytes) -> HttpResponse:
    head, _, content = stored.partition(b"\n")
    known = json.loads(head)
    response = HttpResponse(content, status=known["status"])
    for name, value in known["headers"].items():
        response[name] = value
    response["Idempotent-Replayed"] = "true"
    return response
