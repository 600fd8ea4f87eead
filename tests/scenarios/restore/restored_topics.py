"""Restores of a topic for tests, and what is then in their target."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.command_line import CommandResult, run_on
from support.local_logs import read_all
from support.remote_logs import CLUSTER_ID, LOG_CONFIG, NOW, RemoteLogFiles, topic_id
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record


def lose_local_logs(files: RemoteLogFiles) -> None:
    shutil.rmtree(files.log_directory)
    files.properties["log.dirs"] = []


def restore(files: RemoteLogFiles, target: Path, *options: object) -> CommandResult:
    return run_on(files, "restore", "orders", "--to-directory", target, "--json", *options)


def log_in(target: Path, number: int = 0, topic: str = "orders") -> LocalLog:
    return LocalLog.open(target / f"{topic}-{number}", LOG_CONFIG, clock=lambda: NOW)


def records_in(target: Path, number: int = 0, topic: str = "orders") -> list[Record]:
    with log_in(target, number, topic) as log:
        return read_all(log)


def partitions_in(target: Path) -> list[str]:
    return sorted(path.name for path in target.iterdir() if path.is_dir()) if target.exists() else []


def create_empty_partitions(target: Path) -> None:
    with LogDirectoryWriter.create(target, CLUSTER_ID, clock=lambda: NOW) as writer:
        for number in (0, 1):
            writer.create_log("orders", number, topic_id("orders"))
