"""Starting Spark as this package wants it: quiet, in UTC, with this Python on its workers, deaf to our signals."""

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

#: the oldest pyspark whose streaming readers can be told how much to read at once
OLDEST: Final = (4, 2)
HOW_TO: Final = "pip install 'django-delayq[spark]'"
#: what comes out would be wrong, or slow, without; a session that somebody else has started gets these, too
NEEDED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's own, INT96, has no bounds to filter by
}
#: what a session gets unless somebody orders otherwise
DEFAULTS: Final[Mapping[str, str]] = {
    **NEEDED,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
#: the same where everything runs on this machine. The executors of a cluster have to reach the driver from afar.
LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_FILE: Final = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a Spark session is started with."""

    master: str = "local[*,4]"
    app: str = "delayq"
    #: over :data:`DEFAULTS`
    conf: Mapping[str, str] = field(default_factory=dict)
    #: environment variables of Spark's Python workers, wherever they run. No plan, no page of Spark and no list of
    #: processes shows them, so this is the way of a Redis URL with a password.
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether everything runs on this machine, in one process of Java."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")

    @property
    def on_this_machine(self) -> bool:
        """Whether everything runs on this machine, be it in several processes."""
        return self.master.startswith("local")


def defaults() -> SessionOptions:
    """The options of a session of which nobody has ordered anything."""
    return SessionOptions()


def settings(options: SessionOptions) -> dict[str, str]:
    """Everything that a fresh session is told, ours first and what was ordered over it."""
    found = {
        "spark.master": options.master,
        "spark.app.name": options.app,
        **DEFAULTS,
        **(LOCAL if options.on_this_machine else {}),
        **options.conf,
    }
    ordered = found.get(_JAVA_OPTIONS, "")
    if "log4j" not in ordered:
        found[_JAVA_OPTIONS] = f'"-Dlog4j2.configurationFile={_LOG_FILE}" {ordered}'.strip()
    return found


def check() -> str:
    """The version of the installed pyspark.

    Raises:
        SparkMissing: it is not installed, or too old, or pyarrow or pandas is missing.
    """
    for name in ("pyspark", "pyarrow", "pandas"):
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
    """The session of this process that runs already, if there is one."""
    if sys.modules.get("pyspark") is None:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    builder: Any = SparkSession.builder
    return builder.getOrCreate()  # type: ignore[no-any-return]


def build(options: SessionOptions) -> SparkSession:
    """Starts Spark, or gives back the session of this process that runs already.

    The latter keeps its master and how it was started; it gets what is :data:`NEEDED` and was ordered in ``conf``.

    Raises:
        SparkMissing: pyspark or Java is missing.
        PipelineError: Spark does not start.
    """
    check()
    spark = running()
    if spark is None:
        spark = _start(options)
    else:
        for key, value in {**NEEDED, **options.conf}.items():
            if spark.conf.isModifiable(key):
                spark.conf.set(key, value)
    # Each function that is handed to Spark takes a copy of these along; the sources are registered after this.
    spark.sparkContext.environment.update(options.environ)
    return spark


def is_classic(spark: SparkSession) -> bool:
    """Return False for a session of Spark Connect, whose Java and workers are those of a server."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread: Spark looks for a format that is written to nowhere else."""
    session: Any = spark
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@contextlib.contextmanager
def opened(options: SessionOptions) -> Iterator[SparkSession]:
    """As :func:`build`, with the formats registered; a session that was started here ends with the block.

    A block that an exception leaves may have left Spark in the middle of an answer, so Spark is not spoken to any
    more then: it ends with this process, which holds the pipe that it listens to.
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

    # Without it the workers run whatever "python3" is on PATH, which has none of the packages.
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
            f"Spark did not start ({error}). What Java printed above says why; often it is spark.driver.memory "
            f"({conf.get('spark.driver.memory')}), or a master that cannot be reached ({options.master})"
        ) from error
    builder: Any = SparkSession.builder
    return builder.getOrCreate()  # type: ignore[no-any-return]


def _launch(context: type[SparkContext], conf: Any) -> None:
    """Starts the Java of this process, if there is none yet.

    In a process group of its own: a signal that a terminal, ``timeout`` or a service manager sends to ours would
    otherwise end Java first, in the middle of the work that we want to end in order. It still never outlives us: it
    ends when the pipe to it closes.
    """
    if context._gateway is not None:
        return
    from pyspark.java_gateway import launch_gateway

    with _environment():
        context._ensure_initialized(gateway=launch_gateway(conf, popen_kwargs={"process_group": 0}))  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """What Java, and the Pythons that it starts, shall find in the environment.

    Django sets TZ to its TIME_ZONE, which they would take over for their own. And they find this package where this
    process has found it, installed or not.
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
