"""URLs linked from the dashboard for one user: "" where the user or the site has no such page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from .worker_commands import WORKER_LABELS, WORKER_VERBS

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .redis_pages import RedisPages


class DashboardUrls:
    """URLs of the queue pages and the job pages.

    Attributes:
        see_jobs: True if the user may view jobs.
        may_pause: True if the user may pause queues.
    """

    def __init__(self, pages: RedisPages, request: HttpRequest) -> None:
        label = pages.opts.app_label
        self._pages = pages
        self._queues = request.user.has_perm(f"{label}.view_queueentry")
        self.may_pause: bool = self._queues and request.user.has_perm(f"{label}.pause_queueentry")
        self.see_jobs: bool = request.user.has_perm(f"{label}.view_livejob")
        allowed = {word: f"{label}.{verb}_queueentry" for word, verb in WORKER_VERBS.items()} if self._queues else {}
        self._words = [word for word, permission in allowed.items() if request.user.has_perm(permission)]
        self._jobs = pages.url_of("livejob", "changelist") if self.see_jobs else ""

    def queue(self, name: str) -> str:
        """Return the URL of a queue's page."""
        return self._pages.url_of("queueentry", "change", name) if self._queues else ""

    def verb(self, verb: str, name: str) -> str:
        """Return the URL that pauses or resumes a queue."""
        return self._pages.url_of("queueentry", verb, name) if self.may_pause else ""

    def commands(self, worker: str) -> list[tuple[str, str]]:
        """Return (label, URL) of the commands that the user may send to a worker."""
        return [(str(WORKER_LABELS[word]), self._pages.url_of("queueentry", word, worker)) for word in self._words]

    def jobs(self, place: str, queue: str = "") -> str:
        """Return the URL of the job list that contains the jobs of a place, of a queue or of all."""
        listed = "waiting" if place in ("delayed", "ready") else place
        query = {"queue": queue, "place": listed} if queue else {"place": listed}
        return f"{self._jobs}?{urlencode(query)}" if self._jobs else ""

    def job(self, queue: str, ident: str) -> str:
        """Return the URL of a job's page."""
        return self._pages.url_of("livejob", "change", f"{queue}/{ident}") if self.see_jobs else ""
