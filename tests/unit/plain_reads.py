"""Reads by the oracle for tests: of both tiers, or as somebody without the log directory."""

from __future__ import annotations

import struct

from support.plain_reader import FetchedBatches, PartitionReader, PlainReader
from support.remote_logs import ORDERS_0, RemoteLogFiles, local_log
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim


def reader_of(remote_log: RemoteLogManager) -> PartitionReader:
    return PlainReader(remote_log).open(ORDERS_0)


def trim(remote_log: RemoteLogManager, new_start: int) -> None:
    """Remove the local segments below `new_start`, whatever is remote."""
    going = [segment for segment in local_log(remote_log).segments if segment.base_offset < new_start]
    LogDirectoryTrim().trim(ORDERS_0, going, new_start)


def only_remote(files: RemoteLogFiles) -> RemoteLogManager:
    """Open the remote log as somebody does who does not reach its log directory."""
    files.properties["log.dirs"] = []
    return files.open()


def first_offset(fetched: FetchedBatches) -> int:
    return int(struct.unpack_from(">q", fetched.content)[0])
