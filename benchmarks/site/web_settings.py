"""Settings of the same project with the HTTP API: tokens in a SQLite file, no middleware."""

from __future__ import annotations

import os

from benchmarks.site.settings import *  # noqa: F403
from benchmarks.site.settings import DELAYQ as _DELAYQ, INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "rest_framework", "rest_framework.authtoken"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["BENCH_DATABASE"],
        # As each kind of server is usually configured: under ASGI no two requests share a thread, so no connection is
        # reused.
        "CONN_MAX_AGE": None if os.environ.get("BENCH_KEEPS_CONNECTIONS") == "True" else 0,
    }
}
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "benchmarks.site.web"
DELAYQ = {**_DELAYQ, "QUEUES": {"feed": {"kind": "pull", "shards": 5}}}
