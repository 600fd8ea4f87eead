"""Spark's own Kafka source, of the installed Spark's release, in a process of its own: a session keeps its jars.

As a program: SERVERS TOPIC FOLDER JARS reads the topic into Parquet files below FOLDER, as a batch and as a stream.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo_cluster.maven_jars import MavenJars, fetched_jars
from tiered_storage_airflow.embedded.java import java_home

JARS: Final = MavenJars("spark_kafka", "4.2.0", Path(__file__).parents[1] / "servers")
BATCH, STREAM = "batch", "stream"
_OFFSETS_PER_TRIGGER = 400
_COLUMNS = ("offset", "unix_millis(timestamp) AS timestamp", "key", "value", "headers")


def read_with_spark(state: Path, folder: Path, servers: str, topic: str) -> dict[str, list[Record]]:
    """Read a topic of one partition as a batch and as a stream; return what each found, by offset."""
    jars = ",".join(map(str, fetched_jars(JARS, state)))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAVA_HOME": str(java_home(state, os.environ)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, "-m", "integration.spark_kafka_source", servers, topic, str(folder), jars]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return {way: list(_records(folder / way)) for way in (BATCH, STREAM)}


def _records(files: Path) -> Iterator[Record]:
    for row in pq.read_table(files).sort_by("offset").to_pylist():
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        yield Record(row["offset"], row["timestamp"], row["key"], row["value"], headers)


def _main(servers: str, topic: str, folder: Path, jars: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    _wanted(spark.read.format("kafka").options(**options).load()).write.parquet(str(folder / BATCH))
    source = spark.readStream.format("kafka").options(**options).option("maxOffsetsPerTrigger", _OFFSETS_PER_TRIGGER)
    _wanted(source.load()).writeStream.format("parquet").trigger(availableNow=True).start(
        str(folder / STREAM), checkpointLocation=str(folder / "checkpoint")
    ).awaitTermination()


def _wanted(rows: DataFrame) -> DataFrame:
    return rows.select(*map(expr, _COLUMNS))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
