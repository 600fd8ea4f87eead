"""`make demo-cluster` itself: three brokers, clients, S3, PostgreSQL, Airflow and Spark, under faults."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psutil
import pytest

from tiered_storage_airflow.demo_cluster.run import DAGS
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT
from tiered_storage_airflow.embedded.services import running_airflow


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_demo_on_a_live_cluster_finds_every_acknowledged_record_once_and_ends_all_it_started(
    tmp_path: Path,
) -> None:
    state = tmp_path / "demo-cluster"
    command = ["make", "demo-cluster", f"STATE={state}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3500, cwd=PROJECT_ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    for fault in ("kill broker 3 (SIGKILL)", "kill a Spark job", "which copied, was killed"):
        assert fault in done.stdout
    [total] = re.findall(r"^ *all +([\d,]+) +([\d,]+) +([\d,]+) +(\d+) +(\d+) *$", done.stdout, re.MULTILINE)
    acknowledged, remote, local, lost, twice = (int(number.replace(",", "")) for number in total)
    written = (state / "ledger.csv").read_text().splitlines()
    assert acknowledged == len(written) == remote + local
    assert remote > 0
    assert (lost, twice) == (0, 0)
    [trimmed] = re.findall(r"the brokers have deleted ([\d,]+) of the remote ones", done.stdout)
    assert 0 < int(trimmed.replace(",", "")) <= remote
    for dag_id in DAGS:
        assert re.search(rf"^ *{dag_id}: .*\d+ success", done.stdout, re.MULTILINE)
    assert f"the consumer got {acknowledged:,} of {acknowledged:,} acknowledged records" in done.stdout
    # Through the gateway, also those that the brokers have deleted.
    assert f"it got {acknowledged:,} of {acknowledged:,} acknowledged records" in done.stdout
    assert running_airflow(state) is None
    left = [each for each in psutil.process_iter(["cmdline"]) if str(state) in " ".join(each.info["cmdline"] or ())]
    assert left == []
