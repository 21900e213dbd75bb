"""The peers: each in a virtual environment of its own with pinned versions, made when it is first needed."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.processes import ROOT, environment, program, project_python
from benchmarks.server import Server

ENVIRONMENTS = ROOT / ".bench"
REDIS_PY = "redis==8.1.0"


@dataclass(frozen=True, slots=True)
class Peer:
    """One contender.

    ``worker`` makes its worker command (one process, five threads) from the path of its Python; ``remaining`` counts
    what is not finished yet, in flight included, as far as the peer keeps it in Redis; ``fill`` is the verb that puts
    the jobs in.
    """

    name: str
    requirements: tuple[str, ...]
    worker: Callable[[str], Sequence[str]]
    remaining: Callable[[redis.Redis], int]
    fill: str = "fill"

    def python(self) -> str:
        """Its interpreter; the environment is created on the first call."""
        if not self.requirements:
            return project_python()
        folder = ENVIRONMENTS / "_".join(part.replace("==", "-").replace("[redis]", "") for part in self.requirements)
        python = folder / "bin" / "python"
        ready = folder / ".ready"
        if not ready.exists():
            print(f"   making {folder.relative_to(ROOT)} ...", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            command = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *self.requirements,
            ]
            subprocess.run(command, check=True, timeout=600, capture_output=True)
            ready.touch()
        return str(python)

    def program(self, *arguments: str) -> list[str]:
        """The command of its program: ``fill N`` or ``enqueue N``."""
        return [self.python(), program(self.name), *arguments]

    def environment(self, server: Server, **extra: str) -> dict[str, str]:
        """What its program and its worker need to know."""
        names = {"PYTHONPATH": f"{ROOT}:{Path(program(self.name)).parent}", "BENCH_SOCKET": server.socket}
        return environment(**{**names, "DJANGO_SETTINGS_MODULE": "benchmarks.site.settings", **extra})


def _celery_worker(python: str) -> list[str]:
    # Without gossip, mingle and worker heartbeat: a single worker gains nothing from them. Prefetch is set in the app.
    silent = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    return [python, "-m", "celery", "-A", "celery_app", "worker", "--pool", "threads", "--concurrency", "5", *silent]


def _dramatiq_worker(python: str) -> list[str]:
    return [python, "-m", "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "5"]


def _huey_worker(python: str) -> list[str]:
    return [
        python,
        "-m",
        "huey.bin.huey_consumer",
        "huey_app.huey",
        "--workers",
        "5",
        "--worker-type",
        "thread",
        "--quiet",
        "--no-periodic",
    ]


def _our_worker(python: str) -> list[str]:
    return [python, "-m", "django", "delayq_worker", "--processes", "1", "--threads", "5"]


def _our_remaining(client: redis.Redis) -> int:
    from benchmarks.core import counts_of

    return counts_of(client)


OURS = Peer("delayq_app", (), _our_worker, _our_remaining)
DRAMATIQ = Peer(
    "dramatiq_app",
    ("dramatiq[redis]==2.2.1", REDIS_PY),
    _dramatiq_worker,
    lambda client: int(client.hlen("dramatiq:default.msgs")),
)
CELERY = Peer(
    "celery_app",
    ("celery[redis]==5.7.0", REDIS_PY),
    _celery_worker,
    lambda client: int(client.llen("celery")) + int(client.hlen("unacked")),
)
HUEY = Peer(
    "huey_app",
    ("huey==3.5.4", REDIS_PY),
    _huey_worker,
    lambda client: int(client.llen("huey.redis.bench")),
)
BY_NAME = {"ours": OURS, "dramatiq": DRAMATIQ, "celery": CELERY, "huey": HUEY}
