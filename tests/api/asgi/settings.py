"""Settings of the API under ASGI: those of the suite, with what long polls need to be watched."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import DELAYQ as _DELAYQ, MIDDLEWARE as _MIDDLEWARE

#: reserves that may wait at once in this server
MOST_WAITS = 120
#: of them those of one user
MOST_OF_ONE = 110

ROOT_URLCONF = "tests.api.asgi.urls"
MIDDLEWARE = ["tests.api.asgi.watched.hold_back", *_MIDDLEWARE]
DELAYQ = {
    **_DELAYQ,
    "QUEUES": {"feed": {"kind": "pull"}, "wide": {"kind": "pull", "shards": 4}},
    "API": {"max_waiting": MOST_WAITS, "max_waiting_per_user": MOST_OF_ONE},
}
