"""Topics as tables in a Spark session: the data source `remote_log`, in batches, with no broker in the path.

    from tiered_storage_airflow.spark_tables import register
    register(spark)
    spark.read.format("remote_log").option("topic", "orders").load().where("offset >= 1000").show()

It is in the installed package, so that any Spark session can import it; the library itself does not import Spark.
The driver plans: it needs the settings, and reads the metadata. Spark's workers access only the store, with the secrets
of their own environment (AWS_*), and need the package too. Nothing here imports Airflow.

Options (only `topic` is required, unless a filter on the column topic names it):

    topic           the topic's name
    topicId         the incarnation of the topic; needed if it had several
    config          the settings file; else TIERED_STORAGE_CONFIG, or the project's
    isolation       read_uncommitted, the default of Spark's Kafka source too, or read_committed
    splitBytes      approximately how many bytes of segments a task reads
    maxDisorderMs   how much earlier (ms) a record may be than the first one of its batch: lets a filter on timestamps
                    skip later segments. Without it only the lower bound of a filter skips segments
    allowGaps       true: read the rest even if offsets are missing
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.selection import parse_number
from tiered_storage.remote_log.tables.planning import SPLIT_BYTES, TableSplit, plan_splits
from tiered_storage.remote_log.tables.query import Comparison, Operator, RowFilter, TableQuery, narrowed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from tiered_storage.remote_log.jobs.throttle import Quota
    from tiered_storage.remote_log.jobs.worker import StoreAccess

NAME = "remote_log"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)

_OPTIONS = ("topic", "topicId", "config", "isolation", "splitBytes", "maxDisorderMs", "allowGaps")
_ISOLATION = {"read_committed": True, "read_uncommitted": False}
_SWITCH = {"true": True, "false": False}
_OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: Operator.EQUAL,
    EqualNullSafe: Operator.EQUAL,
    GreaterThan: Operator.GREATER,
    GreaterThanOrEqual: Operator.GREATER_OR_EQUAL,
    LessThan: Operator.LESS,
    LessThanOrEqual: Operator.LESS_OR_EQUAL,
    In: Operator.IN,
}
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType", "headers"})


def register(spark: SparkSession) -> None:
    """Register the format `remote_log` in a session, and enable filter pushdown, which Spark has off by default."""

    class TablesOfSession(RemoteLogTables):
        tasks_at_once = _tasks_at_once(spark)

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(TablesOfSession)


def _tasks_at_once(spark: SparkSession) -> int | None:
    """Return how many tasks the session runs at once, as far as it is known here: not with Spark Connect."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None


class RemoteLogTables(DataSource):
    """The data source; see above. Raises ConfigurationError for invalid options."""

    tasks_at_once: int | None = None
    """See `register`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> str:
        """Return all columns, named and typed as those of Spark's Kafka source; `.schema(...)` takes fewer."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader, which plans and reads."""
        return TableReader(TableOptions(self.options), schema.fieldNames(), self.tasks_at_once)


class TableOptions:
    """The options of a table, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in _OPTIONS}
        given = {str(name).lower(): str(value) for name, value in options.items()}
        unknown = sorted(set(given) - set(known) - {"path"})
        if unknown or "path" in given:
            raise ConfigurationError(
                f"{NAME} has no option {', '.join(unknown) or 'path'} (a table is named by option topic); it has: "
                f"{', '.join(_OPTIONS)}"
            )
        self.config = Path(given["config"]) if "config" in given else None
        split_bytes = _number(given, "splitbytes")
        self.split_bytes = SPLIT_BYTES if split_bytes is None else split_bytes
        self.allow_gaps = _choice(given, "allowgaps", _SWITCH, "false")
        committed_only = _choice(given, "isolation", _ISOLATION, "read_uncommitted")
        rows = RowFilter(committed_only=committed_only, disorder_ms=_number(given, "maxdisorderms"))
        self.query = TableQuery(given.get("topic", ""), given.get("topicid"), rows=rows)


class SplitPartition(InputPartition):
    """One split, for one task, and its access to the store: the reader that Spark sends to workers has no plan.

    `configs` are the options in the settings for a class of the user's own. `quota` is the task's share of the limit of
    remote reads.
    """

    def __init__(self, split: TableSplit, access: StoreAccess, configs: Mapping[str, str], quota: Quota) -> None:
        super().__init__(split)
        self.split = split
        self.access = access
        self.configs = configs
        self.quota = quota


class TableReader(DataSourceReader):
    """Plans on the driver, reads on the workers."""

    def __init__(self, options: TableOptions, columns: list[str], tasks_at_once: int | None) -> None:
        from tiered_storage.remote_log.tables.columns import TableColumns  # noqa: PLC0415 - heavy

        TableColumns(columns)
        self._tasks_at_once = tasks_at_once
        self._options = options
        self._query = options.query
        self._columns = columns

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply the filters that the query supports; yield the others, which Spark applies row by row."""
        for each in filters:
            taken = self._taken(each)
            if taken is None:
                yield each
            else:
                self._query = taken

    def _taken(self, pushed: Filter) -> TableQuery | None:
        attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
        if len(attribute) != 1:
            return None
        if isinstance(pushed, IsNotNull):
            return self._query if attribute[0] in _NEVER_NULL else None
        operator = _OPERATORS.get(type(pushed))
        if operator is None:
            return None
        value: Any = getattr(pushed, "value", None)
        comparison = Comparison(attribute[0], operator, tuple(value) if operator is Operator.IN else value)
        return narrowed(self._query, comparison)

    def partitions(self) -> list[InputPartition]:
        """Plan: one task for each split.

        With a limit of remote reads, no more tasks than run at once, if that is known: they share the limit without
        communicating, so tasks that wait for others would leave their shares unused.
        """
        from tiered_storage.clock import wall_clock  # noqa: PLC0415 - heavy
        from tiered_storage.remote_log.context import store_options  # noqa: PLC0415 - as above
        from tiered_storage.remote_log.jobs.throttle import fetch_quota  # noqa: PLC0415 - as above
        from tiered_storage.remote_log.jobs.worker import StoreAccess  # noqa: PLC0415 - as above
        from tiered_storage.remote_log.manager import RemoteLogManager  # noqa: PLC0415 - as above
        from tiered_storage.settings.settings import load_settings  # noqa: PLC0415 - as above

        if not self._query.topic:
            raise ConfigurationError(f'{NAME}: name a topic: .option("topic", ...), or a filter topic = ...')
        settings = load_settings(self._options.config)
        options = store_options(settings)
        with RemoteLogManager.open(settings, wall_clock, options) as remote_log:
            plan = remote_log.tables.plan(self._query)
        if not self._options.allow_gaps:
            plan.ensure_no_gaps()
        access = StoreAccess.of(settings, options)
        ranges, quota = list(plan.ranges()), fetch_quota(settings)
        whole, split_bytes = sum(each.size for each in ranges), self._options.split_bytes
        if not quota.is_unlimited and self._tasks_at_once is not None:
            split_bytes = max(split_bytes, -(-whole // self._tasks_at_once))
        splits = list(plan_splits(ranges, self._query.rows, split_bytes)) or [TableSplit((), self._query.rows)]
        return [SplitPartition(each, access, options.configs, quota.share(each.size, whole)) for each in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split, in Arrow, within its share of the limit."""
        from tiered_storage.remote_log.jobs.throttle import LimitedReads, QuotaLimit  # noqa: PLC0415 - as above
        from tiered_storage.remote_log.storage.clients.options import options_of  # noqa: PLC0415 - as above
        from tiered_storage.remote_log.tables.columns import TableColumns  # noqa: PLC0415 - heavy
        from tiered_storage.remote_log.tables.reading import read_split  # noqa: PLC0415 - as above

        if not isinstance(partition, SplitPartition) or not partition.split.ranges:
            return
        options = replace(options_of(os.environ), configs=partition.configs)
        with closing(partition.access.open(options)) as storage:
            reads = LimitedReads(storage, QuotaLimit(partition.quota))
            yield from read_split(partition.split, reads, TableColumns(self._columns))


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    return None if text is None else parse_number(f"{NAME}: option {name}", text)


def _choice(given: Mapping[str, str], name: str, choices: Mapping[str, bool], usual: str) -> bool:
    text = given.get(name, usual).lower()
    if text not in choices:
        raise ConfigurationError(f"{NAME}: option {name} is {text!r}: it must be {' or '.join(choices)}")
    return choices[text]
