from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.kafka_log.dump.file_kind import FileKind, recognize

ZEROS = "00000000000000000000"


@pytest.mark.parametrize(
    ("name", "kind", "offset"),
    [
        (f"{ZEROS}.log", FileKind.LOG, 0),
        ("09223372036854775807.log", FileKind.LOG, (1 << 63) - 1),
        ("00000000000000000042.log.deleted", FileKind.LOG, 42),
        ("00000000000000000042.index.swap", FileKind.OFFSET_INDEX, 42),
        ("00000000000000000042.timeindex.cleaned", FileKind.TIME_INDEX, 42),
        ("00000000000000000042.txnindex", FileKind.TRANSACTION_INDEX, 42),
        ("00000000000000000042.snapshot", FileKind.PRODUCER_SNAPSHOT, 42),
        ("00000000000000000161-0000000004.checkpoint", FileKind.LOG, 0),
        ("bootstrap.checkpoint", FileKind.LOG, 0),
        ("leader-epoch-checkpoint", FileKind.LEADER_EPOCHS, 0),
        ("replication-offset-checkpoint", FileKind.OFFSET_CHECKPOINT, 0),
        ("recovery-point-offset-checkpoint", FileKind.OFFSET_CHECKPOINT, 0),
        ("log-start-offset-checkpoint", FileKind.OFFSET_CHECKPOINT, 0),
        ("cleaner-offset-checkpoint", FileKind.OFFSET_CHECKPOINT, 0),
        ("partition.metadata", FileKind.PARTITION_METADATA, 0),
        ("meta.properties", FileKind.META_PROPERTIES, 0),
        (".kafka_cleanshutdown", FileKind.CLEAN_SHUTDOWN, 0),
    ],
)
def test_a_files_kind_and_offset_come_from_its_name(name: str, kind: FileKind, offset: int) -> None:
    file = recognize(Path("orders-0") / name)
    assert file is not None
    assert (file.kind, file.offset) == (kind, offset)


@pytest.mark.parametrize(
    "name",
    [
        "0.log",
        f"{ZEROS}.log.tmp",
        f"x{ZEROS}.log",
        "09223372036854775808.log",
        ".lock",
        "quorum-state",
        "\u0660" * 20 + ".log",
    ],
)
def test_other_names_are_not_known(name: str) -> None:
    assert recognize(Path(name)) is None


@pytest.mark.parametrize("suffix", ["", ".deleted", ".swap"])
def test_the_log_of_an_index_is_beside_it(suffix: str) -> None:
    file = recognize(Path(f"orders-0/00000000000000000042.index{suffix}"))
    assert file is not None
    assert file.log_path == Path(f"orders-0/00000000000000000042.log{suffix}")
