"""A month of history for pages to be looked at: two busy tasks, one that fails, one that is late at night."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from django_delayq.history.rows import replace_days
from django_delayq.history.series import floor_hour
from tests.history.past import hour_of

HOUR = timedelta(hours=1)


def now() -> datetime:
    """The hour that goes on."""
    return floor_hour(datetime.now(UTC))


def lively_past(hours: int = 24 * 7, seed: int = 7) -> int:
    """So many hours up to now; the number of rows."""
    dice = random.Random(seed)
    end = now()
    rows: list[dict[str, Any]] = []
    for ago in range(hours):
        hour = end - HOUR * ago
        busy = 1 + math.sin((hour.hour - 6) / 24 * 2 * math.pi)
        late = hour.hour in (1, 2)
        for queue, task, runs, fails in (
            ("orders", "shop.cancel_unpaid", 60, 0.02),
            ("mail", "shop.send_reminder", 40, 0.0),
            ("crm", "crm.sync_customers", 20, 0.3),
            ("pictures", "shop.thumbnail", 10, 0.08),
        ):
            count = int(runs * busy * dice.uniform(0.7, 1.2))
            if not count:
                continue
            scale = 60_000 if late and queue == "crm" else 40
            lateness = [int(dice.expovariate(1 / scale)) for _ in range(count)]
            took = [int(dice.expovariate(1 / 120)) + 5 for _ in range(count)]
            bad = sum(dice.random() < fails for _ in range(count))
            rows.append(
                hour_of(
                    hour,
                    queue,
                    task,
                    late=lateness,
                    took=took,
                    failed=bad - bad // 3,
                    timeout=bad // 3,
                    buried=bad // 9,
                    retries=bad,
                    sla_missed=sum(one > 60_000 for one in lateness),
                )
            )
    replace_days(rows, {row["hour"].date() for row in rows})
    return len(rows)
