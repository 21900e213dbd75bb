"""URLs linked from the dashboard for one user: "" where the user or the site has no such page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .redis_pages import RedisPages

__all__ = ["ANY", "Addresses"]

#: placeholder for a queue or a job in a URL pattern for the script; the admin quotes none of its letters
ANY: Final = "DQ-ANY"


class Addresses:
    """URLs of the queue pages and the job pages.

    Attributes:
        see_jobs: True if the user may view jobs.
    """

    def __init__(self, pages: RedisPages, request: HttpRequest) -> None:
        label = pages.opts.app_label
        self._pages = pages
        self._queues = request.user.has_perm(f"{label}.view_queueentry")
        self._verbs = self._queues and request.user.has_perm(f"{label}.pause_queueentry")
        self.see_jobs: bool = request.user.has_perm(f"{label}.view_livejob")

    def queue(self, name: str) -> str:
        """Return the URL of a queue's page."""
        return self._pages.url_of("queueentry", "change", name) if self._queues else ""

    def verb(self, verb: str, name: str) -> str:
        """Return the URL that pauses or resumes a queue."""
        return self._pages.url_of("queueentry", verb, name) if self._verbs else ""

    def jobs(self, queue: str = "", place: str = "") -> str:
        """Return the URL of the job list of a queue, or of all, at a place."""
        base = self._pages.url_of("livejob", "changelist") if self.see_jobs else ""
        asked = urlencode({name: value for name, value in (("queue", queue), ("place", place)) if value})
        return f"{base}?{asked}" if base and asked else base

    def job(self, name: str) -> str:
        """Return the URL of a job's page; ``name`` is ``<queue>/<id>``."""
        return self._pages.url_of("livejob", "change", name) if self.see_jobs else ""

    @property
    def patterns(self) -> dict[str, str]:
        """URL patterns for the script, which replaces ``ANY`` with a name."""
        return {
            "queue_url": self.queue(ANY),
            "pause_url": self.verb("pause", ANY),
            "resume_url": self.verb("resume", ANY),
            "jobs_url": self.jobs(),
            "job_url": self.job(ANY),
        }
