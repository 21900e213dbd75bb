"""Files of a bulk load: reading them, and fingerprints that distinguish one input from another.

They are read in parts that depend only on the files and two numbers, so each reading returns the same rows in the same
order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..core.errors import Misconfigured
from ..core.inputs import short, suggest
from .errors import PipelineError, without_user

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "csv", "json", "orc")
#: maximum number of bytes of a file that one task reads
PART_BYTES: Final = 64 * 1024 * 1024
_OPEN_COST: Final = 4 * 1024 * 1024
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Files:
    """Files, or folders of files, of one format.

    ``schema``: columns in SQL notation, like ``pk LONG, day DATE``; None = those of the files (for CSV: all texts).
    ``options``: options of Spark's reader for the format.
    """

    paths: tuple[str, ...]
    format: str = "parquet"
    schema: str | None = None
    header: bool = True
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.paths:
            raise Misconfigured("which files? Give at least one path")
        if self.format not in FORMATS:
            raise Misconfigured(
                f"files are read as {', '.join(FORMATS)}, not as {short(self.format)}.{suggest(self.format, FORMATS)}"
            )

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows.

        Raises:
            PipelineError: the files do not exist, or have another format.
        """
        from pyspark.errors import PySparkException

        # By default a malformed line is read as a row of nulls, which would become an unwanted job.
        # The session may be the user's, in another zone.
        settings = {"mode": "FAILFAST", "timeZone": "UTC"} if self.format in ("csv", "json") else {}
        if self.format == "csv":
            settings |= {"header": str(self.header).lower(), "escape": '"'}  # other programs double quotes
        reader = spark.read.options(**{**settings, **dict(self.options)})
        if self.schema is not None:
            reader = reader.schema(self.schema)
        try:
            return reader.format(self.format).load(list(self.paths))
        except PySparkException as error:
            text = without_user(f"{', '.join(self.paths)[:200]}: {str(error).splitlines()[0][:500]}")
            raise PipelineError(text) from error

    def fingerprint(self, spark: SparkSession, frame: DataFrame) -> dict[str, str]:
        """Return the identity of the files: names, sizes, modification times, and how they are read."""
        statuses = sorted(_statuses(spark, frame.inputFiles()))
        if not statuses:
            where = without_user(", ".join(self.paths))[:200]
            raise PipelineError(f"there is no file in {where}; is the path right?")
        names = [name.rpartition("/")[2] for name, _, _ in statuses]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        digest = hashlib.sha256(json.dumps(statuses).encode()).hexdigest()[:16]
        return {
            "files": f"{len(names)} ({shown}), {sum(size for _, size, _ in statuses)} bytes, {digest}",
            "format": json.dumps([self.format, self.schema, self.header, self.options]),
        }


def _statuses(spark: SparkSession, urls: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield name, bytes and modification time (ms) of files, as reported by Spark's file systems."""
    java: Any = spark.sparkContext._jvm
    path_of = java.org.apache.hadoop.fs.Path
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    for url in urls:
        path = path_of(java.java.net.URI(url))
        status = path.getFileSystem(conf).getFileStatus(path)
        yield url, int(status.getLen()), int(status.getModificationTime())


def least_parts(spark: SparkSession) -> int:
    """Return the minimum number of tasks, so that every core has one."""
    return max(1, int(spark.sparkContext.defaultParallelism))


def in_parts(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a copy of a session that reads files in parts of at most ``part_bytes``, and at least ``least_parts``."""
    from pyspark.sql import SparkSession

    from . import register

    original: Any = spark
    copy = SparkSession(spark.sparkContext, original._jsparkSession.cloneSession())
    copy.conf.set("spark.sql.files.maxPartitionBytes", settings["part_bytes"])
    copy.conf.set("spark.sql.files.minPartitionNum", settings["least_parts"])
    copy.conf.set("spark.sql.files.openCostInBytes", str(_OPEN_COST))
    register(copy)
    return copy
