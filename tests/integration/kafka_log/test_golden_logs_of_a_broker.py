"""Golden logs fresh from a broker, beside the committed ones, against all code that reads, rebuilds and shows them.

The broker's internal topics and files that it has open are shown as well.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from golden import checks
from golden.aiokafka_clients import ProduceRefusedError, produce_batch
from golden.framings import REFUSED_FRAMINGS, batch_in
from golden.logs import KNOWN_TO_THE_TOOL, GoldenLogs, make_golden_logs, split_dump
from golden.tool_rows import rows_of_ours, rows_of_the_tool
from golden.topics import framed_records
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run
from support.kafka_clients import send
from support.records import some_records, varied_records
from support.waiting import wait_for
from tiered_storage.kafka_log.dump.dump_event import DumpRow
from tiered_storage.kafka_log.dump.file_dump import dump_file, find_files
from tiered_storage.kafka_log.dump.file_kind import FileKind, KafkaFile
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.records.record_batch import read_records

SCALE = 6
_LINE_ENDS = (b"\r", b"\n", b"\r\n", b"\n\r", b"")
_ROW_OF_ZEROS = {
    FileKind.OFFSET_INDEX: "offset: {} position: 0",
    FileKind.TIME_INDEX: "timestamp: 0 offset: {}",
}


@pytest.fixture(scope="module")
def golden(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> GoldenLogs:
    root, work = tmp_path_factory.mktemp("golden"), tmp_path_factory.mktemp("broker")
    return make_golden_logs(kafka_programs, root, work, SCALE)


@pytest.fixture(scope="module")
def live(real_kafka: RealKafka) -> RealKafka:
    """A broker that has batches, transactions and indexes in segments that it has open, and indexes without entries."""
    client = real_kafka.client
    client.create_topic("shown-live")
    client.produce("shown-live", varied_records(300, seed=1), batch_num_messages=20)
    producer = client.producer(transactional_id="shown-live", enable_idempotence="true", batch_num_messages=20)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, "shown-live", 0, varied_records(50, seed=2))
    producer.abort_transaction()
    _wait_for_abort(real_kafka.log_dir / "shown-live-0")
    client.create_topic("shown-short")
    client.produce("shown-short", varied_records(1, seed=3))
    client.create_topic("shown-ends")
    client.produce("shown-ends", (record for end in _LINE_ENDS for record in some_records(value=b"value" + end)))
    return real_kafka


def _wait_for_abort(directory: Path) -> None:
    """Wait until the marker is in the log: the coordinator answers the producer before."""
    wait_for(lambda: any(path.stat().st_size for path in directory.glob("*.txnindex")), seconds=30)


@pytest.mark.parametrize("check", checks.CHECKS)
def test_fresh_golden_logs(golden: GoldenLogs, check: Callable[[GoldenLogs], None]) -> None:
    check(golden)


@pytest.mark.parametrize("check", checks.CHECKS_OF_COPIES)
def test_copies_of_fresh_golden_logs(
    golden: GoldenLogs, check: Callable[[GoldenLogs, Path], None], tmp_path: Path
) -> None:
    check(golden, tmp_path)


@pytest.mark.parametrize("name", REFUSED_FRAMINGS)
def test_framings_that_only_we_read_are_refused_by_a_broker(real_kafka: RealKafka, name: str) -> None:
    topic = f"refused-{len(name)}"
    real_kafka.client.create_topic(topic)
    batch = batch_in(REFUSED_FRAMINGS[name], framed_records(0))
    assert read_records(batch) == framed_records(0)
    with pytest.raises(ProduceRefusedError):
        produce_batch(real_kafka.bootstrap_servers, topic, 0, batch)
    assert real_kafka.client.consume_all(topic) == []


def test_a_live_brokers_directory_is_shown_and_left_alone(live: RealKafka) -> None:
    before = _states(live.log_dir / "shown-live-0")
    result = run("dump", "--json", "--records", live.log_dir)
    assert result.exit_code == 0, result.err + result.out[-2000:]
    lines = [json.loads(line) for line in result.out.splitlines()]
    shown = {Path(line["file"]).relative_to(live.log_dir).as_posix() for line in lines if line["type"] == "end"}
    assert shown >= {
        "meta.properties",
        "__cluster_metadata-0/00000000000000000000.log",
        "__transaction_state-0/00000000000000000000.log",
        "shown-live-0/00000000000000000000.index",
    }
    assert any(line.get("controlType") == "LEADER_CHANGE" for line in lines)
    aborted = [(line["firstOffset"], line["lastOffset"]) for line in lines if "lastStableOffset" in line]
    assert (300, 350) in aborted
    assert _states(live.log_dir / "shown-live-0") == before


def test_a_live_brokers_files_are_shown_as_kafkas_tool_shows_them(live: RealKafka, tmp_path: Path) -> None:
    names = ("__cluster_metadata-0", "__transaction_state-0", "shown-live-0", "shown-short-0", "shown-ends-0")
    files = [file for file in find_files(_copied(live.log_dir, names, tmp_path)) if file.kind in KNOWN_TO_THE_TOOL]
    options = ("--deep-iteration", "--print-data-log", "--files", ",".join(str(file.path) for file in files))
    dumped = split_dump(live.tool("org.apache.kafka.tools.DumpLogSegments", *options))
    rows = 0
    without_entries = set()
    for file in files:
        ours = rows_of_ours(file.kind, dump_file(file, with_records=True))
        theirs = rows_of_the_tool(file.kind, dumped[str(file.path)])
        if _is_preallocated_without_entries(file):
            # An entry of zeros ends the tool's loop over them only from the second one on.
            assert (ours, theirs) == ([], [_ROW_OF_ZEROS[file.kind].format(file.offset)]), file.path
            without_entries.add((file.path.parent.name, file.kind))
        else:
            assert ours == theirs, file.path
            rows += len(ours)
    assert {("shown-short-0", kind) for kind in _ROW_OF_ZEROS} <= without_entries
    assert rows > 400


def _copied(log_dir: Path, names: Iterable[str], to: Path) -> list[Path]:
    """Copy these partitions, for the tool falls over a file that grows while it has it open.

    Each log is copied after its indexes, so that none of them points past its end.
    """
    for name in names:
        (to / name).mkdir()
        for path in sorted((log_dir / name).iterdir(), key=lambda path: path.suffix == ".log"):
            shutil.copy(path, to / name)
    return [to / name for name in names]


def _is_preallocated_without_entries(file: KafkaFile) -> bool:
    content = file.path.read_bytes() if file.kind in _ROW_OF_ZEROS else b""
    return content != b"" and not any(content)


def test_the_voters_of_a_cluster_are_shown_as_kafkas_tool_shows_them(
    kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    configuration = tmp_path / "controller.properties"
    properties = {
        "process.roles": "controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
        "listeners": "CONTROLLER://127.0.0.1:9093",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        "log.dirs": str(tmp_path / "log-dir"),
    }
    configuration.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    options = ("--standalone", f"--cluster-id={random_uuid()}", "--config", configuration)
    kafka_programs.tool("kafka.tools.StorageTool", "format", *options)
    [file] = [file for file in find_files([tmp_path / "log-dir"]) if "-00000000" in file.path.name]
    ours = list(dump_file(file, with_records=True))
    kinds = [event.fields.get("controlType") for event in ours if isinstance(event, DumpRow)]
    assert [kind for kind in kinds if kind] == ["SNAPSHOT_HEADER", "KRAFT_VERSION", "KRAFT_VOTERS", "SNAPSHOT_FOOTER"]
    dumped = kafka_programs.tool("org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", file.path)
    theirs = rows_of_the_tool(file.kind, split_dump(dumped)[str(file.path)])
    assert rows_of_ours(file.kind, ours) == theirs


def _states(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """The content of each file, and when and how it was last changed."""
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes()) for path in directory.iterdir()
    }
