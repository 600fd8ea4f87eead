"""The data source without Spark: its options, what it does with filters, what its tasks give."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, IsNotNull, LessThan, Not
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from support.counted_limits import counted_limits
from support.key_rings import ring_of_three
from support.object_stores import OWN_STORE
from support.remote_logs import (
    ENABLED,
    NOW,
    a_copied_remote_log,
    a_remote_log,
    copy,
    partition_of,
    record,
    segments_of,
)
from support.shown_secrets import holds, keys_as_text
from tiered_storage.errors import ConfigurationError, EncryptionKeyError
from tiered_storage.remote_log.tables.columns import SCHEMA as COLUMNS
from tiered_storage_airflow.spark_tables import SCHEMA, RemoteLogTables, SplitPartition

# Without a session nothing can parse a schema of Spark's: this is SCHEMA as it understands it.
TYPES = {
    "key": "binary", "value": "binary", "topic": "string", "partition": "integer", "offset": "long",
    "timestamp": "timestamp", "timestampType": "integer",
}  # fmt: skip
HEADERS: dict[str, Any] = {
    "type": "array",
    "containsNull": True,
    "elementType": {
        "type": "struct",
        "fields": [
            {"name": "key", "type": "string", "nullable": True, "metadata": {}},
            {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
        ],
    },
}


def schema(names: list[str] | None = None) -> StructType:
    types = {**TYPES, "headers": HEADERS}
    fields = [{"name": name, "type": types[name], "nullable": True, "metadata": {}} for name in names or list(types)]
    return StructType.fromJson({"type": "struct", "fields": fields})


def read(
    config: Path, *filters: Filter, columns: list[str] | None = None, **options: str
) -> tuple[pa.Table, list[Filter]]:
    """Plan as Spark does, which gives workers the reader as it was before, and read each task in a worker of its own.

    Return the rows, and the filters that are left.
    """
    usual = {"topic": "orders", "config": str(config), **options}
    reader = RemoteLogTables(usual).reader(schema(columns))
    left = list(reader.pushFilters(list(filters)))
    unplanned = pickle.dumps(reader)
    batches = []
    for task in map(pickle.dumps, reader.partitions()):
        batches += list(pickle.loads(unplanned).read(pickle.loads(task)))  # noqa: S301 - our own
    return pa.Table.from_batches(batches, to_arrow_schema(schema(columns), timezone="UTC")), left


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_copied_remote_log(tmp_path_factory.mktemp("log"), {("orders", 0): 2, ("orders", 1): 1}).config


def test_columns_are_those_that_spark_makes_of_the_schema() -> None:
    assert to_arrow_schema(schema(), timezone="UTC") == COLUMNS
    assert SCHEMA.startswith("key binary, value binary, topic string, partition int, offset bigint, ")


def test_everything_that_is_copied_is_given(config: Path) -> None:
    found, _ = read(config)
    rows = sorted(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True))
    assert rows == [*((0, offset) for offset in range(20)), *((1, offset) for offset in range(10))]


def test_tasks_read_encrypted_segments_by_the_key_ring_on_the_workers_disk_and_carry_no_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    files = a_remote_log(
        tmp_path,
        topics={"orders": {**ENABLED, "remote.encryption.enabled": True}},
        rsm_config_encryption_key_ring_file=str(ring_of_three(keys)),
        rsm_config_encryption_key_pair_id="third",
    )
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    found, _ = read(files.config)
    assert found.column("offset").to_pylist() == list(range(30))
    assert found.column("value").to_pylist() == [record(offset).value for offset in range(30)]

    reader = RemoteLogTables({"topic": "orders", "config": str(files.config)}).reader(schema())
    sent = pickle.dumps([reader, *reader.partitions()])
    assert str(keys).encode() in sent
    assert not holds(sent, keys_as_text(keys))
    (keys / "third.key").unlink()
    with pytest.raises(EncryptionKeyError, match=r"key third: .*third\.key"):
        read(files.config)


def test_a_custom_store_is_read_with_its_options(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path,
        remote_log_storage_manager_class_name="own_store.SqliteStorage",
        remote_log_storage_manager_class_path=str(OWN_STORE.parent),
        rsm_config_url=f"sqlite://{tmp_path}/objects.db",
        rsm_config_timeout_ms="no number",
    )
    with pytest.raises(ConfigurationError, match=r"ValueError: .*'no number'"):
        read(files.config)
    files.properties["rsm.config.timeout.ms"] = 20_000
    with files.open() as remote_log:
        copy(remote_log)

    found, _ = read(files.config)
    tasks = RemoteLogTables({"topic": "orders", "config": str(files.config)}).reader(schema()).partitions()

    assert found.column("offset").to_pylist() == list(range(30))
    assert [task.configs["timeout.ms"] for task in tasks if isinstance(task, SplitPartition)] == ["20000"]


def test_a_schema_takes_fewer_columns(config: Path) -> None:
    found, _ = read(config, columns=["value", "partition"])
    assert found.column_names == ["value", "partition"]
    assert found.num_rows == 30


def test_filters_are_taken_in_or_left(config: Path) -> None:
    moment = datetime.fromtimestamp(NOW / 1000 + 5, UTC)
    taken = [
        EqualTo(("topic",), "orders"),
        IsNotNull(("offset",)),
        In(("partition",), (0, 2)),
        GreaterThanOrEqual(("timestamp",), moment),
        LessThan(("offset",), 8),
    ]
    unknown = [Not(EqualTo(("partition",), 1)), EqualTo(("key",), b"key"), EqualTo(("headers", "key"), "trace")]
    found, left = read(config, *taken, *unknown)
    assert left == unknown
    assert found.column("offset").to_pylist() == [5, 6, 7]


def test_filters_that_contradict_give_no_rows(config: Path) -> None:
    found, left = read(config, LessThan(("offset",), 3), GreaterThanOrEqual(("offset",), 3))
    assert (found.num_rows, left) == (0, [])
    found, _ = read(config, EqualTo(("topic",), "payments"))
    assert found.num_rows == 0


def test_splits_are_as_large_as_asked_for(config: Path) -> None:
    reader = RemoteLogTables({"topic": "orders", "config": str(config), "splitBytes": "300"}).reader(schema())
    assert len(reader.partitions()) > 5


@pytest.mark.parametrize("tasks_at_once", [None, 2])
def test_the_tasks_share_the_limit_of_remote_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks_at_once: int | None
) -> None:
    passed = counted_limits(monkeypatch)
    monkeypatch.setattr(RemoteLogTables, "tasks_at_once", tasks_at_once)
    files = a_copied_remote_log(
        tmp_path, {("orders", 0): 2, ("orders", 1): 2}, remote_log_manager_fetch_max_bytes_per_second=8 << 20
    )

    found, _ = read(files.config, splitBytes="300")

    assert found.num_rows == 40
    assert len(passed) == 2 if tasks_at_once else len(passed) > 5
    assert sum(limit.bytes_per_second for limit in passed) == pytest.approx(8 << 20)
    with files.open() as remote_log:
        segments = [each for number in range(2) for each in segments_of(remote_log, partition_of(number=number))]
    if tasks_at_once:
        assert passed.total() == sum(each.size for each in segments)


BAD_OPTIONS: list[tuple[dict[str, str], str]] = [
    ({"topics": "orders"}, "has no option topics"),
    ({"path": "orders"}, "has no option path"),
    ({"splitBytes": "9" * 5000}, "splitbytes is '9999.*….* a whole number"),
    ({"splitBytes": "-1"}, "splitbytes is '-1'.* a whole number"),
    ({"maxDisorderMs": "9" * 5000}, "maxdisorderms is '999"),
    ({"splitBytes": "0"}, "splits of 0 bytes"),
    ({"isolation": "serializable"}, "isolation is 'serializable'"),
    ({"allowGaps": "yes"}, "true or false"),
    ({"topic": "payments"}, "topic 'payments' .*'tiered-storage topics list'"),
    ({"topic": ""}, "name a topic"),
    ({"topicId": "x"}, "with the id x"),
    ({"config": "nowhere.yaml"}, "nowhere.yaml"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=[message for _, message in BAD_OPTIONS])
def test_options_that_cannot_be_meant_are_refused(config: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(**{"config": config, "topic": "orders", **options})  # type: ignore[arg-type]


def test_a_column_that_there_is_not_is_refused() -> None:
    names = StructType.fromJson(
        {"type": "struct", "fields": [{"name": "size", "type": "long", "nullable": True, "metadata": {}}]}
    )
    with pytest.raises(ConfigurationError, match=r"columns \[size\]"):
        RemoteLogTables({"topic": "orders"}).reader(names)
