"""The duty of forgetting what nobody needs any more: refused rows, and what ``@exactly_once`` remembers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from ..models import InboxEntry, OutboxJob
from ..settings.conf import Conf
from .rows import ahead, table
from .stock import is_there

logger: Final = logging.getLogger("django_delayq.outbox")

#: seconds between two turns
EVERY: Final = 3600.0
#: rows of one statement
BATCH: Final = 500
_DAY: Final = 86_400.0


class Retention:
    """See the module.

    Args:
        settings: the project's; ``outbox`` and ``inbox`` say how long what is kept.
        alias: of the database.
    """

    def __init__(self, settings: Conf, alias: str) -> None:
        self._settings = settings
        self._alias = alias

    def run(self) -> float:
        """Forgets all that is old enough, in batches."""
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
    """Deletes the outbox of a queue that was deleted with all its jobs; returns how many rows there were."""
    return sum(purge(table(alias).filter(queue=queue)) for alias in aliases if is_there(alias))


def purge(rows: QuerySet[Any]) -> int:
    """Deletes rows in short transactions; returns how many."""
    count = 0
    while pks := list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH]):
        count += rows.filter(pk__in=pks).delete()[0]
        if len(pks) < BATCH:
            break
    return count
