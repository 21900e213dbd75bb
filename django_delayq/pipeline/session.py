"""Spark sessions as this package needs them: quiet, in UTC, with the same Python on workers.

Spark takes the workers' Python from ``PYSPARK_PYTHON`` when a session is created, else ``python3`` from the ``PATH``.
The driver's machine runs it, too: its workers plan what a format reads and writes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import PipelineError, SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: what the extra installs
PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "deltalake")
HOW_TO: Final = "pip install 'django-delayq[spark]'"
JAVA_HOW_TO: Final = (
    "on Debian and Ubuntu apt-get install openjdk-17-jre-headless; or set JAVA_HOME to the folder of an installed one"
)
#: settings required for correct and fast results
NEEDED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's default, INT96, has no filter bounds
}
#: default settings of a session
DEFAULTS: Final[Mapping[str, str]] = {
    **NEEDED,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
#: defaults where everything runs on this machine. The executors of a cluster have to reach the driver remotely.
LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
#: marks the sessions of a Spark that was started here
_OURS: Final = "spark.delayq.session"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_FILE: Final = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options for starting a Spark session."""

    master: str = "local[*,4]"
    app: str = "delayq"
    #: overrides of :data:`DEFAULTS`
    conf: Mapping[str, str] = field(default_factory=dict)
    #: environment variables of Spark's Python workers. They appear in no query plan, no page of Spark's UI and no
    #: process list, so a Redis URL with a password belongs here.
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def on_this_machine(self) -> bool:
        """True if everything runs on this machine, possibly in several processes."""
        return self.master.startswith("local")


def settings(options: SessionOptions) -> dict[str, str]:
    """Return all settings of a new session: the defaults, overridden by the options."""
    merged = {
        "spark.master": options.master,
        "spark.app.name": options.app,
        **DEFAULTS,
        **(LOCAL if options.on_this_machine else {}),
        **options.conf,
        _OURS: "true",
    }
    ordered = merged.get(_JAVA_OPTIONS, "")
    if "log4j" not in ordered:
        merged[_JAVA_OPTIONS] = f'"-Dlog4j2.configurationFile={_LOG_FILE}" {ordered}'.strip()
    return merged


def check() -> None:
    """Check that the packages of the extra are installed.

    Raises:
        SparkMissing: it is not installed, or pyarrow, pandas or deltalake is missing.
    """
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            raise SparkMissing(f"The pipeline needs {error.name or name}: {HOW_TO}") from error


def check_java() -> str:
    """Return the version of the Java that Spark would start, as it describes itself.

    Raises:
        SparkMissing: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SparkMissing(
            f"Spark needs Java 17, 21 or 25, and {program} does not run ({error}): {JAVA_HOW_TO}"
        ) from None
    return f"{next(line for line in done.stderr.splitlines() if 'version' in line)} ({program})"


def running() -> SparkSession | None:
    """Return the running session of this process, if there is one."""
    if sys.modules.get("pyspark") is None:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    builder: Any = SparkSession.builder
    return builder.getOrCreate()  # type: ignore[no-any-return]


def build(options: SessionOptions) -> SparkSession:
    """Start Spark, or return a session of the Spark that runs in this process.

    A running Spark keeps its master and its start-up settings; the settings in :data:`NEEDED` and ``conf`` are applied.
    If it was not started here, they are applied to a new session of it, so that those of its owner stay as they were.

    Raises:
        SparkMissing: pyspark or Java is missing.
        PipelineError: Spark does not start.
    """
    check()
    spark = running()
    if spark is None:
        spark = _start(options)
    else:
        if spark.conf.get(_OURS, "") != "true":
            spark = spark.newSession()
        for key, value in {**NEEDED, **options.conf}.items():
            if spark.conf.isModifiable(key):
                spark.conf.set(key, value)
    # Functions passed to Spark copy the environment, so it must be set before the sources are registered.
    spark.sparkContext.environment.update(options.environ)
    return spark


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread: Spark looks for a format that is written to nowhere else."""
    session: Any = spark
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@contextlib.contextmanager
def opened(options: SessionOptions) -> Iterator[SparkSession]:
    """Yield a session as :func:`build` does, with the formats registered; stop it afterwards if it was started here.

    If the block raises, the session is not stopped explicitly: Spark may be in the middle of a response. It ends with
    this process, which holds the pipe that it listens to.
    """
    from . import register

    own = running() is None
    spark = build(options)
    register(spark)
    yield spark
    if own:
        spark.stop()


def _start(options: SessionOptions) -> SparkSession:
    check_java()
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Otherwise the workers run the "python3" on PATH, which may lack the packages.
    if options.on_this_machine:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False).setAll(list(settings(options).items()))
    try:
        SparkContext(conf=conf)
    except PySparkException as error:
        raise PipelineError(
            f"Spark did not start ({error}). Java has printed the reason above; often it is spark.driver.memory "
            f"({conf.get('spark.driver.memory')}), or a master that cannot be reached ({options.master})"
        ) from error
    builder: Any = SparkSession.builder
    return builder.getOrCreate()  # type: ignore[no-any-return]
