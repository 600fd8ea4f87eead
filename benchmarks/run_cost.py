"""The cost of a copy run besides the copies: opening the remote log, plan, leases, job and commit, each once a run."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

from measuring import Goal
from sample_site import SampleLog, SampleSite

from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.copy.job import run_copy_groups

GOAL = 1.5
PARTITIONS = 100
SMALL = SampleLog(PARTITIONS, segments=1, segment_bytes=64 << 10, batch_records=15)


def measure_own_cost(directory: Path, rounds: int) -> Goal:
    """Print the cost of a run over 100 partitions of one small segment, without its copies."""
    seconds, copies = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=directory, prefix="run-cost-") as root:
            site = SampleSite(Path(root))
            site.write(SMALL)
            site.open().close()  # the metadata store is created once, not by each run
            os.sync()
            own, copying = _own_cost(site)
            seconds.append(own)
            copies.append(copying)
    print(f"{PARTITIONS} partitions of one small segment, the run's own cost; {rounds} rounds")
    print(f"  seconds: best {min(seconds):.2f}, median {median(seconds):.2f}")
    ours, peer = median(seconds), median(copies)
    what = f"copy, a run's own cost, {PARTITIONS} small segments"
    return Goal(what, f"{ours:.2f} s", f"{peer:.2f} s copying them", ours / peer, GOAL, is_most=True)


def _own_cost(site: SampleSite) -> tuple[float, float]:
    """Return the seconds of a run's three tasks, each of which opens the remote log, and of the copies."""
    begun = time.perf_counter()
    with site.open() as remote_log:
        plan = remote_log.plan_copy()
    with site.open() as remote_log:
        started = remote_log.begin_copy(plan, "benchmark")
        job = remote_log.write_copy_job(f"runs/{random_uuid()}", started)
        own = time.perf_counter() - begun
        begun = time.perf_counter()
        for group in range(job.groups):
            run_copy_groups(remote_log.context.access(job.files), [group])
        copying = time.perf_counter() - begun
        outcomes = list(job.outcomes())
    begun = time.perf_counter()
    with site.open() as remote_log:
        report = remote_log.commit_copy(outcomes)
    own += time.perf_counter() - begun
    if len(report.committed) != PARTITIONS:
        raise SystemExit(f"a copy went wrong, nothing was measured: {report.failures[:1]}")
    return own, copying
