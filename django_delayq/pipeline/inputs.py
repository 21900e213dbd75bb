"""Inputs of a bulk load: reading them, and fingerprints that distinguish one input from another.

Files are read in parts that depend only on the files and two numbers, so each reading returns the same rows in the same
order. Other inputs are sorted first, by the ids of their jobs.
"""

from __future__ import annotations

import hashlib
import json
import re
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
#: settings that control how files are split; a resumed bulk load keeps its first ones
PART_NAMES: Final = ("part_bytes", "least_parts")
_OPEN_COST: Final = 4 * 1024 * 1024
_SHOWN: Final = 3
_ENDINGS: Final = {"csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet", "orc": "orc"}
_PACKED: Final = re.compile(r"\.(gz|gzip|bz2|zst|zstd|lz4|snappy|deflate|xz)$")


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


def contents(frame: DataFrame) -> str:
    """Return the number of rows and a checksum of their contents, independent of their order. Reads all of them.

    A missing row would shift the rows after it into other chunks, which would then not be recognised: jobs that
    finished long ago would be written again.
    """
    from pyspark.sql import functions as F

    # Hash JSON, because a hash of columns skips nulls and does not support maps; timestamps in full precision.
    how = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}
    row = F.to_json(F.struct(*[F.col(f"`{name}`") for name in frame.columns]), how)
    total = F.sum(F.xxhash64(row).cast("decimal(38,0)")).cast("string")
    ((count, checksum),) = frame.agg(F.count(F.lit(1)), total).collect()
    return f"{count}, {checksum or 0}"


def format_of(paths: Sequence[str]) -> str:
    """Return the format that the file extensions indicate; folders and unknown extensions are parquet.

    Raises:
        Misconfigured: they indicate several.
    """
    formats: dict[str, str] = {}
    for path in paths:
        name = _PACKED.sub("", path.rstrip("/").rpartition("/")[2].lower())
        formats.setdefault(_ENDINGS.get(name.rpartition(".")[2], "parquet"), path)
    if len(formats) > 1:
        shown = without_user(", ".join(formats.values()))
        raise Misconfigured(
            f"files of a bulk load have one format, but {shown} look like several: give --format, or load each alone"
        )
    return next(iter(formats), "parquet")


def least_parts(spark: SparkSession) -> int:
    """Return the minimum number of tasks, so that every core has one."""
    return max(1, int(spark.sparkContext.defaultParallelism))


def in_parts(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a copy of a session that reads files in these parts (:data:`PART_NAMES`); the session stays as it is."""
    from pyspark.sql import SparkSession

    from . import register

    original: Any = spark
    copy = SparkSession(spark.sparkContext, original._jsparkSession.cloneSession())
    copy.conf.set("spark.sql.files.maxPartitionBytes", settings["part_bytes"])
    copy.conf.set("spark.sql.files.minPartitionNum", settings["least_parts"])
    copy.conf.set("spark.sql.files.openCostInBytes", str(_OPEN_COST))
    register(copy)
    return copy


def in_order(frame: DataFrame, parts: int) -> DataFrame:
    """Return the jobs of a frame in an order, and in partitions, that are the same in every computation."""
    # After the id, sort by all other comparable columns, for rows that share an id.
    others = [field.name for field in frame.schema.fields if field.name != "id" and _has_order(field.dataType)]
    return frame.repartition(parts, "id").sortWithinPartitions("id", *others)


def _has_order(kind: Any) -> bool:
    text = kind.simpleString()
    return not any(word in text for word in ("map<", "variant", "interval"))
