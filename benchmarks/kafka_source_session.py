"""Spark's Kafka source in its own Spark session, controlled by bench_export.py.

It needs only the Spark of the connector's release, and nothing of this project. Each line of standard input names a
way; the response is the seconds that the way took.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

ANSWER = "seconds: "
EXPORT, SCAN = "export", "scan"


def serve(ways: Mapping[str, Callable[[], object]]) -> None:
    """Run the ways that standard input names, one a line, and print the seconds of each."""
    for line in sys.stdin:
        begun = time.perf_counter()
        ways[line.strip()]()
        print(f"{ANSWER}{time.perf_counter() - begun}", flush=True)


def to_nowhere(rows: DataFrame) -> None:
    """Compute all `rows` and throw them away."""
    rows.write.format("noop").mode("overwrite").save()


def main() -> None:
    """Serve both ways: read by the Kafka source, and write to Parquet by Spark's writer or throw away."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("ends", help="JSON: the offset after the last one to read of each partition")
    parser.add_argument("codec")
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    ends = json.loads(given.ends)
    source = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate().read.format("kafka")
    for name, value in {
        "kafka.bootstrap.servers": given.servers,
        "subscribe": given.topic,
        "includeHeaders": "true",
        "startingOffsets": json.dumps({given.topic: dict.fromkeys(ends, 0)}),
        "endingOffsets": json.dumps({given.topic: ends}),
    }.items():
        source = source.option(name, value)

    def export() -> None:
        shutil.rmtree(given.target, ignore_errors=True)
        source.load().write.option("compression", given.codec).parquet(str(given.target))

    serve({EXPORT: export, SCAN: lambda: to_nowhere(source.load())})


if __name__ == "__main__":
    main()
