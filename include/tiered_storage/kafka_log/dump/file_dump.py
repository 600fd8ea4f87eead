"""Shows any of Kafka's files: finds out by its name what it is, and changes nothing, so that a broker may be at work.

Which files there are is in file_kind.py, what is shown of them in log_dump.py, index_dump.py and state_dump.py.
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
    """Return the files to show: of each directory in `paths` Kafka's files in it and in the directories in it.

    Raises ConfigurationError for a file that is not named as Kafka names its files, and if there is none at all.
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
                f"{path.name!r} is no name of a file of Kafka's: give it the name that it had there, "
                "as 00000000000000000000.log"
            )
    if not found:
        raise ConfigurationError(f"no file of Kafka's is in {', '.join(map(str, paths))}")
    return found


def dump_file(file: KafkaFile, *, with_records: bool = False) -> Iterator[DumpEvent]:
    """Yield what is in `file`, row by row, and what is wrong with it; `with_records` also the records of a log."""
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
