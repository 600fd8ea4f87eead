"""Dump any of Kafka's files; its kind follows from its name. Nothing is changed, so the broker may be running.

The kinds of files are in file_kind.py; what is dumped of them is in log_dump.py, index_dump.py and state_dump.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tiered_storage.errors import ConfigurationError, CorruptLogError
from tiered_storage.kafka_log.dump.dump_event import DumpEvent, DumpNote, DumpProblem
from tiered_storage.kafka_log.dump.file_kind import FileKind, KafkaFile, recognize
from tiered_storage.kafka_log.dump.index_dump import dump_offset_index, dump_time_index, dump_transaction_index
from tiered_storage.kafka_log.dump.log_dump import dump_log
from tiered_storage.kafka_log.dump.state_dump import (
    dump_clean_shutdown,
    dump_leader_epochs,
    dump_meta_properties,
    dump_offset_checkpoint,
    dump_partition_metadata,
    dump_producer_snapshot,
)

_INDEX_DUMPS = {
    FileKind.OFFSET_INDEX: dump_offset_index,
    FileKind.TIME_INDEX: dump_time_index,
    FileKind.TRANSACTION_INDEX: dump_transaction_index,
}
_STATE_DUMPS: dict[FileKind, Callable[[Path], Iterator[DumpEvent]]] = {
    FileKind.PRODUCER_SNAPSHOT: dump_producer_snapshot,
    FileKind.LEADER_EPOCHS: dump_leader_epochs,
    FileKind.OFFSET_CHECKPOINT: dump_offset_checkpoint,
    FileKind.PARTITION_METADATA: dump_partition_metadata,
    FileKind.META_PROPERTIES: dump_meta_properties,
    FileKind.CLEAN_SHUTDOWN: dump_clean_shutdown,
}


def find_files(paths: list[Path]) -> list[KafkaFile]:
    """Return the files to dump: for each directory in `paths`, Kafka's files in it and in its subdirectories.

    Raises ConfigurationError for a file without a name of Kafka's, and if there is no file at all.
    """
    found: list[KafkaFile] = []
    for path in paths:
        if path.is_dir():
            below = sorted(child for child in path.iterdir() if child.is_dir())
            found += [file for directory in (path, *below) for file in _files_in(directory)]
        elif (file := recognize(path)) is not None:
            found.append(file)
        else:
            raise ConfigurationError(
                f"{path.name!r} is not the name of a Kafka file: rename it to its original name, "
                "such as 00000000000000000000.log"
            )
    if not found:
        raise ConfigurationError(f"there is no Kafka file in {', '.join(map(str, paths))}")
    return found


def dump_file(file: KafkaFile, *, with_records: bool = False) -> Iterator[DumpEvent]:
    """Yield the content of `file`, row by row, and its problems; `with_records` also the records of a log."""
    try:
        if file.kind is FileKind.LOG:
            yield from dump_log(file.path, file.offset, with_records=with_records)
        elif (dump_index := _INDEX_DUMPS.get(file.kind)) is not None:
            yield from dump_index(file.path, file.offset, file.log_path)
        else:
            yield from _STATE_DUMPS[file.kind](file.path)
    except FileNotFoundError:
        yield DumpNote("the file was removed meanwhile")
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror or error}"
        yield DumpProblem(CorruptLogError(file.path, 0, reason))


def _files_in(directory: Path) -> Iterator[KafkaFile]:
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    for name in names:
        if (file := recognize(directory / name)) is not None:
            yield file
