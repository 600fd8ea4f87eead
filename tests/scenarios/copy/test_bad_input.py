"""Bad input: the message names the fault and its place, nothing is lost, neighbours commit, and the run fails.

Every case runs `tiered-storage copy`, the same code as a run from Airflow, with threads in place of Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from servers.s3_proxy import refusing_proxy
from support.command_line import mentions
from support.object_stores import S3Endpoint
from tiered_storage.cli.main import main
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome
from tiered_storage.remote_log.manager import RemoteLogManager

SEGMENT_BYTES = 4096
VICTIM = "victim-0"
NEIGHBOUR = "neighbour-0"
LEASE_MS = 1000


@dataclass(frozen=True, slots=True)
class Deployment:
    """A log directory with two topics, of which a test breaks one segment, and settings that copy both."""

    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "kafka-logs"

    @property
    def config(self) -> Path:
        return self.root / "tiered_storage.yaml"

    @property
    def metadata(self) -> Path:
        return self.root / "state" / "remote_log_metadata.db"

    def victim_segment(self) -> Path:
        """The second closed segment of the victim: there is a sound one before it and one after it."""
        return list_segments(self.logs / VICTIM)[1].log_path

    def write_settings(self, **changes: object) -> None:
        topics = {name: {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.bytes": 1}
                  for name in ("victim", "neighbour")}  # fmt: skip
        settings: dict[str, object] = {"log.dirs": [str(self.logs)], "state.directory": "state", "topics": topics}
        self.config.write_text(yaml.safe_dump(settings | changes))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, the JSON document on standard output, and what standard error says."""

    code: int
    document: dict[str, object]
    said: str

    def committed(self, partition: str) -> int:
        rows = self.document["rows"]
        assert isinstance(rows, list)
        return sum(row["partition"] == partition for row in rows)


Command = Callable[..., Ended]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path)
    with LogDirectoryWriter.create(made.logs, random_uuid()) as writer:
        for topic in ("victim", "neighbour"):
            log = writer.create_log(topic, 0, random_uuid(), LogConfig(segment_bytes=SEGMENT_BYTES))
            for number in range(40):
                records = [Record(0, 1_700_000_000_000 + number, b"key", bytes([number]) * 100)] * 4
                log.append(records, Compression.NONE)
    made.write_settings()
    return made


@pytest.fixture
def command(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `tiered-storage` with --json on the deployment."""

    def run(*arguments: str) -> Ended:
        argv = ["tiered-storage", *arguments, "--config", str(deployment.config), "--json"]
        monkeypatch.setattr(sys, "argv", argv)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, said = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, json.loads(out), said)

    return run


def fingerprint(directory: Path) -> dict[str, str]:
    """Every file below `directory` with the SHA-256 of its bytes; Kafka's lock file, always empty, left out."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def cut_inside_a_batch(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def cut_between_batches(path: Path) -> None:
    content = path.read_bytes()
    size = 12 + struct.unpack_from(">i", content, 8)[0]
    path.write_bytes(content[: len(content) // size * size - size])


def set_magic_7(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[16] = 7
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip_a_byte, "at byte"),
        (cut_inside_a_batch, "truncated"),
        (cut_between_batches, "the next segment begins at"),
        (set_magic_7, "magic 7"),
    ],
)
def test_a_broken_segment_is_named_and_kept_and_its_neighbours_commit(
    deployment: Deployment, command: Command, harm: Callable[[Path], None], words: str
) -> None:
    broken = deployment.victim_segment()
    harm(broken)
    before = fingerprint(deployment.logs)

    copied = command("copy")

    assert copied.code == 1
    assert str(broken) in copied.said
    assert words in copied.said
    # Segments before the broken one are committed; later ones wait, so that readers find no gap.
    assert copied.committed(VICTIM) == 1
    assert copied.committed(NEIGHBOUR) == len(list_segments(deployment.logs / NEIGHBOUR)) - 1
    assert fingerprint(deployment.logs) == before

    retained = command("retain")
    assert retained.code == 1
    assert mentions(retained.said, VICTIM, "not yet remote")
    assert list_segments(deployment.logs / VICTIM)[0].log_path == broken
    assert command("audit", "--deep").code == 0


@pytest.mark.parametrize(
    ("suffix", "false_entry"), [("index", struct.pack(">ii", 1, 100)), ("timeindex", struct.pack(">qi", 1, 7))]
)
def test_an_index_that_disagrees_with_its_log_is_named_and_a_true_one_travels(
    deployment: Deployment, command: Command, suffix: str, false_entry: bytes
) -> None:
    index = deployment.victim_segment().with_suffix(f".{suffix}")
    index.write_bytes(false_entry)

    copied = command("copy")

    assert copied.code == 1
    assert str(index) in copied.said
    assert "rebuilt" in copied.said
    assert copied.committed(VICTIM) == len(list_segments(deployment.logs / VICTIM)) - 1
    assert command("audit", "--deep").code == 0


def test_a_directory_that_is_not_kafkas_is_refused(deployment: Deployment, command: Command, tmp_path: Path) -> None:
    somewhere = tmp_path / "holiday-pictures"
    somewhere.mkdir()
    (somewhere / "beach.jpg").write_bytes(b"sand")
    deployment.write_settings(**{"log.dirs": [str(somewhere)]})

    planned = command("copy")

    assert planned.code == 1
    assert str(somewhere) in planned.said
    assert "not a Kafka log directory" in planned.said
    assert fingerprint(somewhere) == {"beach.jpg": hashlib.sha256(b"sand").hexdigest()}


def test_a_directory_that_a_broker_holds_is_left_alone(deployment: Deployment, command: Command) -> None:
    lock = deployment.logs / ".lock"
    # A POSIX record lock on the whole file, as Java's FileChannel.tryLock takes it.
    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); "
    hold += "print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = fingerprint(deployment.logs)
        for name in ("plan", "copy", "retain"):
            refused = command(name)
            assert refused.code == 1
            assert f"process {holder.pid}" in refused.said
            assert str(lock) in refused.said
        assert fingerprint(deployment.logs) == before
        assert holder.stdin is not None
        holder.stdin.close()
    assert command("copy").code == 0
    assert command("audit", "--deep").code == 0


def test_a_target_without_room_is_named_and_smaller_neighbours_commit(deployment: Deployment) -> None:
    with LogDirectoryWriter.open(deployment.logs, LogConfig(segment_bytes=8 << 20)) as writer:
        log = writer.log("victim", 0)
        for number in range(30):
            log.append([Record(0, 1_700_000_001_000 + number, None, bytes(100_000))] * 3)
    before = fingerprint(deployment.logs)
    limit = 4 << 20

    def leave_little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-m", "tiered_storage.cli.main", "copy", "--config", str(deployment.config), "--json"],
        preexec_fn=leave_little_room,  # the kernel itself refuses to write beyond the limit
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert "RemoteStorageFullError" in done.stderr
    assert str(deployment.root / "state" / "remote") in done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert any(row["partition"] == NEIGHBOUR for row in rows)
    assert fingerprint(deployment.logs) == before
    assert not list((deployment.root / "state" / "remote").rglob("*.tmp"))


def settings_for(endpoint: S3Endpoint, url: str) -> dict[str, object]:
    """The settings of a store at `url` behind `endpoint`."""
    return {
        "rsm.config.url": url,
        "rsm.config.endpoint": endpoint.url,
        "rsm.config.region": endpoint.region,
        "rsm.config.allow.http": True,
    }


@pytest.fixture
def s3(s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    """An S3 server that the environment has the keys of."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_endpoint.secret_key)
    return s3_endpoint


def test_a_store_that_is_not_there_is_named_and_nothing_is_lost(
    deployment: Deployment, command: Command, s3: S3Endpoint
) -> None:
    deployment.write_settings(**settings_for(s3, "s3://no-such-bucket/prefix"))
    before = fingerprint(deployment.logs)

    refused = command("copy")

    assert refused.code == 1
    assert "no-such-bucket" in refused.said
    assert fingerprint(deployment.logs) == before
    # Without metadata nobody knows whose store it is, so read-only commands fail likewise.
    for looks in ("segments", "audit"):
        assert "no-such-bucket" in command(looks).said


def test_a_store_that_refuses_one_partition_is_named_and_its_neighbour_commits(
    deployment: Deployment, command: Command, s3: S3Endpoint
) -> None:
    url = f"s3://{s3.bucket}/{random_uuid()}"
    closed = {name: len(list_segments(deployment.logs / name)) - 1 for name in (VICTIM, NEIGHBOUR)}
    before = fingerprint(deployment.logs)
    with refusing_proxy(s3, "/victim-") as refusing:
        deployment.write_settings(**settings_for(refusing, url))

        copied = command("copy")

        assert copied.code == 1
        assert VICTIM in copied.said
        assert "RemoteStorageRefusedError" in copied.said
        assert re.search(rf"{url}/\S+/victim-\S+/0/\d{{20}}-\S+\.log", copied.said), copied.said
        assert "check credentials and rights" in copied.said
        assert copied.committed(NEIGHBOUR) == closed[NEIGHBOUR]
        assert copied.committed(VICTIM) == 0
        retained = command("retain")
        assert retained.code == 1
        assert mentions(retained.said, VICTIM, "not yet remote")
        kept = {name for name in fingerprint(deployment.logs) if name.startswith(VICTIM)}
        assert kept == {name for name in before if name.startswith(VICTIM)}
    deployment.write_settings(**settings_for(s3, url))

    allowed = command("copy")

    assert allowed.code == 0
    assert allowed.committed(VICTIM) == closed[VICTIM]
    assert command("audit", "--deep").code == 0


def test_a_locked_metadata_store_is_named_and_worth_another_try(deployment: Deployment, command: Command) -> None:
    assert command("copy").code == 0
    deployment.write_settings(**{"metadata.busy.timeout.ms": 100})
    with closing(sqlite3.connect(deployment.metadata)) as other:
        other.execute("BEGIN EXCLUSIVE")
        refused = command("topics", "disable", "victim")
        assert refused.code == 1
        assert refused.document["error"] == "MetadataUnavailableError"
        assert refused.document["retriable"] is True
        assert str(deployment.metadata) in refused.said
    assert command("topics", "disable", "victim").code == 0
    assert command("audit", "--deep").code == 0


def test_a_commit_that_meets_a_locked_metadata_store_is_named_and_the_next_run_commits_all(
    deployment: Deployment, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.write_settings(**{"metadata.busy.timeout.ms": 100, "lease.duration.ms": LEASE_MS})
    closed = {name: len(list_segments(deployment.logs / name)) - 1 for name in (VICTIM, NEIGHBOUR)}
    before = fingerprint(deployment.logs)
    commit = RemoteLogManager.commit_copy

    def commit_while_locked(remote_log: RemoteLogManager, outcomes: Iterable[CopyOutcome]) -> CommitReport:
        with closing(sqlite3.connect(deployment.metadata, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            return commit(remote_log, outcomes)

    with monkeypatch.context() as locked:
        locked.setattr(RemoteLogManager, "commit_copy", commit_while_locked)
        refused = command("copy")

    assert refused.code == 1
    assert refused.document["error"] == "MetadataUnavailableError"
    assert refused.document["retriable"] is True
    assert str(deployment.metadata) in refused.said
    rows = command("segments").document["rows"]
    assert isinstance(rows, list)
    assert {row["state"] for row in rows} == {"COPY_SEGMENT_STARTED"}
    retained = command("retain")
    assert retained.code == 1
    assert mentions(retained.said, VICTIM, "not yet remote")
    assert fingerprint(deployment.logs) == before

    time.sleep(1.5 * LEASE_MS / 1000)  # the failed run could not release its leases
    copied = command("copy")

    assert copied.code == 0
    assert {name: copied.committed(name) for name in closed} == closed
    assert command("audit", "--deep").code == 0


def test_a_corrupt_metadata_store_is_named_and_left_as_it_is(deployment: Deployment, command: Command) -> None:
    assert command("copy").code == 0
    for beside in deployment.metadata.parent.glob(f"{deployment.metadata.name}-*"):
        beside.unlink()
    deployment.metadata.write_bytes(b"this was a database once" * 1000)
    before = fingerprint(deployment.root)

    for name in ("copy", "retain", "expire", "audit"):
        refused = command(name)
        assert refused.code == 1
        assert refused.document["error"] == "MetadataCorruptError"
        assert str(deployment.metadata) in refused.said
    assert fingerprint(deployment.root) == before

    # An audit needs metadata: rebuild them from the store first.
    deployment.metadata.unlink()
    assert command("rebuild-metadata", "--yes").code == 0
    assert command("audit", "--deep").code == 0


def test_two_copies_at_once_copy_each_segment_once(deployment: Deployment, command: Command) -> None:
    arguments = [sys.executable, "-m", "tiered_storage.cli.main", "copy", "--config", str(deployment.config), "--json"]
    runs = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [run.communicate(timeout=120) for run in runs]

    # A run that met the other one reports it; together they copied each segment once.
    for run, (_, said) in zip(runs, ended, strict=True):
        assert run.returncode == 0 or "works on it until" in said, said
    copied = [(row["partition"], row["start_offset"]) for out, _ in ended for row in json.loads(out)["rows"]]
    closed = sum(len(list_segments(deployment.logs / name)) - 1 for name in (VICTIM, NEIGHBOUR))
    assert len(copied) == len(set(copied)) == closed
    assert command("audit", "--deep").code == 0
