"""The settings of the workers that the tests of the shell start: those of the suite, and one app with tasks."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.app.depot"]
