"""Commits 10,000 copied segments of 10 partitions: the metadata in PostgreSQL against those in SQLite.

Both databases wait for the disk, as they do by default. The copies are made up: a commit asks the local log where it
ends, and writes metadata; it reads no segment. The work of both is the same, so the ratio is that of the databases.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench_plan import LargeSite, LogShape
from measuring import STATE, Goal, judge, print_machine

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.model import RemoteLogSegmentMetadataUpdate, SegmentState
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

sys.path.append(str(PROJECT_ROOT / "tests"))

GOAL = 1.5
SHAPE = LogShape(topics=1, partitions_a_topic=10, segments=1000, remote=0)


def commit(site: LargeSite) -> float:
    """Write `site`, copy nothing of it, commit all; return the seconds of the commit."""
    site.write()
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
        outcomes = [_finished(task) for task in begun.tasks]
        started = time.perf_counter()
        report = remote_log.commit_copy(outcomes)
        seconds = time.perf_counter() - started
    assert len(report.committed) == SHAPE.partitions * SHAPE.segments, report.failures[:1]
    return seconds


def _finished(task: CopyTask) -> CopyOutcome:
    segment = task.metadata
    marker = CommitMarker(segment.segment_id.id, segment.size, 0, segment.size, 0)
    state = SegmentState.COPY_SEGMENT_FINISHED
    update = RemoteLogSegmentMetadataUpdate(
        segment.segment_id, state, wall_clock(), marker.custom_metadata(), max_timestamp=0
    )
    return CopyOutcome(task, update)


def main() -> int:
    """Measure; return 1 if the goal was missed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--directory",
        type=Path,
        default=STATE,
        help="where to work, on the disk to measure; if root, one that all users reach",
    )
    arguments.add_argument(
        "--rounds", type=int, default=8, help="an even number: each database goes first as often as the other"
    )
    given = arguments.parse_args()
    from servers.postgres import PASSWORD, PostgresServer  # noqa: PLC0415 - the path to it is made above

    given.directory.mkdir(parents=True, exist_ok=True)
    # Of root's folders, the server reaches none that is private; then neither database is in one.
    directory = given.directory if PostgresServer.may_use(given.directory) else Path(tempfile.gettempdir())
    print_machine(directory)
    server = PostgresServer(durable=True, parent=directory)
    seconds: dict[str, list[float]] = {"PostgreSQL": [], "SQLite": []}
    try:
        os.environ["PGPASSWORD"] = PASSWORD
        for number in range(given.rounds + 1):
            server.database(name := f"commit_{random_uuid()}")
            places = [("PostgreSQL", server.url(name, password=None)), ("SQLite", None)]
            for kind, url in places if number % 2 else reversed(places):
                with tempfile.TemporaryDirectory(dir=directory, prefix="commit-") as root:
                    found = commit(LargeSite(Path(root), SHAPE, url))
                if number:  # the first round warms up
                    seconds[kind].append(found)
    finally:
        server.remove()
    for kind, rounds in seconds.items():
        print(f"  {kind:10} seconds: best {min(rounds):.2f}, median {median(rounds):.2f}")
    ours, peer = median(seconds["PostgreSQL"]), median(seconds["SQLite"])
    what = f"commit, {SHAPE.partitions * SHAPE.segments:,} segments, PostgreSQL"
    return judge([Goal(what, f"{ours:.2f} s", f"{peer:.2f} s SQLite", ours / peer, GOAL, is_most=True)])


if __name__ == "__main__":
    sys.exit(main())
