"""Pages of the admin over a deployment with many queues, and over full tables of failed and buried jobs.

Arguments: queues, rows of each table, requests of a page. Redis and the database come from the environment. Prints one
JSON line: of each page the median duration and the median CPU time of a response, and the CPU time of a fixed loop, ms.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from tests.support.postgres_box import PostgresDatabase

WORKERS = 20
THREADS = 8
BASE = "/admin/django_delayq/"
CHUNK = 2_000
TASKS, ERRORS, REASONS = 40, 12, 5
#: number of queues with overdue jobs
LATE = 5
#: additions of the loop that the CPU times are compared with
LOOP = 1_000_000


def main() -> None:
    queues, rows, requests = map(int, sys.argv[1:])
    configure()
    call_command("migrate", verbosity=0)
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada", password="-"))
    fill_redis(queues)
    fill_tables(queues, rows)
    pages = {name: measured(lambda url=url: client.get(url), requests) for name, url in dashboard().items()}
    parts = dashboard()["dashboard, parts"]
    pages["dashboard, parts of a shared snapshot"] = measured(lambda: client.get(parts), requests, shared=True)
    for table in ("failedjob", "morguejob"):
        for name, url in lists(client, table, rows).items():
            pages[name] = measured(lambda url=url: client.get(url), 3)
    print(json.dumps({"pages": pages, "loop_ms": measured(loop, 10)[1]}))


def configure() -> None:
    url = os.environ["BENCH_DB"]
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:")}
    installed = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
    middlewares = ("sessions.middleware.SessionMiddleware", "auth.middleware.AuthenticationMiddleware")
    processors = ("django.template.context_processors.request", "django.contrib.auth.context_processors.auth")
    settings.configure(
        INSTALLED_APPS=[*(f"django.contrib.{name}" for name in installed), "django_delayq"],
        MIDDLEWARE=[
            *(f"django.contrib.{name}" for name in middlewares),
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": [*processors, "django.contrib.messages.context_processors.messages"]},
            }
        ],
        DATABASES={"default": lite if url.startswith("sqlite:") else PostgresDatabase.from_url(url).django},
        DELAYQ={"REDIS": os.environ["BENCH_REDIS"]},
        ROOT_URLCONF=__name__,
        STATIC_URL="/static/",
        ALLOWED_HOSTS=["testserver"],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        SECRET_KEY="-",
    )
    django.setup()
    from django.contrib import admin
    from django.urls import path

    globals()["urlpatterns"] = [path("admin/", admin.site.urls)]


# -- the world ---------------------------------------------------------------------------------------------------------


def fill_redis(queues: int) -> None:
    """Create queues with jobs, and workers that run some of them."""
    from django_delayq.connections import broker
    from django_delayq.core.job import NewJob

    here = broker()
    here.client.flushdb()
    now_ms = int(here.now_ms())
    names = [f"queue-{number:03}" for number in range(queues)]
    for number, name in enumerate(names):
        queue = here.queue(name, shards=2)
        first = -5 if number < LATE else 1  # a few queues are late, as on a bad day
        queue.schedule_many([NewJob(f"job-{n}", "shop.pay", delay_ms=(n + first) * 60_000) for n in range(number % 20)])
    for number in range(WORKERS):
        jobs = [
            {"slot": slot, "queue": names[slot % queues], "id": f"job-{slot}", "task": "shop.pay", "ids": 1}
            | {"started_ms": now_ms - 1_000 * slot}
            for slot in range(THREADS // 2)
        ]
        worker = {"host": f"app-{number}", "pid": number, "queues": names[:6], "threads": THREADS, "rss_mib": 84}
        here.announce(f"worker@app-{number}:1", {**worker, "running": len(jobs), "dispatcher": True, "jobs": jobs})


def fill_tables(queues: int, rows: int) -> None:
    """Fill both tables with jobs of many queues, tasks and errors, the last one a month ago."""
    from django.db import connection

    from django_delayq.models import FailedJob, MorgueJob

    now = timezone.now()
    for model in (FailedJob, MorgueJob):
        model.objects.all().delete()
        for begin in range(0, rows, CHUNK):
            model.objects.bulk_create(row(model, number, now, queues, rows) for number in range(begin, begin + CHUNK))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # PostgreSQL does that itself after a minute


def row(model: Any, number: int, now: Any, queues: int, rows: int) -> Any:
    at = now - timedelta(days=30) * number / rows
    more = {"failed_at": at} if model.__name__ == "FailedJob" else {"buried_at": at, "reason": f"r{number % REASONS}"}
    return model(
        queue=f"queue-{number % queues:03}",
        job_id=f"order-{number}",
        task=f"shop.tasks.task_{number % TASKS}",
        key=uuid.uuid4(),
        shard=0,
        priority=4,
        failures=1 + number % 30,
        crashes=0,
        due_at=now + timedelta(hours=1),
        error_class=f"shop.errors.Error{number % ERRORS}",
        error_message="no answer from the gateway",
        error_traceback="  File\n" * 100,
        args=b"[1]",
        updated_us=int(at.timestamp() * 1_000_000),
        **more,
    )


# -- the pages ---------------------------------------------------------------------------------------------------------


def dashboard() -> dict[str, str]:
    """Return the addresses of the dashboard: the page, what the script asks for, and that with charts."""
    base = f"{BASE}dashboard/"
    return {"dashboard": base, "dashboard, parts": f"{base}parts/", "dashboard, all parts": f"{base}parts/?all=1"}


def lists(client: Any, table: str, rows: int) -> dict[str, str]:
    """Return the addresses of a list: its first page, the last one, a search, and choices of each filter."""
    base = f"{BASE}{table}/"
    page = client.get(base).content.decode()
    links = {unescape(link) for link in re.findall(r'href="(\?[^"]+)"', page)}
    filters: dict[str, list[str]] = {}
    for link in sorted(links):
        names = re.findall(r"[?&]([a-z_]+)=", link)
        if names and names[0] not in ("o", "p", "q"):
            filters.setdefault(names[0], []).append(link)
    chosen = {f"{table}: {link}": f"{base}{link}" for some in filters.values() for link in (*some[:2], *some[2:][-1:])}
    return {
        table: base,
        f"{table}: last page": f"{base}?p={min(100, rows // 100)}",
        f"{table}: search": f"{base}?q=order-99",
        **chosen,
    }


def measured(act: Callable[[], Any], times: int, *, shared: bool = False) -> tuple[float, float]:
    """Return the median duration and CPU time of a call in ms; each begins with a shared snapshot, or without one."""
    from django_delayq.admin.dashboard import SNAPSHOTS

    act()
    walls, cpus = [], []
    for _ in range(times):
        now = time.monotonic()
        SNAPSHOTS._kept = {span: (now, kept) for span, (_, kept) in SNAPSHOTS._kept.items() if shared}
        began, cpu = time.perf_counter(), time.process_time()
        answer = act()
        cpus.append(time.process_time() - cpu)
        walls.append(time.perf_counter() - began)
        if getattr(answer, "status_code", 200) != 200:
            raise RuntimeError(f"status {answer.status_code}")
    return statistics.median(walls) * 1000, statistics.median(cpus) * 1000


def loop() -> int:
    return sum(number for number in range(LOOP))


if __name__ == "__main__":
    main()
