"""``uvicorn tests.api.asgi.app:application``."""

from __future__ import annotations

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.api.asgi.settings"

from django.core.asgi import get_asgi_application

application = get_asgi_application()
