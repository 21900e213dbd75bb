"""A worker of this process that runs dry."""

from __future__ import annotations

from django_delayq import connections
from django_delayq.core.task import Registry, registry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf
from django_delayq.worker.worker import Worker


def run_dry(*queues: str, names: Registry = registry) -> None:
    """Run everything that is ready in some queues, one job at a time."""
    config = wiring.make_config(conf(), queues=queues or ("default",), threads=1, burst=True, dispatcher=False)
    worker = Worker(connections.broker(), names, config, wiring.make_hooks(conf()))
    worker.start()
    assert worker.done.wait(20)
    assert worker.stop(5)
