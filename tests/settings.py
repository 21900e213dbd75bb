"""Django settings of the test suite, and of the worker processes that it starts.

From the environment: ``DELAYQ_TEST_URL`` and ``DELAYQ_TEST_PREFIX`` (which Redis; in the test process itself the
``delayq`` fixture sets them), ``DELAYQ_TEST_DB`` ("sqlite", the default; "postgres" or "mariadb": a server is started;
or a ``postgresql://`` or ``mariadb://`` URL of a database that exists).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent
sys.path.append(str(BASE_DIR.parent / "example_project"))  # the example shop is tested here too


def _database() -> dict[str, Any]:
    wanted = os.environ.get("DELAYQ_TEST_DB", "sqlite")
    if wanted == "postgres":
        from tests.support.postgres_box import session_box

        return session_box().admin.django
    if wanted.startswith("mariadb"):
        from tests.support import maria_box

        name, _, server = wanted.removeprefix("mariadb").removeprefix("://").partition("?")
        return maria_box.django(server, name) if server else maria_box.session_box().django
    if wanted.startswith("postgresql://"):
        from tests.support.postgres_box import PostgresDatabase

        return PostgresDatabase.from_url(wanted).django
    name = wanted.removeprefix("sqlite").removeprefix(":///")
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name or ":memory:",
        # A file rather than shared memory, so that threads and processes really are separate users of it.
        "TEST": {"NAME": str(Path(tempfile.gettempdir()) / f"dq-test-{os.getpid()}.sqlite3")},
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
    }


DELAYQ = {
    # Nobody listens there: a test that forgot the `delayq` fixture is told so at once.
    "REDIS": os.environ.get("DELAYQ_TEST_URL", "redis://127.0.0.1:1/0"),
    "PREFIX": os.environ.get("DELAYQ_TEST_PREFIX", "delayq-test"),
}

SECRET_KEY = "for the tests only"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": _database()}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
ROOT_URLCONF = "tests.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "django_delayq",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
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
