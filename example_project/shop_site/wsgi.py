"""Entry point for WSGI servers."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_site.settings")
application = get_wsgi_application()
