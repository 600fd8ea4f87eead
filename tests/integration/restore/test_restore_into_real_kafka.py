"""Restore into a running cluster: the committed records are produced there, each once, whatever ends a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.programs import Programs, ProgramServer
from crashes.shared_clock import SharedClock
from servers.real_kafka import RealKafka
from support.command_line import CommandResult, mentions, run_on
from support.records import varied_records
from support.remote_logs import (
    NOW,
    RemoteLogFiles,
    a_remote_log,
    copy,
    record,
    records,
    unsynced,
)
from tiered_storage.errors import TargetClusterError
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.restore.offset_map import OffsetMap, OffsetMapWriter
from tiered_storage.remote_log.restore.target_cluster import Sender

VARIED, TRANSACTIONS = 0, 1
CONFIG = LogConfig(segment_bytes=6000)
SENTINEL = Record(0, NOW + 77, b"sentinel", b"written before the loss", (("header", b"\x00\xff"), ("none", None)))


class Died(BaseException):
    """As SIGKILL: nothing of ours runs after it."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[RemoteLogFiles, dict[int, list[Record]]]:
    """A copied topic, and the committed records of its partitions."""
    files = a_remote_log(tmp_path_factory.mktemp("written"), {("orders", 0): 0})
    with unsynced(), LogDirectoryWriter.open(files.log_directory, CONFIG, clock=lambda: NOW) as writer:
        varied = writer.log("orders", VARIED)
        committed = {VARIED: records(0, 5), TRANSACTIONS: _transactions(writer)}
        for codec in Compression:
            some = list(varied_records(40, seed=codec))
            first = varied.append(some, codec)
            committed[VARIED] += [_at(each, first + i) for i, each in enumerate(some)]
        committed[VARIED].append(_at(SENTINEL, varied.append([SENTINEL])))
        varied.roll()
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    return files, committed


def _transactions(writer: LogDirectoryWriter) -> list[Record]:
    """Write transactions that span segments, every other one aborted; return the committed records."""
    log = writer.create_log(
        "orders", TRANSACTIONS, writer.log("orders", 0).topic_id or "", LogConfig(segment_bytes=700)
    )
    committed: list[Record] = []
    sequence = 0
    for number in range(8):
        offsets = []
        for _ in range(3):
            offsets.append(_append(log, sequence, transactional=True))
            sequence += 1
            committed.append(record(_append(log, None, transactional=False)))
        kind = ControlRecordType.ABORT if number % 2 else ControlRecordType.COMMIT
        log.append_end_marker(7, 0, kind)
        if kind is ControlRecordType.COMMIT:
            committed += [record(offset) for offset in offsets]
    log.roll()
    return sorted(committed, key=lambda each: each.offset)


def _append(log: LocalLog, sequence: int | None, *, transactional: bool) -> int:
    if sequence is None:
        return log.append([record(log.log_end_offset)])
    return log.append(
        [record(log.log_end_offset)],
        producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=transactional,
    )  # fmt: skip


def _at(each: Record, offset: int) -> Record:
    return Record(offset, each.timestamp, each.key, each.value, each.headers)


def renumbered(found: list[Record], start: int = 0) -> list[Record]:
    return [_at(each, start + i) for i, each in enumerate(found)]


@pytest.fixture
def target(real_kafka: RealKafka, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of its own for each test, with more partitions than are needed."""
    name = f"restored-{abs(hash(request.node.nodeid))}"
    real_kafka.client.create_topic(name, 3)
    yield name


def restore(files: RemoteLogFiles, kafka: RealKafka, target: str, folder: Path, *options: object) -> CommandResult:
    return run_on(
        files, "restore", "orders", "--to-cluster", kafka.bootstrap_servers, "--as-topic", target,
        "--offset-map", folder / "map.jsonl", "--json", *options,
    )  # fmt: skip


def test_all_committed_records_are_restored_and_the_map_has_their_offsets(
    written: tuple[RemoteLogFiles, dict[int, list[Record]]], real_kafka: RealKafka, target: str, tmp_path: Path
) -> None:
    files, committed = written
    result = restore(files, real_kafka, target, tmp_path, "--validation", "records")
    assert result.exit_code == 0, result.err
    offset_map = OffsetMap.read(tmp_path / "map.jsonl")
    for number, old in committed.items():
        found = real_kafka.client.consume_all(target, number)
        assert found == renumbered(old)
        assert [offset_map.new_offset(number, each.offset) for each in old] == list(range(len(old)))
    assert SENTINEL.value in [each.value for each in real_kafka.client.consume_all(target, VARIED)]
    assert [(row["partition"], row["sent"], row["found"]) for row in result.rows] == [
        (f"{target}-{number}", len(old), 0) for number, old in committed.items()
    ]
    # All is there: another run has nothing to do, by its map; without it the topic is no longer empty.
    again = restore(files, real_kafka, target, tmp_path)
    assert [(row["sent"], row["found"]) for row in again.rows] == [(0, 0), (0, 0)]
    other = restore(files, real_kafka, target, tmp_path / "other")
    assert f"{target}-0, {target}-1 hold records already" in other.document["message"]


@pytest.mark.parametrize(
    "answered", [0, 206, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 60, 205, 230))]
)
def test_after_a_crash_the_next_restore_sends_each_missing_record_once(
    written: tuple[RemoteLogFiles, dict[int, list[Record]]],
    real_kafka: RealKafka,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answered: int,
) -> None:
    """It dies when so many answers have come; the map on the disk has none of them, the cluster has more."""
    files, committed = written
    count = 0
    delivered = Sender._delivered

    def die_at(self: Sender, *answer: object) -> None:
        nonlocal count
        if count == answered:
            self._failure = TargetClusterError("died")
            return
        count += 1
        delivered(self, *answer)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Sender, "_delivered", die_at)
        patched.setattr(OffsetMapWriter, "flush", lambda _: None)
        patched.setattr(Sender, "abandon", lambda self: self._producer.flush(10))
        assert restore(files, real_kafka, target, tmp_path).exit_code == 1
    with (tmp_path / "map.jsonl").open("ab") as file:
        file.write(b'{"partition": 0, "old"')  # a line that the crash has torn
    result = restore(files, real_kafka, target, tmp_path, "--validation", "records")
    assert result.exit_code == 0, result.err
    assert sum(row["found"] for row in result.rows) > 0
    for number, old in committed.items():
        assert real_kafka.client.consume_all(target, number) == renumbered(old)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "crash",
    [
        Crash(CrashPoint.AFTER_FILE_SYNCED),
        *(Crash(CrashPoint.AFTER_RECORD_MAPPED, nth) for nth in (1, 100, 206, 230)),
        *(Crash(CrashPoint.BEFORE_MAP_WRITTEN, nth) for nth in (1, 2)),
        *(Crash(CrashPoint.AFTER_MAP_WRITTEN, nth) for nth in (1, 2)),
    ],
    ids=str,
)
def test_after_a_kill_the_next_restore_sends_each_missing_record_once(
    written: tuple[RemoteLogFiles, dict[int, list[Record]]],
    real_kafka: RealKafka,
    target: str,
    tmp_path: Path,
    crash: Crash,
) -> None:
    """Killed by SIGKILL: records that librdkafka's thread sent without a report are in the cluster too."""
    files, committed = written
    clock = SharedClock(tmp_path / "clock")
    command = ("restore", "orders", "--to-cluster", real_kafka.bootstrap_servers, "--as-topic", target)
    where = ("--offset-map", tmp_path / "map.jsonl", "--config", files.config)
    with ProgramServer() as server, Programs(server, tmp_path / "programs", clock.path) as programs:
        programs.kill(*command, *where, at=crash)
    result = restore(files, real_kafka, target, tmp_path, "--validation", "records")
    assert result.exit_code == 0, result.err
    offset_map = OffsetMap.read(tmp_path / "map.jsonl")
    for number, old in committed.items():
        assert real_kafka.client.consume_all(target, number) == renumbered(old)
        assert [offset_map.new_offset(number, each.offset) for each in old] == list(range(len(old)))
    with files.open() as remote_log:
        assert remote_log.checks.audit(deep=True).anomalies == ()


def test_it_is_appended_only_where_that_is_wanted(
    written: tuple[RemoteLogFiles, dict[int, list[Record]]], real_kafka: RealKafka, target: str, tmp_path: Path
) -> None:
    files, committed = written
    [before] = real_kafka.client.produce(target, [Record(0, NOW, None, b"was there")])
    assert restore(files, real_kafka, target, tmp_path).exit_code == 1
    result = restore(files, real_kafka, target, tmp_path, "--append", "--partitions", "0")
    assert result.exit_code == 0, result.err
    assert real_kafka.client.consume_all(target) == [before, *renumbered(committed[VARIED], 1)]


def test_a_map_of_somebody_elses_records_is_found_out(
    written: tuple[RemoteLogFiles, dict[int, list[Record]]],
    real_kafka: RealKafka,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, _ = written
    with monkeypatch.context() as patched:
        patched.setattr(Sender, "send", lambda *_: (_ for _ in ()).throw(TargetClusterError("nothing was sent")))
        assert restore(files, real_kafka, target, tmp_path).exit_code == 1
    real_kafka.client.produce(target, [Record(0, NOW, None, b"of somebody else")])
    result = restore(files, real_kafka, target, tmp_path)
    assert "somebody else writes" in result.document["message"]
    renamed = restore(files, real_kafka, target, tmp_path, "--from-offset", "1")
    assert "map of another restore" in renamed.document["message"]


def test_records_that_the_cluster_cannot_hold_are_refused(
    written: tuple[RemoteLogFiles, dict[int, list[Record]]], real_kafka: RealKafka, target: str, tmp_path: Path
) -> None:
    files, _ = written
    real_kafka.client.create_topic(f"{target}-narrow", 1)
    narrow = restore(files, real_kafka, f"{target}-narrow", tmp_path)
    assert mentions(narrow.document["message"], "1 partitions", "2 are needed")
    absent = restore(files, real_kafka, f"{target}-absent", tmp_path)
    assert f"no topic {target}-absent: create" in absent.document["message"]
    assert not list(tmp_path.glob("map*"))
    real_kafka.client.create_topic(f"{target}-small", 2, {"max.message.bytes": "100"})
    small = restore(files, real_kafka, f"{target}-small", tmp_path)
    assert small.document["error"] == "TargetClusterError"
    assert mentions(small.document["message"], "offset 0 ", "not accepted")


def test_a_restore_reports_what_it_does_not_keep(
    written: tuple[RemoteLogFiles, dict[int, list[Record]]], real_kafka: RealKafka, target: str, tmp_path: Path
) -> None:
    files, committed = written
    stamped = {"message.timestamp.type": "LogAppendTime"}
    real_kafka.client.create_topic(f"{target}-stamped", 2, stamped)
    times = ("--from-time", committed[VARIED][5].timestamp, "--to-time", committed[VARIED][25].timestamp)
    result = restore(files, real_kafka, f"{target}-stamped", tmp_path, *times, "--validation", "records")
    assert result.exit_code == 0, result.err
    assert "message.timestamp.type=LogAppendTime" in result.err
    begin, end = (committed[VARIED][at].timestamp for at in (5, 25))
    wanted = [each for each in committed[VARIED] if begin <= each.timestamp < end]
    found = real_kafka.client.consume_all(f"{target}-stamped", VARIED)
    assert [each.value for each in found] == [each.value for each in wanted]
    assert {each.timestamp > NOW for each in found} == {True}
