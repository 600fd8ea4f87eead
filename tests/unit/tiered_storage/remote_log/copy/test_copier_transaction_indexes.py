"""What the copier makes of transaction indexes and producer snapshots that are missing, broken or false."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.logs import GoldenLogs
from support.clocks import ManualClock
from support.command_line import mentions
from support.local_logs import NOW, TOPIC_ID
from support.records import USUAL_EXAMPLES
from support.remote_logs import ORDERS_0, flip_bit, location_of, unsynced
from support.transactions import ABORT, COMMIT, data, marker
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.indexes.transaction_index import (
    ENTRY_BYTES,
    AbortedTxn,
    TransactionIndex,
    encode_aborted_transactions,
)
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers import producer_history
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, ProducerHistory
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot, write_producer_snapshot
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from unit.tiered_storage.follower_fetches import (
    BEGINS_AGAIN,
    BEGINS_AGAIN_INDEX,
    BEGUN_AGAIN_ABORT,
    BEGUN_AGAIN_ABORTED,
    BEGUN_AGAIN_ABORTED_INDEX,
)

CLOCK = ManualClock(NOW + 5)
SIZES = CopySizes(window=300, index_interval=150, remote_index_chunk=400)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150)
GOLDEN = GoldenLogs(Path(__file__).parents[4] / "golden")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of many segments, of two producers with transactions over their borders and one without any."""
    root = tmp_path_factory.mktemp("written")
    with unsynced(), LocalLog.create(root, "orders", 0, TOPIC_ID, CONFIG, clock=lambda: NOW) as log:
        for sequence in range(60):
            producer = sequence % 3
            log.append_encoded_batch(data(0, 20 + producer, sequence // 3, transactional=producer < 2))
            if sequence % 13 == 12:
                log.append_end_marker(20 + sequence % 2, 0, ABORT if sequence % 26 == 12 else COMMIT)
    return log.directory


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / written.name)


@pytest.fixture
def aborting(directory: Path) -> LogSegment:
    """A segment with an abort marker whose transaction began in an earlier one."""
    *_, segment = (segment for segment in list_segments(directory) if segment.has_transaction_index())
    [entry] = TransactionIndex.read(segment.transaction_index_path, segment.base_offset).transactions
    assert entry.first_offset < segment.base_offset
    return segment


@pytest.fixture
def storage(tmp_path: Path) -> ObjectRemoteStorageManager:
    return ObjectRemoteStorageManager(LocalDirectory(tmp_path / "store"))


def end_of(segment: LogSegment) -> int:
    """The base offset of the segment after this one."""
    return next(each.base_offset for each in list_segments(segment.directory) if each > segment)


def snapshot_before(segment: LogSegment) -> Path:
    return producer_snapshot_path(segment.directory, segment.base_offset)


def snapshot_after(segment: LogSegment) -> Path:
    return producer_snapshot_path(segment.directory, end_of(segment))


def copied(
    segment: LogSegment,
    storage: ObjectRemoteStorageManager,
    history: ProducerHistory | None = None,
    readable_from: int = 0,
) -> CopyOutcome:
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(ORDERS_0, random_uuid()),
        segment.base_offset,
        end_of(segment) - 1,
        -1,
        NOW,
        segment.size(),
        (EpochEntry(0, 0),),
    )
    task = CopyTask(metadata, Lease(ORDERS_0, "copy", 1, NOW), location_of(segment.log_path), (), readable_from)
    with unsynced():
        return copy_segment(task, storage, SIZES, CLOCK, history)


def fetched(outcome: CopyOutcome, storage: ObjectRemoteStorageManager, kind: IndexKind) -> bytes:
    """What travelled; nothing where it is not there."""
    assert outcome.failure is None, outcome.failure
    assert outcome.finished is not None
    try:
        return storage.fetch_index(outcome.task.metadata.updated(outcome.finished), kind)
    except RemoteObjectNotFoundError:
        return b""


def refused(outcome: CopyOutcome, storage: ObjectRemoteStorageManager) -> str:
    """Why a segment was not copied."""
    assert outcome.failure is not None
    assert not [found.name for found in storage.list_objects() if found.name.endswith(".commit")]
    assert (outcome.failure.error, outcome.failure.retriable) == ("InvalidLogDirectoryError", False)
    return outcome.failure.message


def forget_what_was_before(segment: LogSegment) -> None:
    """Leave a log that begins with `segment`, and nothing that records producers before it."""
    for earlier in list_segments(segment.directory):
        if earlier < segment:
            earlier.log_path.unlink()
    for path in segment.directory.glob("*.snapshot"):
        if int(path.stem) <= segment.base_offset:
            path.unlink()


def test_files_that_are_true_travel_as_they_are(directory: Path, storage: ObjectRemoteStorageManager) -> None:
    indexes = 0
    for segment in list_segments(directory)[:-1]:
        outcome = copied(segment, storage)

        index = segment.transaction_index_path.read_bytes() if segment.has_transaction_index() else b""
        indexes += bool(index)
        assert outcome.damages == outcome.notices == ()
        assert fetched(outcome, storage, IndexKind.TRANSACTION) == index
        assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == snapshot_after(segment).read_bytes()
    assert indexes == 2


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def nonsense(path: Path) -> None:
    path.write_bytes(b"\xff" * ENTRY_BYTES)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def false_at(position: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)

    return damage


def one_more(path: Path) -> None:
    index = TransactionIndex.read(path, int(path.stem))
    last = index.transactions[-1]
    more = replace(last, last_offset=last.last_offset + 1)
    path.write_bytes(encode_aborted_transactions([*index.transactions, more]))


DAMAGES = [
    *(pytest.param(damage, id=damage.__name__) for damage in (missing, empty, nonsense, torn, one_more)),
    *(pytest.param(false_at(end), id=f"false to byte {end}") for end in (9, 17, 25)),
]
"""The last bytes of an entry's producer id, first offset and last offset."""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("before", ["snapshot", "segments"])
def test_an_index_that_is_not_true_is_reported_and_a_rebuilt_one_travels(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None], before: str
) -> None:
    path = aborting.transaction_index_path
    true = path.read_bytes()
    damage(path)
    if before == "segments":
        for snapshot in aborting.directory.glob("*.snapshot"):
            if int(snapshot.stem) <= aborting.base_offset:
                snapshot.unlink()

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == true
    [message] = outcome.damages
    assert str(path) in message
    assert mentions(message, "rebuilt", "broker is stopped", aborting.offset_index_path)


@pytest.mark.parametrize(("difference", "travels"), [(-3, -3), (1, 0), (100, 0)])
@pytest.mark.parametrize("before", ["known", "unknown"])
def test_another_last_stable_offset_is_no_damage_and_the_lower_one_travels(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, difference: int, travels: int, before: str
) -> None:
    path = aborting.transaction_index_path
    [true] = TransactionIndex.read(path, aborting.base_offset).transactions
    false = replace(true, last_stable_offset=true.last_stable_offset + difference)
    path.write_bytes(encode_aborted_transactions([false]))
    if before == "unknown":
        forget_what_was_before(aborting)
        travels = min(difference, true.last_offset + 1 - true.last_stable_offset)

    with mock.patch.object(ProducerHistory, "by_the_log", side_effect=ProducerHistory.by_the_log, autospec=True) as by:
        outcome = copied(aborting, storage)

    expected = replace(true, last_stable_offset=true.last_stable_offset + travels)
    assert fetched(outcome, storage, IndexKind.TRANSACTION) == encode_aborted_transactions([expected])
    assert outcome.damages == outcome.notices == ()
    assert by.call_count == (before == "unknown")


@pytest.mark.parametrize("oldest", [False, True])
def test_a_brokers_index_of_whole_fetches_is_sound_and_ends_no_read_early(
    tmp_path: Path, storage: ObjectRemoteStorageManager, oldest: bool
) -> None:
    """Also as the oldest segments of a log that begins later, after others in the store."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID) as log:
        for fetch in (BEGINS_AGAIN, BEGUN_AGAIN_ABORTED):
            log.append_as_follower(fetch)
            log.roll()
        first, second, _ = log.segments
    first.transaction_index_path.write_bytes(BEGINS_AGAIN_INDEX)
    assert second.transaction_index_path.read_bytes() == BEGUN_AGAIN_ABORTED_INDEX
    if oldest:
        first.log_path.unlink()
        snapshot_before(second).unlink()

    sent = []
    for segment in (first, second)[oldest:]:
        outcome = copied(segment, storage)
        assert outcome.damages == outcome.notices == ()
        path = tmp_path / f"sent.{segment.base_offset}"
        path.write_bytes(fetched(outcome, storage, IndexKind.TRANSACTION))
        sent.append(TransactionIndex.read(path, segment.base_offset))

    assert sent[-1].transactions == (BEGUN_AGAIN_ABORT,)
    if not oldest:
        assert [entry.last_stable_offset for entry in sent[0].transactions] == [2]


def test_an_index_of_a_segment_without_aborts_is_false(directory: Path, storage: ObjectRemoteStorageManager) -> None:
    first, *_, aborting = (
        segment for segment in list_segments(directory) if segment.base_offset == 0 or segment.has_transaction_index()
    )
    entry = replace(
        TransactionIndex.read(aborting.transaction_index_path, 0).transactions[0],
        first_offset=0,
        last_offset=1,
        last_stable_offset=2,
    )
    first.transaction_index_path.write_bytes(encode_aborted_transactions([entry]))

    outcome = copied(first, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    [message] = outcome.damages
    assert mentions(message, f"{first.transaction_index_path}: at byte 0: ")


@pytest.mark.parametrize(
    "damage", [missing, nonsense, torn, one_more, false_at(9), false_at(25)], ids=lambda damage: damage.__name__
)
def test_nothing_is_copied_if_the_aborts_are_unknown(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    damage(aborting.transaction_index_path)
    snapshot = snapshot_before(aborting)
    forget_what_was_before(aborting)

    message = refused(copied(aborting, storage), storage)

    assert str(aborting.transaction_index_path) in message
    assert mentions(message, snapshot, "another replica")
    assert f"before offset {aborting.base_offset}" in message


@pytest.mark.parametrize("gap", ["broken", "gone", "of an older format"])
def test_a_gap_in_the_log_before_leaves_nothing_known(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, gap: str
) -> None:
    *_, before_that, before = [each for each in list_segments(aborting.directory) if each < aborting]
    if gap == "broken":
        flip_bit(before.log_path, 100)
    elif gap == "gone":
        before.log_path.unlink()
    else:
        before.log_path.write_bytes(before.log_path.read_bytes()[:16] + b"\1" + before.log_path.read_bytes()[17:])
    for segment in (before_that, before, aborting):
        snapshot_before(segment).unlink(missing_ok=True)
    aborting.transaction_index_path.unlink()

    assert f"before offset {aborting.base_offset}" in refused(copied(aborting, storage), storage)


def test_an_index_that_nothing_contradicts_is_believed(
    aborting: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    """Only the index has the aborts of offsets before the log's start."""
    true = aborting.transaction_index_path.read_bytes()
    forget_what_was_before(aborting)

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == true
    assert outcome.damages == outcome.notices == ()


def test_a_segment_without_transactions_needs_no_earlier_state(
    directory: Path, storage: ObjectRemoteStorageManager
) -> None:
    segment = next(each for each in list_segments(directory)[1:] if not each.has_transaction_index())
    forget_what_was_before(segment)
    nonsense(segment.transaction_index_path)

    outcome = copied(segment, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    [message] = outcome.damages
    assert str(segment.transaction_index_path) in message


@pytest.fixture
def fenced(tmp_path: Path) -> LogSegment:
    """The oldest segment that a broker left: an idle producer was fenced, and the snapshot is gone by a restart."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=20) as log:
        log.append_as_follower(data(20, count=2) + marker(22, 7, ABORT) + data(23, count=2))
        log.roll()
        log.append_as_follower(data(25))
    segment = LogSegment(20, log.directory)
    assert not segment.has_transaction_index()
    return segment


@pytest.mark.parametrize("readable_from", [20, 22])
def test_the_abort_of_an_empty_transaction_needs_no_index(
    fenced: LogSegment, storage: ObjectRemoteStorageManager, readable_from: int
) -> None:
    outcome = copied(fenced, storage, readable_from=readable_from)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    assert outcome.damages == ()
    [message] = outcome.notices
    assert mentions(message, f"{fenced.transaction_index_path} is missing", "abort markers")
    assert "records from offset 20 on" in message


def test_a_missing_transaction_index_is_not_taken_for_empty_if_the_store_has_earlier_records(
    fenced: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    message = refused(copied(fenced, storage, readable_from=19), storage)

    assert mentions(message, "from 19 on", "aborted records")
    assert "empty file" in message
    fenced.transaction_index_path.touch()
    outcome = copied(fenced, storage, readable_from=19)
    assert outcome.failure is None
    assert outcome.damages == outcome.notices == ()


@pytest.mark.parametrize(
    "damage", [missing, empty, nonsense, torn, one_more, false_at(9)], ids=lambda damage: damage.__name__
)
def test_the_log_suffices_if_the_store_has_nothing_before_it(
    tmp_path: Path, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    """Of the transaction that began before, readers are given what is in this segment, and skip that."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG) as log:
        log.append_as_follower(data(0, 7, 0, transactional=True))
        log.roll()
        log.append_as_follower(data(1) + data(2, 7, 1, transactional=True) + marker(3, 7, ABORT))
        log.roll()
        _, segment, _ = log.segments
    damage(segment.transaction_index_path)
    forget_what_was_before(segment)

    outcome = copied(segment, storage, readable_from=1)

    expected = encode_aborted_transactions([AbortedTxn(7, 2, 3, 4)])
    assert fetched(outcome, storage, IndexKind.TRANSACTION) == expected
    [message] = outcome.damages
    assert str(segment.transaction_index_path) in message
    assert "rebuilt from the log" in message


@pytest.fixture
def followed(tmp_path: Path) -> LogSegment:
    """The first segment of a replica that began at offset 100: the end of something before it, and a whole abort."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=100) as log:
        log.append_as_follower(
            data(100)
            + marker(101, 7, ABORT)
            + data(102, 8, 0, transactional=True)
            + data(103, 9, 0, transactional=True)
            + marker(104, 8, COMMIT)
        )
        log.roll()
        log.append_as_follower(marker(105, 9, ABORT))
    return LogSegment(100, log.directory)


def test_an_empty_index_says_that_nothing_was_aborted(
    followed: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    assert "empty file" in refused(copied(followed, storage), storage)
    followed.transaction_index_path.touch()

    outcome = copied(followed, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == b""
    assert outcome.damages == outcome.notices == ()


def test_an_index_must_have_the_aborts_of_the_log(tmp_path: Path, storage: ObjectRemoteStorageManager) -> None:
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=100) as log:
        log.append_as_follower(data(100, 8, 0, transactional=True) + marker(101, 8, ABORT))
        log.roll()
    segment = LogSegment(100, log.directory)
    content = segment.transaction_index_path.read_bytes()
    assert fetched(copied(segment, storage), storage, IndexKind.TRANSACTION) == content
    empty(segment.transaction_index_path)

    outcome = copied(segment, ObjectRemoteStorageManager(LocalDirectory(tmp_path / "other")))

    assert outcome.failure is not None
    assert mentions(outcome.failure.message, segment.transaction_index_path, "abort", "transaction index")


@pytest.mark.parametrize("damage", [missing, empty, nonsense, torn, false_at(20)], ids=lambda damage: damage.__name__)
def test_a_snapshot_that_is_missing_or_broken_is_rebuilt(
    directory: Path, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    for segment in list_segments(directory)[:-1]:
        path = snapshot_after(segment)
        true = path.read_bytes()
        damage(path)

        outcome = copied(segment, storage)

        assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == true
        [message] = (*outcome.damages, *outcome.notices)
        assert (outcome.damages == ()) == (damage is missing)
        assert str(path) in message
        assert "rebuilt from the log" in message
        path.write_bytes(true)


def test_a_snapshot_with_other_open_transactions_is_false(
    aborting: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    path = snapshot_after(aborting)
    true = path.read_bytes()
    first, *others = read_producer_snapshot(path)
    write_producer_snapshot(path, [replace(first, current_transaction_first_offset=1), *others])

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == true
    [message] = outcome.damages
    assert f"{path}: at byte 0: " in message


@pytest.mark.parametrize("earlier", ["kept", "gone"])
def test_a_false_snapshot_before_the_segment_is_found_out(
    aborting: LogSegment, storage: ObjectRemoteStorageManager, earlier: str
) -> None:
    """It has no open transaction. Earlier segments show one, or else the transaction index and the next snapshot."""
    true = [aborting.transaction_index_path.read_bytes(), snapshot_after(aborting).read_bytes()]
    if earlier == "gone":
        forget_what_was_before(aborting)
    write_producer_snapshot(snapshot_before(aborting))

    outcome = copied(aborting, storage)

    found = [fetched(outcome, storage, kind) for kind in (IndexKind.TRANSACTION, IndexKind.PRODUCER_SNAPSHOT)]
    assert found == true
    [message] = outcome.damages
    assert mentions(message, f"{snapshot_before(aborting)}: ", "disagrees")


def test_a_snapshot_is_believed_against_the_index(aborting: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    """It has a checksum; the segments that could tell are gone."""
    snapshot = snapshot_before(aborting).read_bytes()
    true = aborting.transaction_index_path.read_bytes()
    forget_what_was_before(aborting)
    snapshot_before(aborting).write_bytes(snapshot)
    false_at(17)(aborting.transaction_index_path)

    outcome = copied(aborting, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == true
    [message] = outcome.damages
    assert str(aborting.transaction_index_path) in message


def test_a_snapshot_that_has_forgotten_silent_producers_is_true(
    aborting: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    path = snapshot_after(aborting)
    kept = [entry for entry in read_producer_snapshot(path) if entry.current_transaction_first_offset >= 0]
    write_producer_snapshot(path, kept)

    outcome = copied(aborting, storage)

    assert outcome.damages == ()
    assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == path.read_bytes()


@pytest.mark.parametrize("damage", [missing, torn])
def test_a_snapshot_that_nobody_can_know_does_not_travel(
    followed: LogSegment, storage: ObjectRemoteStorageManager, damage: Callable[[Path], None]
) -> None:
    followed.transaction_index_path.touch()
    path = snapshot_after(followed)
    damage(path)

    outcome = copied(followed, storage)

    assert fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT) == b""
    [message] = outcome.notices if damage is missing else outcome.damages
    assert mentions(message, path, "without a producer snapshot")


@settings(max_examples=USUAL_EXAMPLES // 2, deadline=None)
@given(st.data())
def test_a_log_that_is_whole_makes_good_whatever_the_files_beside_it_say(written: Path, chosen: st.DataObject) -> None:
    """Missing, broken, or those of another segment: copied in order, what travels is true."""
    segments = list_segments(written)[:-1]
    files = [each.transaction_index_path.name for each in segments] + [snapshot_after(each).name for each in segments]
    damages = chosen.draw(st.dictionaries(st.sampled_from(files), st.sampled_from([None, b"\xff", *files])))
    with tempfile.TemporaryDirectory() as root:
        directory = shutil.copytree(written, Path(root) / written.name)
        for name, damage in damages.items():
            path = directory / name
            path.unlink(missing_ok=True)
            if isinstance(damage, bytes):
                path.write_bytes(damage)
            elif damage is not None and (written / damage).is_file():
                shutil.copy(written / damage, path)
        storage = ObjectRemoteStorageManager(LocalDirectory(Path(root) / "store"))
        history = ProducerHistory()
        for segment in segments:
            outcome = copied(LogSegment(segment.base_offset, directory), storage, history)

            index = segment.transaction_index_path
            assert fetched(outcome, storage, IndexKind.TRANSACTION) == (index.read_bytes() if index.is_file() else b"")
            snapshot = Path(root) / "travelled.snapshot"
            snapshot.write_bytes(fetched(outcome, storage, IndexKind.PRODUCER_SNAPSHOT))
            assert open_in(snapshot) == open_in(snapshot_after(segment))


def open_in(snapshot: Path) -> dict[int, int]:
    """The open transactions of a snapshot."""
    return KnownProducers(0, read_producer_snapshot(snapshot)).open_transactions


def test_a_log_without_snapshots_is_not_read_from_its_start_for_every_segment(directory: Path, tmp_path: Path) -> None:
    segments = list_segments(directory)[:-1]
    true = [snapshot_after(segment).read_bytes() for segment in segments]
    for path in directory.glob("*.snapshot"):
        path.unlink()
    read: list[Path] = []

    def watched(path: Path, base_offset: int) -> Iterator[tuple[memoryview, BatchTable]]:
        read.append(path)
        return iterate_segment(path, base_offset)

    storage = ObjectRemoteStorageManager(LocalDirectory(tmp_path / "store"))
    history = ProducerHistory()
    with mock.patch.object(producer_history, "iterate_segment", watched):
        found = [
            fetched(copied(segment, storage, history), storage, IndexKind.PRODUCER_SNAPSHOT) for segment in segments
        ]
        assert read == []
        copied(segments[4], storage, ProducerHistory())

    assert found == true
    assert read == [segment.log_path for segment in segments[:4]]


@pytest.mark.parametrize("topic", ["transactions-0", "epochs-0"])
def test_a_brokers_own_files_are_rebuilt_byte_for_byte(
    tmp_path: Path, storage: ObjectRemoteStorageManager, topic: str
) -> None:
    directory = shutil.copytree(GOLDEN.log_dir / topic, tmp_path / topic)
    segments = list_segments(directory)[:-1]
    brokers = {path: path.read_bytes() for path in directory.iterdir() if path.suffix in (".txnindex", ".snapshot")}
    for path in brokers:
        path.unlink()
    assert segments
    for segment in segments:
        outcome = copied(segment, storage)

        found = [fetched(outcome, storage, kind) for kind in (IndexKind.TRANSACTION, IndexKind.PRODUCER_SNAPSHOT)]
        assert found == [brokers.get(segment.transaction_index_path, b""), brokers[snapshot_after(segment)]]
        assert len(outcome.damages) == (segment.transaction_index_path in brokers)


@pytest.fixture
def two_aborts(tmp_path: Path) -> LogSegment:
    """The oldest segment that is left; the first of its aborts, at offset 3, is of a transaction from before."""
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG) as log:
        log.append_as_follower(data(0, 20, 0, count=3, transactional=True))
        log.roll()
        log.append_as_follower(
            marker(3, 20, ABORT) + data(4, 21, 0, transactional=True) + marker(5, 21, ABORT) + marker(6, 21, ABORT)
        )
        log.roll()
        _, segment, _ = log.segments
    forget_what_was_before(segment)
    return segment


def test_an_abort_that_its_index_lacks_is_reported_where_it_may_matter(
    two_aborts: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    assert copied(two_aborts, storage).notices == ()
    path = two_aborts.transaction_index_path
    path.write_bytes(path.read_bytes()[ENTRY_BYTES:])

    outcome = copied(two_aborts, storage)

    assert fetched(outcome, storage, IndexKind.TRANSACTION) == path.read_bytes()
    assert outcome.damages == ()
    [message] = outcome.notices
    assert mentions(message, path, "1 abort markers", "offset 3")
    assert "began before offset 3" in message
    assert copied(two_aborts, storage, readable_from=3).notices == ()


def test_an_abort_whose_producer_ended_one_before_needs_no_entry(
    tmp_path: Path, storage: ObjectRemoteStorageManager
) -> None:
    with unsynced(), LocalLog.create(tmp_path, "orders", 0, TOPIC_ID, CONFIG, base_offset=10) as log:
        log.append_as_follower(marker(10, 20))
        log.roll()
        log.append_as_follower(marker(11, 20, ABORT) + data(12, 21, 0, transactional=True) + marker(13, 21, ABORT))
        log.roll()
        first, segment, _ = log.segments
    for each in (first, segment):
        snapshot_before(each).unlink(missing_ok=True)

    outcome = copied(segment, storage)

    assert outcome.failure is None
    assert outcome.damages == outcome.notices == ()
