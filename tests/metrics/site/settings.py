"""Its settings."""

from tests.settings import *  # noqa: F403
from tests.settings import DELAYQ, INSTALLED_APPS, MIDDLEWARE

INSTALLED_APPS = [*INSTALLED_APPS, "tests.metrics.site"]
ROOT_URLCONF = "tests.metrics.site.urls"
MIDDLEWARE = ["tests.metrics.site.telemetry.traced", *MIDDLEWARE]
DELAYQ = {
    **DELAYQ,
    "SCHEDULE_MIDDLEWARE": ["django_delayq.metrics.tracing.schedule"],
    "MIDDLEWARE": ["django_delayq.metrics.tracing.run"],
    "HOOKS": {"worker_init": "tests.metrics.site.telemetry.start"},
}
