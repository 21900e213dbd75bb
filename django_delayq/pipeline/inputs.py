"""Where the rows of a bulk write come from, and what tells an input from another.

Files are read in parts that depend on nothing but the files and two numbers, so whoever reads them again gets the same
rows in the same order. Other inputs are put in order first, by the ids of their jobs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..core.errors import Misconfigured
from ..core.inputs import short, suggest
from .errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "csv", "json", "orc")
#: bytes of a file that one task reads at most
PART_BYTES: Final = 64 * 1024 * 1024
#: what is said of how files are read in parts; a run goes on with what it was begun with
PART_NAMES: Final = ("part_bytes", "least_parts")
_OPEN_COST: Final = 4 * 1024 * 1024
_SHOWN: Final = 3
_ENDINGS: Final = {"csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet", "orc": "orc"}
_PACKED: Final = re.compile(r"\.(gz|gzip|bz2|zst|zstd|lz4|snappy|deflate|xz)$")
_USER: Final = re.compile(r"(?<=://)[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Files:
    """Files, or folders of files, of one format.

    ``schema``: columns as SQL has them, like ``pk LONG, day DATE``; None = those of the files (of csv: all of them
    texts). ``options``: of Spark's reader of the format.
    """

    paths: tuple[str, ...]
    format: str = "parquet"
    schema: str | None = None
    header: bool = True
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.paths:
            raise Misconfigured("which files? Give a path at least")
        if self.format not in FORMATS:
            raise Misconfigured(
                f"files are read as {', '.join(FORMATS)}, not as {short(self.format)}.{suggest(self.format, FORMATS)}"
            )

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows.

        Raises:
            PipelineError: the files are not there, or are not of this format.
        """
        from pyspark.errors import PySparkException

        # A bad line is a row of nulls by default; it would be a job that nobody wanted.
        said = {"mode": "FAILFAST"} if self.format in ("csv", "json") else {}
        if self.format == "csv":
            said |= {"header": str(self.header).lower(), "escape": '"'}  # a quote is doubled, as others write it
        reader = spark.read.options(**{**said, **dict(self.options)})
        if self.schema is not None:
            reader = reader.schema(self.schema)
        try:
            return reader.format(self.format).load(list(self.paths))
        except PySparkException as error:
            text = without_user(f"{', '.join(self.paths)[:200]}: {str(error).splitlines()[0][:500]}")
            raise PipelineError(text) from error

    def fingerprint(self, spark: SparkSession, frame: DataFrame) -> dict[str, str]:
        """What makes these files these files: names, sizes, times of change, and how they are read."""
        told = sorted(_statuses(spark, frame.inputFiles()))
        if not told:
            where = without_user(", ".join(self.paths))[:200]
            raise PipelineError(f"there is no file in {where}; is the path right?")
        names = [name.rpartition("/")[2] for name, _, _ in told]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
        return {
            "files": f"{len(names)} ({shown}), {sum(size for _, size, _ in told)} bytes, {digest}",
            "format": json.dumps([self.format, self.schema, self.header, self.options]),
        }


def _statuses(spark: SparkSession, urls: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Name, bytes and time of change (ms) of files, as the file systems of Spark tell them."""
    java: Any = spark.sparkContext._jvm
    path_of = java.org.apache.hadoop.fs.Path
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    for url in urls:
        path = path_of(java.java.net.URI(url))
        status = path.getFileSystem(conf).getFileStatus(path)
        yield url, int(status.getLen()), int(status.getModificationTime())


@dataclass(frozen=True, slots=True)
class Table:
    """A Django model, read by the format ``delayq.model``. ``filters``: JSON of field lookups."""

    model: str
    filters: str | None = None
    columns: tuple[str, ...] = ()
    using: str | None = None

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows."""
        said = {"model": self.model, "filter": self.filters, "columns": ",".join(self.columns), "using": self.using}
        return spark.read.format("delayq.model").options(**{k: v for k, v in said.items() if v}).load()

    def fingerprint(self) -> dict[str, str]:
        """What the rows were asked for by; what they hold is told by :func:`contents`."""
        return {"model": self.model, "filter": self.filters or "{}"}


def contents(frame: DataFrame) -> str:
    """How many rows there are and what they hold, whatever their order. It reads all of them.

    One row less shifts those behind it into other chunks, which nobody would know again: their jobs, finished long
    ago, would be written once more.
    """
    from pyspark.sql import functions as F

    # As JSON, because a hash of columns passes over nulls and knows no maps; to the last digit of a moment.
    how = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}
    row = F.to_json(F.struct(*[F.col(f"`{name}`") for name in frame.columns]), how)
    total = F.sum(F.xxhash64(row).cast("decimal(38,0)")).cast("string")
    ((count, found),) = frame.agg(F.count(F.lit(1)), total).collect()
    return f"{count}, {found or 0}"


def format_of(paths: Sequence[str]) -> str:
    """The format that the endings of paths tell; folders and unknown endings are parquet.

    Raises:
        Misconfigured: they tell several.
    """
    found: dict[str, str] = {}
    for path in paths:
        name = _PACKED.sub("", path.rstrip("/").rpartition("/")[2].lower())
        found.setdefault(_ENDINGS.get(name.rpartition(".")[2], "parquet"), path)
    if len(found) > 1:
        shown = without_user(", ".join(found.values()))
        raise Misconfigured(
            f"files of one run have one format, and {shown} look like several: say --format, or write a run of each"
        )
    return next(iter(found), "parquet")


def without_user(text: str) -> str:
    """A text without the users, and so the secrets, of the URLs in it."""
    return _USER.sub("", text)


def least_parts(spark: SparkSession) -> int:
    """How many tasks there shall be at least, so that every core has one."""
    return max(1, int(spark.sparkContext.defaultParallelism))


@contextmanager
def in_parts(spark: SparkSession, said: Mapping[str, str]) -> Iterator[None]:
    """Within the block the session reads files in these parts (:data:`PART_NAMES`), whatever it is set to else."""
    wanted = {
        "spark.sql.files.maxPartitionBytes": said["part_bytes"],
        "spark.sql.files.minPartitionNum": said["least_parts"],
        "spark.sql.files.openCostInBytes": str(_OPEN_COST),
    }
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def in_order(frame: DataFrame, parts: int) -> DataFrame:
    """The jobs of a frame in an order, and in parts, that are the same whenever they are computed."""
    # Behind the id comes whatever else can be compared, for rows that have the same one.
    others = [field.name for field in frame.schema.fields if field.name != "id" and _has_order(field.dataType)]
    return frame.repartition(parts, "id").sortWithinPartitions("id", *others)


def _has_order(kind: Any) -> bool:
    text = kind.simpleString()
    return not any(word in text for word in ("map<", "variant", "interval"))
