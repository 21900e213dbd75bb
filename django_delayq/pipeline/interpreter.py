"""Check of the Python that Spark starts for its workers, before a worker fails with a ModuleNotFoundError.

Spark takes it from ``PYSPARK_PYTHON`` when a session is created, else ``python3`` from the ``PATH``, and stores it as
``SparkContext.pythonExec``. The driver's machine runs it, too: its workers plan what a format reads and writes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: modules that the formats import in a worker; Spark itself supplies pyspark
MODULES: Final = ("django_delayq", "redis", "pyarrow", "pandas")
#: seconds after which a Python counts as failed to start
ANSWER_SECONDS: Final = 30.0
_PROBE: Final = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps(["%d.%d" % sys.version_info[:2], missing]))
"""


def check_workers(spark: SparkSession) -> None:
    """Compare the Python of a session's workers with the current one.

    Raises:
        PipelineError: it is missing, has another version or lacks a package; the message says what to set.
    """
    context: Any = spark.sparkContext
    system: Any = context._jvm.java.lang.System
    program = shutil.which(context.pythonExec, path=system.getenv("PATH"))
    if program is None:
        raise _refusal(f"{context.pythonExec}, and there is no such program")
    if os.path.abspath(program) == os.path.abspath(sys.executable):
        return
    version, missing = _probe(program, _python_path(context, system), ANSWER_SECONDS)
    if version != context.pythonVer:
        raise _refusal(f"{program} (Python {version}), and this process runs Python {context.pythonVer}")
    if missing:
        raise _refusal(f"{program}, which lacks {', '.join(missing)}", "; or pip install 'django-delayq[spark]' there")


def _python_path(context: Any, system: Any) -> str:
    """Return the ``PYTHONPATH`` of Spark's workers: added files, then the paths of the context and of the JVM."""
    from pyspark import SparkFiles

    added = [os.path.join(SparkFiles.getRootDirectory(), name) for name in context._python_includes]
    environ: Mapping[str, str] = context.environment
    return os.pathsep.join(filter(None, (*added, environ.get("PYTHONPATH"), system.getenv("PYTHONPATH"))))


@lru_cache(maxsize=8)
def _probe(program: str, python_path: str, seconds: float) -> tuple[str, list[str]]:
    """Return the version of a Python, and those of :data:`MODULES` that it cannot find."""
    environ = {**os.environ, "PYTHONPATH": python_path}
    try:
        answer = subprocess.run(
            [program, "-c", _PROBE, *MODULES],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
        version, missing = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        raise _refusal(f"{program}, which did not start within {seconds:g} s") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().rpartition("\n")[2] or f"exit code {error.returncode}"
        raise _refusal(f"{program}, which fails: {reason[:300]}") from None
    except (OSError, ValueError) as error:
        raise _refusal(f"{program}, which is no Python ({error})") from None
    return version, missing


def _refusal(fault: str, besides: str = "") -> PipelineError:
    return PipelineError(
        f"Spark's workers would run {fault}. Set PYSPARK_PYTHON={sys.executable} in the environment before the "
        f"SparkSession is created (a running session keeps its Python: stop it first){besides}"
    )
