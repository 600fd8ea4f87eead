"""Scenario 35 and bad input: with a wrong store, metadata or arguments no command deletes, and each says why.

Every command that deletes runs against each fault, then without one, where it deletes. No audit is clean while store or
metadata are wrong, so these tests compare the state before and after instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from scenarios.bound_sites import DELETABLE
from support.command_line import CommandResult, run_on
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    assert_clean,
    copy,
    is_kept_by_the_store,
    unsynced,
)
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint

TOPICS = {"orders": DELETABLE, "former": {**DELETABLE, "remote.storage.enable": False}}
PARTITIONS = {("orders", 0): 3, ("former", 0): 2}

COMMANDS = {
    "retain": ("retain",),
    "expire": ("expire",),
    "delete-records": ("delete-records", "orders", 0, "--before", 20),
    "delete-topic": ("delete-topic", "former"),
    "delete what is marked": ("expire", "--topics", "former"),
}
"""Each command that deletes; what is marked was marked before anything went wrong."""


def a_site(root: Path) -> RemoteLogFiles:
    """Lay out two topics of which each command has something to delete."""
    return a_copied_remote_log(root, PARTITIONS, topics=TOPICS)


def a_site_without_copies(root: Path) -> RemoteLogFiles:
    files = a_remote_log(root, PARTITIONS, topics=TOPICS)
    with files.open() as remote_log:
        remote_log.context.bind_store()
    return files


@dataclass(frozen=True)
class Kept:
    """All that could be deleted: the local logs, the store, and whether a partition was marked or its start moved."""

    logs: dict[str, str]
    store: dict[str, str]

    @classmethod
    def of(cls, files: RemoteLogFiles) -> Kept:
        return cls(_fingerprint(files.log_directory), _fingerprint(files.store))


def _fingerprint(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock" and not is_kept_by_the_store(path)
    }


def replace_database(files: RemoteLogFiles, content: bytes | None) -> None:
    remove_metadata(files)
    if content is not None:
        database_of(files).write_bytes(content)


# ----------------------------------------------------------------------------------------------------------- faults


def another_store(files: RemoteLogFiles) -> None:
    """Another remote log's store is at our URL."""
    other = a_copied_remote_log(files.root / "other", {("clicks", 0): 1})
    shutil.rmtree(files.store)
    shutil.copytree(other.store, files.store)


def an_emptied_store(files: RemoteLogFiles) -> None:
    """The disk is not mounted, or somebody removed everything."""
    shutil.rmtree(files.store)
    files.store.mkdir()


def all_objects_removed(files: RemoteLogFiles) -> None:
    """The store has our mark and no object any more."""
    for path in files.objects():
        path.unlink()


def metadata_of_last_week(files: RemoteLogFiles) -> None:
    """The metadata were restored from a backup; much was copied since."""
    backup = database_of(files).read_bytes()
    for topic in ("orders", "former"):
        files.append(4, topic=topic)
    files.properties["topics"] = dict.fromkeys(TOPICS, ENABLED)
    with unsynced(), files.open() as remote_log:
        assert len(copy(remote_log).committed) == 4
    files.properties["topics"] = TOPICS
    replace_database(files, backup)


def empty_metadata(files: RemoteLogFiles) -> None:
    """The metadata were lost; a run creates empty ones."""
    replace_database(files, None)


def metadata_of_another(files: RemoteLogFiles) -> None:
    other = a_copied_remote_log(files.root / "other", PARTITIONS)
    with unsynced(), other.open() as remote_log:
        remote_log.context.bind_store()
    shutil.rmtree(other.store)
    replace_database(files, database_of(other).read_bytes())
    identity = files.store / "store.json"
    document = json.loads(identity.read_text())
    identity.write_text(json.dumps({**document, "metadata_uuid": "somebody else's"}))


def a_store_of_a_later_version(files: RemoteLogFiles) -> None:
    identity = files.store / "store.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format_version": 99}))


def a_stop(files: RemoteLogFiles) -> None:
    assert run_on(files, "stop-deletions", "--reason", "look first").exit_code == 0


def no_right(files: RemoteLogFiles) -> None:
    for topic in TOPICS:
        assert run_on(files, "topics", "forbid-deletion", topic).exit_code == 0


def a_retention_of_zero(files: RemoteLogFiles) -> None:
    files.properties["topics"] = {topic: {**given, "retention.ms": 0} for topic, given in TOPICS.items()}


def limits_that_contradict_each_other(files: RemoteLogFiles) -> None:
    contradicting = {"retention.bytes": 10, "local.retention.bytes": 20}
    files.properties["topics"] = {topic: {**given, **contradicting} for topic, given in TOPICS.items()}


def a_store_of_foreign_objects(files: RemoteLogFiles, *narrowed: str) -> None:
    """One topic's folder has old unreferenced objects, and an audit reported them."""
    lay_foreign_objects(files)
    assert run_on(files, "audit", *narrowed).exit_code == 1


def foreign_objects_seen_by_a_narrowed_audit(files: RemoteLogFiles) -> None:
    a_store_of_foreign_objects(files, "--topics", "former")


def lay_foreign_objects(files: RemoteLogFiles, count: int = 40) -> list[Path]:
    with files.open() as remote_log:
        remote_log.context.bind_store()
    folder = next(path.parent for path in files.objects(".log") if "former" in str(path))
    return [an_old_file(folder / f"foreign{number}") for number in range(count)]


def an_old_file(path: Path) -> Path:
    path.write_bytes(b"somebody else's")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


EVERYWHERE: dict[str, tuple[Callable[[RemoteLogFiles], None], str]] = {
    "another store": (another_store, "the right disk mounted"),
    "an emptied store": (an_emptied_store, "no store.json is there"),
    "metadata of last week": (metadata_of_last_week, "older than the store"),
    "empty metadata": (
        empty_metadata,
        "belongs to the metadata|neither in log.dirs nor|no topic is called|no partition",
    ),
    "metadata of another": (metadata_of_another, "belongs to the metadata|older than the store"),
    "a store of a later version": (a_store_of_a_later_version, "version"),
    "a stop": (a_stop, "look first"),
    "a retention of zero": (a_retention_of_zero, "retention.ms"),
    "a store of foreign objects": (a_store_of_foreign_objects, "40 of 55 objects"),
    "foreign objects seen by a narrowed audit": (
        foreign_objects_seen_by_a_narrowed_audit,
        "40 of 46 objects",
    ),
    "limits that contradict each other": (limits_that_contradict_each_other, "local.retention.bytes"),
}


def said(result: CommandResult) -> str:
    return result.out + result.err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("situation", EVERYWHERE)
def test_nothing_is_deleted_and_the_message_says_why(tmp_path: Path, situation: str, command: str) -> None:
    goes_wrong, words = EVERYWHERE[situation]
    files = a_site(tmp_path)
    if command == "delete what is marked" and goes_wrong is not metadata_of_last_week:
        assert run_on(files, "delete-topic", "former").exit_code == 0
    goes_wrong(files)
    before = Kept.of(files)

    result = run_on(files, *COMMANDS[command])

    assert Kept.of(files) == before
    assert result.exit_code == 1
    assert any(word in said(result) for word in words.split("|")), said(result)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_the_right_nothing_is_deleted(tmp_path: Path, command: str) -> None:
    files = a_site(tmp_path)
    if command == "delete what is marked":
        assert run_on(files, "delete-topic", "former").exit_code == 0
    no_right(files)
    before = Kept.of(files)

    result = run_on(files, *COMMANDS[command])

    assert Kept.of(files) == before
    somebody_asked_for_it = command in {"delete-records", "delete-topic", "delete what is marked"}
    assert result.exit_code == int(somebody_asked_for_it)
    assert not somebody_asked_for_it or "allow-deletion" in said(result)
    with files.open() as remote_log:
        assert_clean(remote_log)


def compacted_by_the_cleaner(files: RemoteLogFiles) -> None:
    """Kafka's cleaner rewrote closed segments, whatever the settings say."""
    write_offset_checkpoint(files.log_directory / "cleaner-offset-checkpoint", {("orders", 0): 20})


def compacted_by_its_settings(files: RemoteLogFiles) -> None:
    files.properties["topics"] = {**TOPICS, "orders": {**DELETABLE, "cleanup.policy": "compact"}}


def compacted_and_out_of_sight(files: RemoteLogFiles) -> None:
    compacted_by_its_settings(files)
    files.properties["log.dirs"] = []


def tiered_by_kafka(files: RemoteLogFiles) -> None:
    """The log begins in Kafka's own remote tier, below its first local offset."""
    assert run_on(files, "retain", "--topics", "orders").exit_code == 0
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 0})


@pytest.mark.parametrize(
    ("lay_out", "becomes", "words"),
    [
        (a_site, compacted_by_the_cleaner, "brokers compact orders-0"),
        (a_site, compacted_by_its_settings, "cleanup.policy=compact"),
        (a_site, compacted_and_out_of_sight, "cleanup.policy=compact"),
        (a_site, tiered_by_kafka, "Kafka itself tiers orders-0"),
        (a_site_without_copies, compacted_by_the_cleaner, "brokers compact orders-0"),
        (a_site_without_copies, compacted_by_its_settings, "cleanup.policy=compact"),
    ],
)
def test_expire_ends_nothing_of_a_topic_that_cannot_be_tiered(
    tmp_path: Path, lay_out: Callable[[Path], RemoteLogFiles], becomes: Callable[[RemoteLogFiles], None], words: str
) -> None:
    files = lay_out(tmp_path)
    becomes(files)
    before = Kept.of(files)

    result = run_on(files, "expire", "--topics", "orders")

    assert Kept.of(files) == before
    with files.open() as remote_log:
        assert not remote_log.context.segments.log_start_offset(ORDERS_0)
    assert result.exit_code == 1
    assert words in said(result)


@pytest.mark.parametrize("command", ["retain", "expire", "delete-records"])
def test_nothing_expires_if_the_store_has_only_its_mark(tmp_path: Path, command: str) -> None:
    """A lifecycle rule removed all old objects, and the store still has our mark."""
    files = a_site(tmp_path)
    all_objects_removed(files)
    before = Kept.of(files)

    result = run_on(files, *COMMANDS[command])

    assert (result.exit_code, Kept.of(files)) == (1, before)
    with files.open() as remote_log:
        assert {state.log_start_offset for state in remote_log.context.segments.partition_states().values()} == {0}
    assert "orders-0" in result.err
    assert command == "retain" or "tiered-storage audit" in result.err


def test_a_lost_object_stops_expiry_until_a_person_gives_it_up(tmp_path: Path) -> None:
    files = a_site(tmp_path)
    files.objects(".log")[-1].unlink()
    for command in ("expire", "delete-records"):
        assert run_on(files, *COMMANDS[command]).exit_code == 1

    assert run_on(files, *COMMANDS["delete-records"], "--give-up").exit_code == 0

    with files.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 20


def test_nothing_local_is_deleted_unless_the_store_lists_its_copies(tmp_path: Path) -> None:
    files = a_site(tmp_path)
    all_objects_removed(files)
    before = Kept.of(files)

    result = run_on(files, "retain")

    assert (result.exit_code, Kept.of(files)) == (1, before)
    assert "orders-0" in result.err


@pytest.mark.parametrize("asked_for", [(), ("--topics", "orders")])
@pytest.mark.parametrize("audited", [(), ("--topics", "former")])
def test_nothing_of_a_store_of_foreign_objects_is_cleaned_up(
    tmp_path: Path, audited: tuple[str, ...], asked_for: tuple[str, ...]
) -> None:
    """Commands for one topic are refused too: an audit result of the store holds for each of its topics."""
    files = a_site(tmp_path)
    of_orders = next(path for path in files.objects(".log") if "orders" in str(path))
    leftover = an_old_file(of_orders.with_name(f"{of_orders.name}.0123456789abcdef.tmp"))
    foreign = lay_foreign_objects(files)
    assert run_on(files, "audit", *audited).exit_code == 1
    before = Kept.of(files)

    for command in ("repair", "retain", "expire"):
        result = run_on(files, command, *asked_for)
        assert result.exit_code == 1, command
        assert "nothing refers to 4" in said(result), said(result)
        after = Kept.of(files)
        assert after.logs == before.logs
        # A repair audits first and records its findings in the store.
        assert before.store.items() <= after.store.items()

    for path in foreign:
        path.unlink()
    assert run_on(files, "repair").exit_code == 0
    assert not leftover.exists()
    for command in ("retain", "expire"):
        assert run_on(files, command, *asked_for).exit_code == 0
    assert files.local_starts() == [30]
    with files.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 20
        assert_clean(remote_log)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("retain", "--topics", "order"), "no partition"),
        (("retain", "--partitions", "7"), "no partition"),
        (("retain", "--topics", "("), "("),
        (("expire", "--topics", "order"), "no partition"),
        (("expire", "--topics", ""), "no partition"),
        (("expire", "--partitions", "-1"), "-1"),
        (("delete-topic", "order"), "did you mean 'orders'"),
        (("delete-topic", ".*"), "no topic is called '.*'"),
        (("delete-topic", ""), "no topic is called ''"),
        (("delete-topic", "former", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAA"), "never had the id"),
        (("delete-records", "orders", 9, "--before", 1), "orders-9"),
        (("delete-records", "order", 0, "--before", 1), "order-0"),
        (("delete-records", ".*", 0, "--before", 1), ".*"),
        (("delete-records", "orders", 0, "--before", -7), "give one from 0 to 35"),
        (("delete-records", "orders", 0, "--before", 10**30), "out of range"),
        (("delete-records", "orders", 0, "--before", 36), "it has offsets 0 to 35"),
    ],
)
def test_an_unknown_topic_is_reported_and_nothing_is_deleted(
    tmp_path: Path, arguments: tuple[object, ...], words: str
) -> None:
    files = a_site(tmp_path)
    before = Kept.of(files)

    result = run_on(files, *arguments)

    assert Kept.of(files) == before
    assert result.exit_code != 0
    assert words in said(result)
    with files.open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("command", ["retain", "expire"])
def test_a_pattern_of_everything_deletes_only_where_that_was_allowed(tmp_path: Path, command: str) -> None:
    files = a_copied_remote_log(tmp_path, PARTITIONS, topics={"orders": DELETABLE})
    stays = {name: digest for name, digest in Kept.of(files).store.items() if "former" in name}

    assert run_on(files, command, "--topics", ".*").exit_code == 0

    after = Kept.of(files)
    assert {name: digest for name, digest in after.store.items() if "former" in name} == stays
    assert files.local_starts("former") == [0, 10, 20]
    assert files.local_starts() == ([30] if command == "retain" else [0, 10, 20, 30])
    with files.open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_fault_the_same_commands_delete(tmp_path: Path, command: str) -> None:
    files = a_site(tmp_path)
    if command == "delete what is marked":
        assert run_on(files, "delete-topic", "former").exit_code == 0
    before = Kept.of(files)

    for dry in [["--dry-run"], []]:
        assert run_on(files, *COMMANDS[command], *dry).exit_code == 0
        assert not dry or Kept.of(files) == before

    assert run_on(files, "expire").exit_code == 0
    assert Kept.of(files) != before
    with files.open() as remote_log:
        assert_clean(remote_log)


def test_a_new_topic_is_neither_copied_nor_deleted_by_default(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics={}, log_retention_ms=1, log_local_retention_ms=0)
    before = _fingerprint(files.log_directory)

    for command in ("copy", "retain", "expire"):
        assert run_on(files, command).exit_code == 0

    assert _fingerprint(files.log_directory) == before
    assert files.objects() == []
    with files.open() as remote_log:
        assert_clean(remote_log)
