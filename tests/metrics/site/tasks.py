"""Its tasks."""

from __future__ import annotations

from django_delayq import schedule, task


@task(name="site.remind", queue="site")
def remind(order: int) -> None:
    if order > 0:
        schedule(remind, -order, delay=0.3)
