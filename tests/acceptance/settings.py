"""Settings of the workers that the acceptance tests start: as little as they need, so that they start quickly.

``MILL_DELAYQ`` is JSON that is laid over ``DELAYQ``; ``MILL_RELEASE=new`` is the next release of the app's code.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tests.settings import DATABASES as TEST_DATABASES, DELAYQ as TEST_DELAYQ

SECRET_KEY = "for the tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",  # bulk actions remember who ordered them
    "django_delayq",
    "tests.acceptance.mill",
]
DATABASES = TEST_DATABASES
DELAYQ: dict[str, Any] = {**TEST_DELAYQ, **json.loads(os.environ.get("MILL_DELAYQ", "{}"))}
