"""A project of somebody else, on disk: settings, one app, and whatever tests are put into it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_delayq", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYQ = {"REDIS": "redis://127.0.0.1:1/0"}
"""

MODELS = """
from django.db import models

class Order(models.Model):
    paid = models.BooleanField(default=False)
"""


class Project:
    """``write`` files into it, then ``run`` its tests in a process of their own."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester = pytester
        self.path = pytester.path
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(self.path), str(ROOT)]))
        monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
        self.write("project_settings.py", SETTINGS)
        self.write("shop/__init__.py", "")
        self.write("shop/models.py", MODELS)

    def write(self, name: str, text: str) -> None:
        """A file of the project."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *options: str, django: bool = True) -> pytest.RunResult:
        """All its tests, with the plugin; ``django``: and with pytest-django."""
        plugins = ["-p", "django_delayq.testing.plugin"]
        if django:
            self.write("pytest.ini", "[pytest]\nDJANGO_SETTINGS_MODULE = project_settings\nfilterwarnings = error\n")
            plugins += ["-p", "pytest_django.plugin"]
        else:
            self.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
        return self._pytester.run(
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", *plugins, *options
        )
