"""Settings of the example shop.

Everything that a demo or a test may change comes from the environment (``SHOP_*``; those of the shop itself are in
``shop/conf.py``). By default the shop runs on a SQLite file and an embedded Redis in this folder.
"""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent


# --- Redis -----------------------------------------------------------------------------------------------------------
REDIS_URL = os.environ.get("SHOP_REDIS_URL")
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
if REDIS_URL:
    # The queue's alone: clear() of a cache empties the whole database, so one that is used as a cache has another.
    CACHES["jobs"] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL}

# --- the queue -------------------------------------------------------------------------------------------------------
DELAYQ = {
    "REDIS": "jobs" if REDIS_URL else None,  # the alias of a cache; None = an embedded Redis in EMBEDDED_DIR
    "EMBEDDED_DIR": BASE_DIR / ".delayq",
    "PREFIX": "shop",
    "WORKER": {"grace": 5.0},  # no task of this shop runs longer
    "CONTEXT": {"request": "shop.tracing.request_id"},  # jobs carry the id of the request that scheduled them
    "QUEUES": {"greetings": {"shards": 4}},  # there are many nightly greetings
    # Events wait in Redis until the history reads them; maximum number per shard.
    "EVENTS": {"cap": int(os.environ.get("SHOP_EVENTS_CAP", "50000"))},
    "PIPELINE": {
        "root": os.environ.get("SHOP_HISTORY", str(BASE_DIR / ".delayq" / "history")),
        "sla": {"shop.cancel_order": 5.0, "*": 60.0},  # cancellations must be on time, whatever else has to wait
    },
}

# --- Django ----------------------------------------------------------------------------------------------------------
DEBUG = os.environ.get("SHOP_DEBUG", "1") == "1"
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "for the example shop on this machine only, not a secret")
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "django_delayq",
    "shop",
]
MIDDLEWARE = [
    "shop.tracing.mark_requests",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "shop_site.urls"
WSGI_APPLICATION = "shop_site.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", str(BASE_DIR / "shop.sqlite3")),
        # IMMEDIATE takes the write lock at BEGIN, so that web server and worker wait for each other instead of failing.
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = os.environ.get("SHOP_TIME_ZONE", "UTC")
LANGUAGE_CODE = "en"
STATIC_URL = "static/"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"request": {"()": "shop.tracing.RequestFilter"}},
    "formatters": {"plain": {"format": "[%(request_id)8s] %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["request"], "formatter": "plain"}},
    "loggers": {
        "shop": {"handlers": ["console"], "level": "INFO", "propagate": False},
        "django_delayq": {"handlers": ["console"], "level": "INFO", "propagate": False},
        # One line per request would hide the demo's own output.
        "django.server": {"handlers": ["console"], "level": "WARNING", "propagate": False},
    },
}
