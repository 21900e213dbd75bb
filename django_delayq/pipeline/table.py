"""Format ``delayq.model``: rows of a Django model. Batch read.

This is the only part of the pipeline that needs Django on Spark's workers. They set it up as any process of the project
does, so that the project's routers, managers and custom fields apply. :func:`attach` passes them the project's
settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..core.errors import Misconfigured
from ..core.inputs import short, suggest
from .django_worker import django_ready, environ
from .errors import PipelineError
from .schemas import check_columns
from .table_columns import Column, array_of, schema_of
from .table_copy import copied
from .table_fields import adapted, columns_of, key_kind
from .table_options import TableOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def attach(spark: SparkSession) -> None:
    """Pass this process's Django configuration to the workers of a session, and register the format (again).

    The workers use the same databases as this process, including those of a test. Call it where Django is set up.

    Raises:
        Misconfigured: the settings do not come from a module that another process could import.
    """
    spark.sparkContext.environment.update(environ())
    spark.dataSource.register(TableSource)


@dataclass(frozen=True, slots=True)
class Range:
    """Primary keys from ``low`` on and before ``high``; None = no bound."""

    low: Any = None
    high: Any = None


@dataclass
class Rows(InputPartition):
    """Partition read by one Spark task."""

    among: Range


class TableSource(DataSource):
    """``spark.read.format("delayq.model").option("model", "shop.Order")``.

    Options: model (app.Model), filter (JSON of field lookups, or a list of such objects, all of which have to be true),
    columns (names separated by commas, also through foreign keys: ``customer__email``; default all), using (alias of
    the database), partitions (maximum number of tasks, 4), fetch (rows per read, 10000), method (auto; orm; copy =
    PostgreSQL's COPY).
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "delayq.model"

    def schema(self) -> StructType:
        """Return the requested columns.

        Raises:
            Misconfigured: an option is invalid.
        """
        options = TableOptions.parse(self.options)
        with django_ready():
            return schema_of(Table.of(options).columns)

    def reader(self, schema: StructType) -> TableReader:
        """Return a reader for the columns of a schema."""
        return TableReader(schema, TableOptions.parse(self.options))


class TableReader(DataSourceReader):
    """Reader of the selected rows, with the columns of the schema: in another order, or fewer of them."""

    def __init__(self, schema: StructType, options: TableOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return one partition per range of primary keys."""
        with django_ready():
            return [Rows(among) for among in self._table().ranges(self._options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, Rows):  # Spark passes its own class when there is nothing to read
            return
        with django_ready():
            yield from self._table().batches(partition.among, self._schema)

    def _table(self) -> Table:
        table = Table.of(self._options, self._schema.names)
        check_columns(self._schema, schema_of(table.columns), self._options.model)
        return table


@dataclass(frozen=True, slots=True)
class Table:
    """Some columns of the rows of a model. Requires that Django is set up."""

    model: Any
    #: alias of the database
    alias: str
    options: TableOptions
    columns: Sequence[Column]

    @classmethod
    def of(cls, options: TableOptions, names: Sequence[str] | None = None) -> Table:
        """Return the table that the options name.

        Args:
            names: the columns; None = those of the options.

        Raises:
            Misconfigured: there is no such model, database, column or filter; or other processes cannot read it.
        """
        from django.db import connections, router

        model = _model(options.model)
        alias = options.using or router.db_for_read(model)
        if alias not in connections:
            raise Misconfigured(
                f"there is no database {short(alias)}.{suggest(alias, connections)} "
                f"Known databases: {', '.join(connections)}"
            )
        connection = connections[alias]
        if connection.vendor == "sqlite" and connection.is_in_memory_db():  # type: ignore[attr-defined]
            raise Misconfigured(
                f"the database {alias!r} is SQLite in memory, which no other process can see; Spark's "
                "workers need one in a file, or a server"
            )
        selected = names if names is not None else options.columns
        table = cls(model, alias, options, columns_of(model, connection, selected))
        table.rows()
        return table

    def rows(self, among: Range = Range()) -> Any:
        """Return the rows as an unordered queryset.

        Raises:
            Misconfigured: a filter is invalid.
        """
        from django.core.exceptions import EmptyResultSet, FieldError, ValidationError

        rows, zone = self.model._default_manager.using(self.alias).order_by(), _zone()
        try:
            for one in self.options.filters:
                rows = rows.filter(**{name: adapted(self.model, name, value, zone) for name, value in one.items()})
            rows.query.sql_with_params()
        except EmptyResultSet:
            return rows.none()
        except (FieldError, ValidationError, TypeError, ValueError, OverflowError) as error:
            settings = "; ".join(error.messages) if isinstance(error, ValidationError) else str(error)
            raise Misconfigured(f"the filter cannot be used with {self.options.model}: {settings}") from None
        if among.low is not None:
            rows = rows.filter(pk__gte=among.low)
        if among.high is not None:
            rows = rows.filter(pk__lt=among.high)
        return rows

    def ranges(self, most: int) -> list[Range]:
        """Return ranges of primary keys that together cover all rows, including future ones."""
        if most == 1 or key_kind(self.model) not in ("integer", "uuid"):
            return [Range()]
        keys = self.rows().order_by("pk").values_list("pk", flat=True)
        with _clear_errors(self.options.model):
            low, high = keys.first(), keys.last()
        return ranges_between(low, high, most)

    def batches(self, among: Range, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range as Arrow batches."""
        from django.db import connections

        arrow = to_arrow_schema(schema, timezone="UTC")
        rows = self.rows(among).values_list(*[column.name for column in self.columns])
        connection = connections[self.alias]
        with _clear_errors(self.options.model):
            if self._is_copied(connection):
                yield from self._copied(connection, rows, arrow)
            else:
                yield from self._iterated(rows, arrow)

    def _iterated(self, rows: Any, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        zone, fetch = _zone(), self.options.fetch
        some: list[tuple[Any, ...]] = []
        for row in rows.iterator(chunk_size=fetch):
            some.append(row)
            if len(some) == fetch:
                yield self._batch(some, arrow, zone)
                some = []
        if some:
            yield self._batch(some, arrow, zone)

    def _batch(self, some: list[tuple[Any, ...]], arrow: pa.Schema, zone: Any) -> pa.RecordBatch:
        arrays = [
            array_of(column, values, field.type, zone)
            for column, values, field in zip(self.columns, zip(*some, strict=True), arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    def _is_copied(self, connection: Any) -> bool:
        method = self.options.method
        if method == "orm":
            return False
        why_not = None
        if connection.vendor != "postgresql" or connection.Database.__name__ != "psycopg":
            why_not = "that needs PostgreSQL with psycopg 3"
        elif odd := [column.name for column in self.columns if not column.copied]:
            why_not = f"Django has to convert {', '.join(odd)}"
        if why_not and method == "copy":
            raise Misconfigured(f"{self.options.model} cannot be read by COPY: {why_not}; use the method auto")
        return why_not is None

    def _copied(self, connection: Any, rows: Any, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        from django.core.exceptions import EmptyResultSet
        from django.db import transaction

        try:
            sql, params = rows.query.get_compiler(self.alias).as_sql()
        except EmptyResultSet:
            return
        with transaction.atomic(using=self.alias):
            yield from copied(connection.connection, sql, params, arrow)


def ranges_between(low: Any, high: Any, most: int) -> list[Range]:
    """Return at most ``most`` ranges of whole numbers or UUIDs of equal width, open at both ends; None = no rows."""
    if low is None or high is None:
        return [Range()]
    numbers = [int(key) for key in (low, high)]
    width = numbers[1] - numbers[0] + 1
    count = max(1, min(most, width))
    bounds: list[Any] = [numbers[0] + width * place // count for place in range(1, count)]
    if isinstance(low, UUID):
        bounds = [UUID(int=bound) for bound in bounds]
    return [Range(*pair) for pair in pairwise([None, *bounds, None])]


def _model(name: str) -> Any:
    from django.apps import apps

    try:
        return apps.get_model(name)
    except LookupError:
        labels = sorted(model._meta.label for model in apps.get_models())
        settings = f"there is no model {name!r}.{suggest(name, labels)} Known models: {', '.join(labels)}"
        raise Misconfigured(settings) from None


def _zone() -> Any:
    """Return the zone of naive datetimes; None if all datetimes are aware (``USE_TZ``)."""
    from django.conf import settings
    from django.utils import timezone

    return None if settings.USE_TZ else timezone.get_default_timezone()


@contextmanager
def _clear_errors(model: str) -> Iterator[None]:
    from django.db import Error

    try:
        yield
    except Error as error:
        raise PipelineError(
            f"the table of {model} could not be read ({type(error).__name__}: {str(error).strip()}); check the "
            "filter, and that the database exists and is migrated"
        ) from error
