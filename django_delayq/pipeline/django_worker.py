"""Django in Spark's workers, set up with the settings, the path and the databases of the driver's project."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..core.errors import Misconfigured
from .errors import PipelineError

#: environment variable of the workers: alias -> name of the database that the driver uses for it
DATABASES_ENV: Final = "DELAYQ_PIPELINE_DATABASES"
_SETTINGS_ENV: Final = "DJANGO_SETTINGS_MODULE"


def environ() -> dict[str, str]:
    """Return the environment variables that describe this process's project to a worker."""
    from django.db import connections

    module = os.environ.get(_SETTINGS_ENV)
    if not module:
        raise Misconfigured(
            "Spark's workers cannot read a table of Django without its settings: put them into a module, and "
            f"name it in the environment variable {_SETTINGS_ENV}"
        )
    names = {}
    for alias in connections:
        settings = connections.settings[alias]
        name = str(settings.get("NAME") or "")
        is_path = "sqlite" in settings["ENGINE"] and name and ":" not in name
        names[alias] = os.path.abspath(name) if is_path else name
    return {_SETTINGS_ENV: module, DATABASES_ENV: json.dumps(names), "PYTHONPATH": os.pathsep.join(_own_path())}


def _own_path() -> Iterator[str]:
    """Yield the folders from which this process imports modules that are not installed."""
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for entry in dict.fromkeys(os.path.abspath(entry) for entry in sys.path):
        if os.path.isdir(entry) and not entry.startswith(installed):
            yield entry


@contextmanager
def django_ready() -> Iterator[None]:
    """Set up Django in this process; close its connections at the end, because the process may be reused."""
    from django.apps import apps
    from django.db import connections

    if not apps.ready:
        _set_up()
    try:
        yield
    finally:
        connections.close_all()


def _set_up() -> None:
    import django
    from django.db import connections

    if not os.environ.get(_SETTINGS_ENV):
        raise Misconfigured(
            "Spark's worker has no settings of Django. Call django_delayq.pipeline.table.attach(spark) in a "
            f"process of the project, or set {_SETTINGS_ENV} for the workers (spark.executorEnv.…)"
        )
    zone = os.environ.get("TZ")
    try:
        django.setup()
    except ImportError as error:
        raise PipelineError(
            f"Spark's worker cannot set up Django ({error}); the project has to be importable there: put its folder "
            "into PYTHONPATH, on every machine that works for Spark"
        ) from error
    finally:
        # Django changes the process's time zone to that of the settings, but other code in this process expects UTC.
        if zone is None:
            os.environ.pop("TZ", None)
        else:
            os.environ["TZ"] = zone
        time.tzset()
    for alias, name in json.loads(os.environ.get(DATABASES_ENV) or "{}").items():
        if alias in connections:
            connections.settings[alias]["NAME"] = name
