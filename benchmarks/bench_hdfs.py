"""Writes objects to HDFS and reads them in ranges, against hdfs-native's plain write and read of the same bytes.

Ours writes under a temporary name with CRC-32C, syncs every block to disk, looks at the size and renames; the peer
writes and closes. Ours reads each range as a reader of segments does, opening the file again; the peer keeps it open.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hdfs_native import Client
from measuring import STATE, Goal, Timings, judge, print_comparison, print_machine

from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

sys.path.append(str(PROJECT_ROOT / "tests"))

GOAL = 0.7
MIB = 1 << 20
RANGE_BYTES = 4 * MIB
BLOCK_BYTES = 128 * MIB
SETTINGS = {"dfs.blocksize": str(BLOCK_BYTES)}


class Contest:
    """One object of `size` bytes, written and read by both."""

    def __init__(self, url: str, size: int) -> None:
        self._ours = Hdfs(f"{url}/ours", ObjectStoreOptions())
        self._plain = Client(url)
        self._plain.mkdirs("/plain", create_parent=True)
        self._piece = memoryview(bytes(range(256)) * (MIB // 256))
        self.size = size

    @property
    def ways(self) -> dict[str, Callable[[], None]]:
        """What takes turns: ours, then its peer."""
        return {
            "write": self._write,
            "write, hdfs-native": self._write_plainly,
            "read": self._read,
            "read, hdfs-native": self._read_plainly,
        }

    def _write(self) -> None:
        self._ours.put("object", self.size, self._pieces())

    def _write_plainly(self) -> None:
        self._plain.delete("/plain/object")
        with self._plain.create("/plain/object") as writer:
            for piece in self._pieces():
                writer.write(piece)

    def _read(self) -> None:
        for start in range(0, self.size, RANGE_BYTES):
            self._ours.get_range("object", start, RANGE_BYTES)

    def _read_plainly(self) -> None:
        reader = self._plain.read("/plain/object")
        for start in range(0, self.size, RANGE_BYTES):
            reader.read_range(start, RANGE_BYTES)

    def _pieces(self) -> Iterator[memoryview]:
        return (self._piece for _ in range(self.size // MIB))


def measured(contest: Contest, rounds: int) -> dict[str, Timings]:
    """Let the ways take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in contest.ways}
    for number in range(rounds + 1):
        for name, way in contest.ways.items():
            begun = time.perf_counter()
            way()
            if number:  # the first round warms everything up
                seconds[name].append(time.perf_counter() - begun)
    return {name: Timings(name, contest.size, taken) for name, taken in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="MiB of the object (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="how often each way goes (%(default)s)")
    arguments = parser.parse_args()
    from servers.hdfs import HadoopPrograms, RealHdfs  # noqa: PLC0415 -- the path to it is made above

    STATE.mkdir(parents=True, exist_ok=True)
    print_machine(STATE)
    with (
        tempfile.TemporaryDirectory(dir=STATE, prefix="hdfs-") as folder,
        RealHdfs(HadoopPrograms.fetched(PROJECT_ROOT / ".state"), Path(folder), settings=SETTINGS) as hdfs,
    ):
        timings = measured(Contest(hdfs.url, arguments.size * MIB), arguments.rounds)
    print(f"{arguments.size} MiB, one DataNode, {arguments.rounds} rounds")
    goals = []
    for what in ("write", "read"):
        ours, peer = timings[what], timings[f"{what}, hdfs-native"]
        print_comparison([ours], peer)
        ratio = ours.median / peer.median
        goals.append(Goal(f"HDFS, {what}", f"{ours.median:.2f} GB/s", f"{peer.median:.2f} hdfs-native", ratio, GOAL))
    return judge(goals)


if __name__ == "__main__":
    sys.exit(main())
