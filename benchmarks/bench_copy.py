"""Copies closed segments to a local store, against `cp` of the same files followed by `sync` of each.

Ours does what a Spark worker does: it reads every segment once, checks the CRC of every batch, builds and checks all
indexes, reads the copy back, syncs it and its folder, and writes the bundle, the commit marker and the results. The
peer's files are synced too. For both, the sources are in the page cache, as if a broker had just written them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from measuring import STATE, Goal, Timings, judge, print_comparison, print_machine
from run_cost import measure_own_cost
from sample_site import SampleLog, SampleSite

from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.manager import RemoteLogManager

GOAL = 1.0
PARTITIONS = 4
SEGMENT_BYTES = 64 << 20
BATCHES = SampleLog(PARTITIONS, segments=4, segment_bytes=SEGMENT_BYTES, batch_records=15)
"""16 segments; 15 records of 1 KiB with their keys are a batch of 16 KiB, a producer's default batch.size."""
SINGLE_RECORDS = SampleLog(PARTITIONS, segments=1, segment_bytes=SEGMENT_BYTES, batch_records=1)
COMMAND_LINE_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Contest:
    """The ways to copy the closed segments of one site, and the times of their rounds."""

    site: SampleSite
    remote_log: RemoteLogManager
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes that every way copies."""
        return sum((self.site.logs / path).stat().st_size for path in self.site.closed_segments())

    def run(self, rounds: int) -> tuple[list[Timings], Timings]:
        """Run the ways in turns; return the timings of ours, one worker first, and of the peer."""
        self.one_worker()  # compiles what is not compiled yet
        self._read_sources()
        ways: dict[str, Callable[[], float]] = {
            "ours, one worker: a task of Spark": self.one_worker,
            f"ours, {COMMAND_LINE_WORKERS} workers, as the command line": self._workers,
            "peer: cp FILES && sync FILES": self._peer,
        }
        for number in range(rounds):
            order = list(ways) if number % 2 else list(reversed(ways))
            for name in order:
                self.seconds.setdefault(name, []).append(ways[name]())
        one_worker, workers, peer = (Timings(name, self.size, self.seconds[name]) for name in ways)
        return [one_worker, workers], peer

    def one_worker(self) -> float:
        """Copy all closed segments with one worker; return the seconds."""
        return self._ours(workers=1)

    def _workers(self) -> float:
        return self._ours(COMMAND_LINE_WORKERS)

    def _ours(self, workers: int) -> float:
        job = self.site.begin_copy(self.remote_log)
        access = self.remote_log.context.access(job.files)
        os.sync()
        with ThreadPoolExecutor(workers) as pool:
            begun = time.perf_counter()
            copied = sum(pool.map(lambda group: run_copy_groups(access, [group]), range(job.groups)))
            seconds = time.perf_counter() - begun
        for outcome in job.outcomes():
            if outcome.failure or outcome.damages:
                raise SystemExit(f"a copy went wrong, nothing was measured: {outcome}")
        if copied != len(self.site.closed_segments()):
            raise SystemExit(f"{copied} segments were copied, not {len(self.site.closed_segments())}")
        self.site.forget_copies()
        return seconds

    def _peer(self) -> float:
        target = self.site.root / "peer"
        target.mkdir()
        files = [str(path) for path in self.site.closed_segments()]
        script = 'target=$1; shift; cp --parents -- "$@" "$target" && cd "$target" && sync -- "$@"'
        os.sync()
        begun = time.perf_counter()
        subprocess.run(["sh", "-c", script, "sh", str(target), *files], cwd=self.site.logs, check=True)
        seconds = time.perf_counter() - begun
        shutil.rmtree(target)
        return seconds

    def _read_sources(self) -> None:
        for path in self.site.closed_segments():
            (self.site.logs / path).read_bytes()


def measure(title: str, sample: SampleLog, directory: Path, rounds: int) -> tuple[Timings, Timings]:
    """Print the contest over `sample` and return the timings of one worker of ours, and of the peer."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="copy-") as root:
        site = SampleSite(Path(root))
        site.write(sample)
        with site.open() as remote_log:
            contest = Contest(site, remote_log)
            files = len(site.closed_segments())
            print(f"{files} segments of {sample.segment_bytes >> 20} MiB, {title}; {rounds} rounds, taking turns")
            ours, peer = contest.run(rounds)
    print_comparison(ours, peer)
    return ours[0], peer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where source and copies go (4 GB; %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="how often each way copies all (%(default)s)")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    print("Copy to a local store: CRC of every batch, indexes, read-back, sync, marker; sources in the page cache")
    print_machine(directory)
    ours, peer = measure("batches of 16 KiB", BATCHES, directory, arguments.rounds)
    measure("batches of one record of 1 KiB", SINGLE_RECORDS, directory, arguments.rounds)
    own_cost = measure_own_cost(directory, arguments.rounds)
    print_machine(directory)
    ratio = ours.median / peer.median
    what = "copy, one worker, batches of 16 KiB"
    return judge([Goal(what, f"{ours.median:.2f} GB/s", f"{peer.median:.2f} cp and sync", ratio, GOAL), own_cost])


if __name__ == "__main__":
    sys.exit(main())
