"""Which partition a path names, and how a path that names none or several is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, a_copied_remote_log, copy
from tiered_storage_airflow.read_service.partitions import partition_or_problem
from tiered_storage_airflow.read_service.problem import ProblemError

MADE_AGAIN = "BBBBBBBBBBBBBBBBBBBBBA"


def test_a_topic_with_several_incarnations_asks_for_its_id(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    (files.log_directory / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {MADE_AGAIN}\n")
    with files.open() as remote_log:
        copy(remote_log)
    files.properties["log.dirs"] = []

    with files.open() as remote_log:
        with pytest.raises(ProblemError) as several:
            partition_or_problem(remote_log, (), "orders", 0)
        with pytest.raises(ProblemError) as none:
            partition_or_problem(remote_log, (), "orders", 1)
        assert partition_or_problem(remote_log, (), "orders", 0, ORDERS_0.topic_id) == ORDERS_0

    assert (several.value.status, several.value.title) == (409, "AmbiguousPartition")
    assert "choose one by topic_id" in several.value.detail
    assert none.value.status == 404
