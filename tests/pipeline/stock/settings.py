"""Settings of Spark's workers in these tests: another zone than UTC, and tables with every kind of field."""

from tests.settings import *  # noqa: F403

TIME_ZONE = "America/Chicago"
INSTALLED_APPS = [*INSTALLED_APPS, "tests.pipeline.stock"]  # noqa: F405
