"""A remote log beside three real brokers, copied by the command line in processes of their own, under a load."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from support.command_line import CommandResult
from support.live_sites import LiveSite, finished, log_starts
from support.waiting import PATIENCE_SECONDS, wait_for
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage_airflow.demo_cluster.brokers import BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger, RecordCounts, judge, read_local, read_remote
from tiered_storage_airflow.demo_cluster.load import Background, LoadProducer

SMALL_SEGMENTS = {"internal.segment.bytes": "65536"}
RATE = 150
"""Records a second, of a kilobyte each: a partition of three closes a segment a second."""
COMMAND_SECONDS = 600
"""Longer than any outage of these tests: a command may wait for its end."""
LEASE_MS = 5000
PAUSE_SECONDS = 1
_PROGRAM = Path(sys.executable).with_name("tiered-storage")


@dataclass(frozen=True, slots=True)
class LiveCluster(LiveSite[BrokerCluster]):
    """A remote log beside three brokers, whose settings file stays as it is until `write` is called again."""

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.root / "settings.yaml"

    def write(self) -> Self:
        """Write the settings file."""
        # Killed copies are cleaned up within seconds.
        durations = {"lease.duration.ms": LEASE_MS, "remote.log.orphan.grace.ms": LEASE_MS}
        self.written({**durations, "remote.log.deletion.grace.ms": 0})
        return self

    def start(self, *command: object) -> subprocess.Popen[str]:
        """Start `tiered-storage` with these arguments."""
        return subprocess.Popen(
            [_PROGRAM, *map(str, command), "--config", self.config],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def catch_up(self, *, runs: int = 30) -> None:
        """Copy as the schedule does, until a run finds nothing left to copy and nothing to complain about."""
        for _ in range(runs):
            cleaned, copied = self.run("expire", "--json"), self.run("copy", "--json")
            if (cleaned.exit_code, copied.exit_code, rows_of(copied)) == (0, 0, []):
                return
        raise AssertionError((cleaned, copied))

    def partitions(self) -> list[TopicIdPartition]:
        """Every partition that was ever copied, of each incarnation of a topic."""
        with self.open() as remote_log:
            return sorted(remote_log.context.segments.list_partitions())

    def log_starts(self, topic: str, partitions: int = 3) -> dict[int, int]:
        """Return where the brokers' logs of a topic begin, of the partitions that have a leader."""
        return log_starts(self.kafka, topic, range(partitions))

    def snapshots(self) -> dict[int, PartitionSnapshot]:
        """Return what both tiers hold of each partition."""
        with self.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
            return {each.partition: reader.snapshot(each) for each in remote_log.context.segments.list_partitions()}

    def remote_ends(self) -> dict[int, int]:
        """Return the offset (exclusive) at which the remote log of each partition ends."""
        return {number: each.remote_end for number, each in self.snapshots().items()}

    def remote_starts(self) -> dict[int, int]:
        """Return the log start of each partition that readers see."""
        return {number: each.log_start_offset for number, each in self.snapshots().items()}

    def finished(self) -> list[RemoteLogSegmentMetadata]:
        """Return every segment that readers may see."""
        with self.open() as remote_log:
            return finished(remote_log, None)

    def ensure_exactly_once(self, ledger: Ledger, topic: str, topic_id: str | None = None) -> RecordCounts:
        """Audit everything deeply; see that each acknowledged record of `topic` is in the tiers once, some remote.

        Only the incarnation `topic_id` counts, if it is given.
        """
        self.audited()
        with self.open() as remote_log:
            chosen = [
                each
                for each in remote_log.context.segments.list_partitions()
                if each.topic == topic and topic_id in {None, each.topic_id}
            ]
            remote = read_remote(remote_log, chosen)
        local = read_local({"bootstrap.servers": self.kafka.bootstrap_servers}, [topic])
        both = remote.keys() & local.keys()
        assert {place: remote[place] for place in both} == {place: local[place] for place in both}
        counts = judge(ledger.acknowledged(), remote, local)[topic]
        assert counts.is_right, counts
        assert counts.remote > 0
        assert counts.remote + counts.local == counts.acknowledged == len(ledger)
        return counts


class CopyLoop(Background):
    """Copies again and again, each time by a new process.

    After each copy it runs the commands `others`, such as retain, in the same way.
    """

    def __init__(self, site: LiveCluster, *others: str) -> None:
        """Start nothing yet."""
        super().__init__("copies")
        self.site = site
        self._process: subprocess.Popen[str] | None = None
        self.results: list[CommandResult] = []
        self.others: dict[str, list[CommandResult]] = {command: [] for command in others}

    @property
    def segments(self) -> int:
        """How many segments were committed so far."""
        return sum(len(rows_of(result)) for result in self.results)

    @property
    def partitions(self) -> set[str]:
        """The partitions of which segments were committed so far."""
        return {row["partition"] for result in self.results for row in rows_of(result)}

    def wait_for_segments(self, more: int = 1) -> None:
        """Wait until so many more segments are committed than now."""
        wanted = self.segments + more
        wait_for(lambda: self.segments >= wanted, lambda: f"{self.results[-3:]}")

    def wait_for_exit(self, code: int, seconds: float = PATIENCE_SECONDS, of: str = "copy") -> CommandResult:
        """Wait until a run of the command `of` that begins after this call ends with `code`; return its result."""
        results = self.others.get(of, self.results)
        later = len(results) + 1
        wait_for(
            lambda: any(result.exit_code == code for result in results[later:]),
            lambda: f"no {of} ended with {code}: {results[-3:]}",
            seconds,
        )
        return next(result for result in results[later:] if result.exit_code == code)

    def wait_for_trims(self, partitions: int = 1) -> None:
        """Wait until runs of retain that begin after this call have moved the log starts of so many partitions."""
        results = self.others["retain"]
        later = len(results) + 1

        def trimmed() -> set[str]:
            return {row["partition"] for result in results[later:] for row in rows_of(result) if row["segments"]}

        # Each turn waits for a copy too.
        wait_for(lambda: len(trimmed()) >= partitions, lambda: f"{results[-3:]}", 2 * PATIENCE_SECONDS)

    def kill(self) -> None:
        """Kill a copy (SIGKILL) after it began segments and before it committed them all."""
        with self.site.open() as remote_log:
            while not any(result.exit_code == -signal.SIGKILL for result in self.results):
                wait_for(lambda: _has_begun(remote_log), lambda: f"no copy begins: {self.results[-3:]}")
                process = self._process
                assert process is not None
                process.kill()
                process.wait()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._process = self.site.start("copy", "--json")
            self.results.append(_ended(self._process))
            for command, results in self.others.items():
                results.append(_ended(self.site.start(command, "--json")))
            self._stopped.wait(PAUSE_SECONDS)


def producer(site: LiveCluster, topic: str, ledger: Ledger, rate: int = RATE, **properties: Any) -> LoadProducer:
    """Return an idempotent producer of `topic`; `properties` have _ for the dots."""
    given = {name.replace("_", "."): value for name, value in properties.items()}
    client = {"bootstrap.servers": site.kafka.bootstrap_servers, **given}
    return LoadProducer(f"{topic}-{len(ledger)}", topic, client, ledger, rate)


def part_of(ledger: Ledger, path: Path, chosen: Callable[[int, int], bool]) -> Ledger:
    """Return a ledger, at `path`, of the records whose partition and offset are `chosen`."""
    part = Ledger(path)
    for key, place in ledger.acknowledged().items():
        if chosen(place.partition, place.offset):
            part.acknowledge(key, place)
    return part


def _has_begun(remote_log: RemoteLogManager) -> bool:
    return any(
        segment.state is SegmentState.COPY_SEGMENT_STARTED
        for partition in remote_log.context.segments.list_partitions()
        for segment in remote_log.context.segments.list_remote_log_segments(partition)
    )


def _ended(process: subprocess.Popen[str]) -> CommandResult:
    try:
        out, err = process.communicate(timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"a command did not end in {COMMAND_SECONDS} s: {out}{err}") from None
    return CommandResult(process.returncode, out, err)


def rows_of(result: CommandResult) -> list[Any]:
    """Return the rows that a command wrote as JSON; none if it did not get as far."""
    # A killed process wrote nothing, or half a document; a failed one wrote an error.
    with suppress(json.JSONDecodeError, KeyError):
        return result.rows
    return []
