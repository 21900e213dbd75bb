"""Dispatcher duty that deletes old rows: refused rows, and entries of ``@exactly_once``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from ..models import InboxEntry, OutboxJob
from ..settings.conf import Conf
from .durability import has_table
from .rows import ahead, table

logger: Final = logging.getLogger("django_delayq.outbox")

#: seconds between two turns
EVERY: Final = 3600.0
#: rows of one statement
BATCH: Final = 500
_DAY: Final = 86_400.0


class Retention:
    """Duty that deletes old rows of one database.

    Args:
        settings: the project's settings; ``outbox`` and ``inbox`` define the retention.
    """

    def __init__(self, settings: Conf, alias: str) -> None:
        self._settings = settings
        self._alias = alias

    def run(self) -> float:
        """Delete all rows that are old enough, in batches. Return the seconds until the next turn."""
        refused = (
            table(self._alias)
            .filter(state=OutboxJob.State.REFUSED)
            .annotate(refused_at=Coalesce("claimed_until", "created_at"))
            .filter(refused_at__lt=ahead(-self._settings.outbox.keep_days * _DAY))
        )
        entries = InboxEntry.objects.using(self._alias).filter(
            created_at__lt=ahead(-self._settings.inbox.keep_days * _DAY)
        )
        for what, rows in (("refused jobs of the outbox", refused), ("entries of the inbox", entries)):
            count = purge(rows)
            if count:
                logger.info("forgot %d old %s", count, what)
        return EVERY


def forget_queue(aliases: Sequence[str], queue: str) -> int:
    """Delete the outbox rows of a queue that was deleted with all its jobs. Return their number."""
    return sum(purge(table(alias).filter(queue=queue)) for alias in aliases if has_table(alias))


def purge(rows: QuerySet[Any]) -> int:
    """Delete rows in short transactions. Return their number."""
    count = 0
    while pks := list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH]):
        count += rows.filter(pk__in=pks).delete()[0]
        if len(pks) < BATCH:
            break
    return count
