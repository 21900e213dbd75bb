"""Spark sessions as this package needs them: quiet, in UTC, with the same Python on workers, ignoring our signals.

Spark takes the workers' Python from ``PYSPARK_PYTHON`` when a session is created, else ``python3`` from the ``PATH``.
The driver's machine runs it, too: its workers plan what a format reads and writes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import java
from .errors import PipelineError, SparkMissing

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: the oldest pyspark whose streaming readers accept a limit for each read
OLDEST: Final = (4, 2)
HOW_TO: Final = "pip install 'django-delayq[spark]'"
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


def check() -> str:
    """Return the version of the installed pyspark.

    Raises:
        SparkMissing: it is not installed, or too old, or pyarrow, pandas or deltalake is missing.
    """
    for name in ("pyspark", "pyarrow", "pandas", "deltalake"):
        try:
            import_module(name)
        except ImportError as error:
            raise SparkMissing(f"The pipeline needs {error.name or name}: {HOW_TO}") from error
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < OLDEST:
        raise SparkMissing(f"pyspark {pyspark.__version__} is too old, 4.2 or newer is needed: {HOW_TO}")
    return str(pyspark.__version__)


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


def is_classic(spark: SparkSession) -> bool:
    """Return False for a session of Spark Connect, whose Java and workers belong to a server."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)


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
    java.ensure()
    if "SPARK_REMOTE" in os.environ or options.master.startswith("sc://"):
        raise PipelineError(
            "The pipeline brings its own formats and needs Spark itself, not Spark Connect: unset SPARK_REMOTE, and "
            "give the master of the cluster, like spark://host:7077"
        )
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Otherwise the workers run the "python3" on PATH, which may lack the packages.
    if options.on_this_machine:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False)
    for key, value in settings(options).items():
        conf.set(key, value)
    try:
        _launch(SparkContext, conf)
        SparkContext(conf=conf)
    except PySparkException as error:
        raise PipelineError(
            f"Spark did not start ({error}). Java has printed the reason above; often it is spark.driver.memory "
            f"({conf.get('spark.driver.memory')}), or a master that cannot be reached ({options.master})"
        ) from error
    builder: Any = SparkSession.builder
    return builder.getOrCreate()  # type: ignore[no-any-return]


def _launch(context: type[SparkContext], conf: Any) -> None:
    """Start the Java process if there is none yet.

    It gets a process group of its own: a signal sent to this process by a terminal, ``timeout`` or a service manager
    would otherwise end Java first, in the middle of work that should end in order. Java still never outlives this
    process, because it ends when the pipe to it closes.
    """
    if context._gateway is not None:
        return
    from pyspark.java_gateway import launch_gateway

    with _environment():
        context._ensure_initialized(gateway=launch_gateway(conf, popen_kwargs={"process_group": 0}))  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Set the environment for Java and the Python processes that it starts.

    Django sets TZ to its TIME_ZONE, which they would adopt. PYTHONPATH makes this package importable for them even if
    it is not installed.
    """
    ours = str(Path(__file__).resolve().parents[2])
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    changed = {"TZ": "UTC"}
    if ours not in path and not Path(ours).name.endswith("-packages"):
        changed["PYTHONPATH"] = os.pathsep.join([*path, ours])
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
