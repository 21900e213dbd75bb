"""Settings: SQLite, one queue of five shards, defaults otherwise."""

from __future__ import annotations

import os

SECRET_KEY = "benchmarks only"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_delayq", "benchmarks.site"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYQ = {
    "REDIS": f"unix://{os.environ['BENCH_SOCKET']}",
    "QUEUES": {"default": {"shards": int(os.environ.get("BENCH_SHARDS", "5"))}},
}
