"""Measures how long a lost replica takes until it is back, with and without tiering.

Two topics of one broker have the same records. One is copied, and the other is not. Each round builds a new replica of
both, in turns: the follower of the first fetches only what is not remote yet (KIP-1023), that of the second everything.
The same code fetches, checks and writes in both.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import yaml
from bench_export import PARTITIONS, produce
from measuring import Goal, judge
from one_broker import arguments, one_broker

TIERED, PLAIN = "tiered", "plain"
SEGMENT_BYTES = 32 << 20
GOAL = 0.5


def settings(root: Path, servers: str) -> Path:
    """Write the settings file and return its path."""
    config = root / "settings.yaml"
    given = {
        "bootstrap.servers": servers,
        "state.directory": str(root / "state"),
        "follower.fetch.last.tiered.offset.enable": True,
        "topics": {TIERED: {"remote.storage.enable": True}},
    }
    config.write_text(yaml.safe_dump(given))
    return config


def copy(config: Path) -> None:
    """Copy all that is closed, in a process of its own."""
    program = str(Path(sys.executable).with_name("tiered-storage"))
    subprocess.run([program, "copy", "--config", str(config)], check=True, stdout=subprocess.DEVNULL)


def replica(config: Path, topic: str, directory: Path) -> float:
    """Build a replica of one partition in a new directory, and return how long that took (s)."""
    from tiered_storage.clock import wall_clock  # noqa: PLC0415 - slow to import
    from tiered_storage.remote_log.context import store_options  # noqa: PLC0415 - as above
    from tiered_storage.remote_log.follower.follower import Follower, follow  # noqa: PLC0415 - as above
    from tiered_storage.remote_log.manager import RemoteLogManager  # noqa: PLC0415 - as above
    from tiered_storage.settings.settings import load_settings  # noqa: PLC0415 - as above

    loaded = load_settings(config)
    with RemoteLogManager.open(loaded, wall_clock, store_options(loaded)) as remote_log:
        begun = time.perf_counter()
        partition = remote_log.find_partition(topic, 0)
        with Follower.open(remote_log.context, partition, directory) as follower:
            report = follow(follower)
        seconds = time.perf_counter() - begun
    print(f"  {topic}: {report.fetched_bytes >> 20} MiB fetched from offset {report.local_start_offset} on")
    shutil.rmtree(directory)
    return seconds


def main() -> int:
    """Measure; return 1 if the goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512, help="of each partition")
    given = parser.parse_args()
    with one_broker(given.directory, "replica-") as (root, kafka):
        for topic in (TIERED, PLAIN):
            kafka.client.create_topic(topic, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
            produce(kafka.bootstrap_servers, PARTITIONS * given.mib << 20, topic)
        config = settings(root, kafka.bootstrap_servers)
        copy(config)
        for topic in (TIERED, PLAIN):
            replica(config, topic, root / "first")
        took: dict[str, list[float]] = {TIERED: [], PLAIN: []}
        for number in range(given.rounds):
            for topic, seconds in took.items():
                seconds.append(replica(config, topic, root / f"{topic}-{number}"))
    for topic, seconds in took.items():
        print(f"  {topic}, each round (s): {' '.join(f'{each:.1f}' for each in seconds)}")
    ours, plain = median(took[TIERED]), median(took[PLAIN])
    goal = Goal(
        f"a lost replica of {given.mib} MiB is back", f"{ours:.1f} s", f"{plain:.1f} s untiered", ours / plain, GOAL,
        is_most=True,
    )  # fmt: skip
    return judge([goal])


if __name__ == "__main__":
    sys.exit(main())
