"""Django app config that imports task modules and registers the system checks."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from django.apps import AppConfig, apps
from django.utils.module_loading import module_has_submodule
from django.utils.translation import gettext_lazy as _


class DelayQConfig(AppConfig):
    """App config that is loaded by ``"django_delayq"`` in INSTALLED_APPS."""

    name = "django_delayq"
    label = "django_delayq"
    verbose_name = _("Delayed jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks and the types that jobs may carry, and import the task modules of all installed apps."""
        from . import checks  # noqa: F401  # registers itself
        from .runtime import tasks_setting
        from .settings.conf import conf_or_defaults, install_codec_quietly

        install_codec_quietly()
        from .repair import orders  # noqa: F401  # registers the task that runs admin orders

        tasks_setting.prepare(autodiscover(conf_or_defaults().tasks_module))


def autodiscover(module_name: str) -> list[str]:
    """Import ``<app>.<module_name>`` of every installed app and, if it is a package, every module in it.

    Returns:
        The names of the imported modules.

    Raises:
        Exception: any error in one of these modules is raised here. Otherwise a task that is not registered would only
            be discovered later, by a worker.
    """
    names: list[str] = []
    for config in apps.get_app_configs():
        if config.module is None or not module_has_submodule(config.module, module_name):
            continue
        module = import_module(f"{config.name}.{module_name}")
        names.append(module.__name__)
        for entry in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
            import_module(entry.name)
            names.append(entry.name)
    return names
