from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tiered_storage_airflow.demo_cluster.ledger import RecordCounts
from tiered_storage_airflow.demo_cluster.run import is_copy, report

COUNTS = {
    "orders": RecordCounts(60, remote=40, local=20, lost=0, twice=0, trimmed=10),
    "payments": RecordCounts(40, 40, 0, 0, 0),
}
SPARK = [
    "/usr/lib/jvm/bin/java", "-cp", "/spark/jars/*", "-Xmx1g", "org.apache.spark.deploy.SparkSubmit", "--name",
    "copy_segments runs/1/1", "/project/spark_jobs/copy_segments.py", "--access", "/tmp/job.json",
]  # fmt: skip


@pytest.mark.parametrize(
    ("consumed", "orders", "is_right"),
    [
        (100, COUNTS["orders"], True),
        (99, COUNTS["orders"], False),
        (100, RecordCounts(60, 39, 20, lost=1, twice=0, trimmed=10), False),
        (100, RecordCounts(60, 40, 20, lost=0, twice=1, trimmed=10), False),
        (100, RecordCounts(60, 40, 20, lost=0, twice=0, trimmed=0), False),
    ],
)
def test_a_demo_is_right_if_nothing_is_lost_or_twice_all_was_consumed_and_brokers_deleted_some(
    consumed: int, orders: RecordCounts, is_right: bool
) -> None:
    shown = StringIO()

    assert report(Console(file=shown, width=160), {**COUNTS, "orders": orders}, consumed) is is_right

    assert f"the consumer got {consumed} of 100 acknowledged records" in shown.getvalue()


def test_only_the_copys_own_spark_counts_as_a_copy() -> None:
    assert is_copy(SPARK)
    assert not is_copy([word.replace("spark_jobs/copy_segments", "spark_jobs/audit_segments") for word in SPARK])
    assert not is_copy(["bash", *SPARK[1:]])
    launcher = [*SPARK[:4], "org.apache.spark.launcher.Main", *SPARK[4:]]
    assert not is_copy(launcher)
    assert not is_copy([])
