"""A Spark session reads a topic from the store, and what was exported of it: the documents' examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.command_line import mentions
from support.key_rings import ring_file, ring_of_three
from support.remote_logs import ENABLED, NOW, RemoteLogFiles, a_remote_log, copy
from support.shown_secrets import holds, keys_as_text, process_list
from support.tables import EXPECTED, example, export_orders
from tiered_storage_airflow.embedded.java import java_home

# Run everything in the Spark session that the first example starts: starting another takes longer than all the tests.
PROGRAM = """
import json, runpy, sys
from pyspark.sql import SparkSession

source, files, config, lost_key, limited, exports = sys.argv[1:]
sys.argv = [source, config]
runpy.run_path(source)
spark = SparkSession.builder.getOrCreate()
sys.argv = [files, exports]
runpy.run_path(files)


def table(**options):
    return spark.read.format("remote_log").options(**{"config": config, "topic": "orders", **options})


def error(read):
    try:
        read()
    except Exception as found:
        return str(found)
    return None


everything = table().load()
pushed = everything.where("offset between 7 and 12 and timestamp < timestamp_millis(%(time)d) and topic = 'orders'")
found = {
    "schema": everything.dtypes,
    "rows": sorted(map(list, everything.select("partition", "offset").collect())),
    "some": sorted(map(list, pushed.select("partition", "offset").collect())),
    "plan": pushed._jdf.queryExecution().executedPlan().toString(),
    "other": everything.where("cast(key as string) = 'key' and offset < 0").count(),
    "none": everything.where("offset > 5 and offset < 3").count(),
    "columns": table().schema("value binary, offset long").load().columns,
    "small": table(splitBytes="300").load().rdd.getNumPartitions(),
    "limited": table(splitBytes="300", config=limited).load().rdd.getNumPartitions(),
    "within limit": table(splitBytes="300", config=limited).load().count(),
    "headers": everything.where("offset = 3 and partition = 0").first()["headers"][0].asDict()["key"],
    "unknown": error(lambda: spark.read.format("remote_log").options(config=config, topic="payments").load().count()),
    "mistyped": error(lambda: table(topik="orders").load().count()),
}

secret = spark.read.format("remote_log").options(config=config, topic="secret").load()
found["secret"] = [[row.offset, row.value.decode()] for row in secret.where("offset >= 5").sort("offset").collect()]
found["lost"] = error(lambda: spark.read.format("remote_log").options(config=lost_key, topic="secret").load().count())
print(json.dumps(found))
"""


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Orders as Kafka wrote it, and an encrypted topic."""
    files = a_remote_log(
        tmp_path,
        {("orders", 0): 3, ("orders", 1): 1, ("secret", 0): 2},
        topics={"orders": ENABLED, "secret": {**ENABLED, "remote.encryption.enabled": True}},
        rsm_config_encryption_key_ring_file=str(ring_of_three(tmp_path / "keys")),
        rsm_config_encryption_key_pair_id="third",
    )
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    return files


def without_key(files: RemoteLogFiles) -> Path:
    """Return settings of the same remote log with a key ring that has lost the key."""
    ring = {"first": {"private.key.file": str(files.root / "keys" / "first.pem")}}
    (files.root / "lost").mkdir()
    settings = yaml.safe_load(files.config.read_text())
    settings["rsm.config.encryption.key.ring.file"] = str(ring_file(files.root / "lost", ring))
    path = files.root / "lost" / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def with_limit(files: RemoteLogFiles) -> Path:
    """Return settings of the same remote log with a limit of remote reads."""
    settings = yaml.safe_load(files.config.read_text())
    settings["remote.log.manager.fetch.max.bytes.per.second"] = 8 << 20
    path = files.config.with_name("limited.yaml")
    path.write_text(yaml.safe_dump(settings))
    return path


def test_a_session_reads_the_store_and_what_was_exported(
    files: RemoteLogFiles, state_directory: Path, tmp_path: Path
) -> None:
    programs = {"program": PROGRAM % {"time": NOW + 11_000}}
    programs["source"] = example('format("remote_log")')
    programs["files"] = example("spark.read.parquet")
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    arguments = [tmp_path / f"{name}.py" for name in ("program", "source", "files")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    with process_list() as shown:
        done = subprocess.run(
            [sys.executable, *arguments, files.config, without_key(files), with_limit(files), export_orders(files)],
            env={
                **environ,
                "JAVA_HOME": str(java_home(state_directory, os.environ)),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    of_source, of_files, figures = done.stdout.splitlines()[-3:]
    assert of_source == "25 records from offset 5"
    assert of_files == EXPECTED
    found = json.loads(figures)
    assert found["rows"] == [*([0, offset] for offset in range(30)), *([1, offset] for offset in range(10))]
    assert found["some"] == [[0, 7], [0, 8], [0, 9], [0, 10], [1, 7], [1, 8], [1, 9]]
    # All of them were handed down: Spark has nothing left to filter.
    assert re.search(r"\bFilter \(", found["plan"]) is None, found["plan"]
    assert (found["other"], found["none"], found["headers"]) == (0, 0, "trace")
    assert found["columns"] == ["value", "offset"]
    assert found["small"] > 5
    assert (found["limited"], found["within limit"]) == (2, 40), "as many as the session runs at once"
    assert mentions(found["unknown"], "topic 'payments'", "ever copied")
    assert "has no option topik" in found["mistyped"]
    assert dict(found["schema"])["timestamp"] == "timestamp"
    assert found["secret"] == [[offset, f"value {offset}".ljust(60, ".")] for offset in range(5, 20)]
    assert "no key third" in found["lost"]
    keys = keys_as_text(files.root / "keys")
    assert any(b"pyspark.daemon" in arguments for arguments in shown)
    assert not any(holds(arguments, keys) for arguments in shown)
    assert not holds((done.stdout + done.stderr).encode(), keys)
