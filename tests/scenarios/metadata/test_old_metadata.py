"""Bad input: old or copied metadata change nothing, and every later prohibition, stop or setting stays in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from scenarios.bound_sites import DELETABLE
from support.command_line import CommandResult, mentions, run_on
from support.metadata_files import database_of, put_back, remove_metadata
from support.remote_logs import (
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    assert_clean,
    copy,
    unsynced,
)
from support.simulated_crashes import Died, die
from tiered_storage.remote_log.metadata.sql.generation import SqlGeneration
from tiered_storage.remote_log.model import PartitionState, TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING

TOPICS = {"orders": DELETABLE, "former": {**DELETABLE, "remote.storage.enable": False}}
PARTITIONS = {("former", 0): 2, ("orders", 0): 3, ("orders", 1): 3}


@pytest.fixture
def site(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, PARTITIONS, topics=TOPICS)


@contextmanager
def forgotten(files: RemoteLogFiles) -> Iterator[None]:
    """Restore, at the end of the block, the metadata of its beginning."""
    with files.open() as remote_log:
        remote_log.context.bind_store()
    backup = database_of(files).read_bytes()
    yield
    put_back(files, backup)


def copy_more(files: RemoteLogFiles, number: int = 1) -> None:
    files.append(4, number=number)
    with unsynced(), files.open() as remote_log:
        assert len(copy(remote_log).committed) == 2


@dataclass(frozen=True)
class Kept:
    """The names of all that could be deleted, and the state of partitions."""

    files: frozenset[str]
    states: Mapping[TopicIdPartition, PartitionState]

    @classmethod
    def of(cls, files: RemoteLogFiles) -> Kept:
        with files.open(outdated=True) as remote_log:
            states = remote_log.context.segments.partition_states()
        logs = [*files.log_directory.rglob("*.log"), *files.objects()]
        return cls(frozenset(str(path) for path in logs), states)


def refused(files: RemoteLogFiles, *command: object) -> CommandResult:
    """Run a command that must fail because the metadata are old, and change nothing."""
    before = Kept.of(files)
    result = run_on(files, *command)
    assert Kept.of(files) == before
    assert result.exit_code == 1
    assert "older than the store" in result.err, result.err
    return result


ONE_PARTITION = {
    "retain": ("retain",),
    "expire": ("expire",),
    "delete-topic": ("delete-topic", "orders"),
}


@pytest.mark.parametrize("command", ONE_PARTITION)
def test_metadata_from_before_a_copy_stop_every_run_that_deletes(site: RemoteLogFiles, command: str) -> None:
    with forgotten(site):
        copy_more(site)
    if command == "delete-topic":
        site.properties["topics"] = {**TOPICS, "orders": {**DELETABLE, "remote.storage.enable": False}}

    result = refused(site, *ONE_PARTITION[command])

    assert "rebuild-metadata" in result.err


def test_old_metadata_delete_none_of_their_marked_segments(site: RemoteLogFiles) -> None:
    with site.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, site.clock.now)
        remote_log.deletions.mark_expired(plans, "expire")
    with forgotten(site):
        copy_more(site)

    refused(site, "expire")


def forbid(files: RemoteLogFiles) -> None:
    assert run_on(files, "topics", "forbid-deletion", "orders").exit_code == 0


def keep_for_ever(files: RemoteLogFiles) -> None:
    assert run_on(files, "topics", "set", "orders", "retention.bytes=-1", "local.retention.bytes=-2").exit_code == 0


def disable(files: RemoteLogFiles) -> None:
    assert run_on(files, "topics", "disable", "orders").exit_code == 0


def pause(files: RemoteLogFiles) -> None:
    assert run_on(files, "topics", "pause", "orders").exit_code == 0


def stop(files: RemoteLogFiles) -> None:
    assert run_on(files, "stop-deletions", "--reason", "legal hold").exit_code == 0


def find_wanting(files: RemoteLogFiles) -> None:
    """An audit finds a damaged segment; its object is restored before the metadata are lost."""
    victim = files.objects(".log")[0]
    content = victim.read_bytes()
    victim.unlink()
    assert run_on(files, "audit").exit_code == 1
    victim.write_bytes(content)


TAKEN_BACK = {each.__name__: each for each in (forbid, keep_for_ever, disable, pause, stop, find_wanting)}


@pytest.mark.parametrize("command", [("expire",), ("retain",), ("delete-records", "orders", 0, "--before", 20)])
@pytest.mark.parametrize("word", TAKEN_BACK)
def test_old_metadata_do_not_restore_a_revoked_right(
    site: RemoteLogFiles, word: str, command: tuple[object, ...]
) -> None:
    with forgotten(site):
        TAKEN_BACK[word](site)

    result = refused(site, *command)

    assert "rebuild-metadata" in result.err


def test_outdated_metadata_accept_no_decision_but_a_stop(site: RemoteLogFiles) -> None:
    with forgotten(site):
        forbid(site)
        pause(site)

    for command in ("enable", "pause", "allow-deletion"):
        refused(site, "topics", command, "orders")
    refused(site, "stop-deletions", "--lift")
    result = refused(site, "stop-deletions", "--reason", "legal hold")
    assert mentions(result.err, "deletions are stopped", "other metadata")
    refused(site, "topics", "allow-deletion", "orders")
    with site.open(outdated=True) as remote_log:
        assert remote_log.context.safety.stopped() is not None


def test_a_process_killed_before_it_confirmed_the_generation_blocks_nobody(
    site: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as remote_log:
        remote_log.context.bind_store()
    with monkeypatch.context() as killed:
        killed.setattr(SqlGeneration, "confirm", die)
        with pytest.raises(Died):
            keep_for_ever(site)
    before = Kept.of(site)

    for command in ("expire", "retain"):
        assert run_on(site, command, "--topics", "orders").exit_code == 0

    assert Kept.of(site) == before


DELETING = {"expire", "retain"}
"""The step that fails while deletions are being stopped."""
BACK_IN_REACH = [("expire",), ("retain",), ("copy",), ("expire", "--topics", "former")]


@pytest.mark.parametrize("command", BACK_IN_REACH)
def test_a_stop_holds_while_the_store_is_unreachable_and_is_recorded_there_later(
    site: RemoteLogFiles, caplog: pytest.LogCaptureFixture, command: tuple[str, ...]
) -> None:
    with forgotten(site):
        site.store.rename(site.root / "elsewhere")
        stop(site)
        assert mentions(caplog.text, site.store, "could not be reached")
        (site.root / "elsewhere").rename(site.store)
        assert run_on(site, *command).exit_code == (command[0] in DELETING)

    refused(site, "expire")


def test_the_next_deletion_records_an_unpublished_stop_and_lift_in_the_store(
    site: RemoteLogFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with forgotten(site):
        site.store.rename(site.root / "elsewhere")
        stop(site)
        assert mentions(caplog.text, site.store, "could not be reached")
        (site.root / "elsewhere").rename(site.store)
        assert run_on(site, "expire").exit_code == 1
        assert run_on(site, "stop-deletions", "--lift").exit_code == 0
        assert run_on(site, "expire", "--topics", "former").exit_code == 0

    refused(site, "expire")


@pytest.mark.parametrize("command", ["expire", "retain"])
def test_a_dry_run_while_deletions_are_stopped_writes_nothing_to_the_store(tmp_path: Path, command: str) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3}, topics={"orders": DELETABLE})
    stop(files)

    # Nothing is remote yet, so expired local segments are held back.
    assert run_on(files, command, "--dry-run").exit_code == (command == "retain")

    assert not files.store.exists() or not [*files.store.iterdir()]


@pytest.mark.parametrize("word", [stop, pause])
def test_decisions_that_the_store_lacks_are_published_in_their_order(
    site: RemoteLogFiles, word: Callable[[RemoteLogFiles], None]
) -> None:
    with forgotten(site):
        site.store.rename(site.root / "elsewhere")
        forbid(site)
        (site.root / "elsewhere").rename(site.store)
        word(site)

    refused(site, "expire")
    run_on(site, "topics", "pause", "orders")
    refused(site, "stop-deletions", "--lift")
    before = Kept.of(site)
    assert run_on(site, "expire").exit_code == run_on(site, "retain").exit_code == 1
    assert Kept.of(site) == before


@pytest.mark.parametrize("command", BACK_IN_REACH)
def test_a_stop_despite_wrong_settings_is_recorded_in_the_store_later(
    site: RemoteLogFiles, command: tuple[str, ...]
) -> None:
    with forgotten(site):
        right = site.properties["topics"]
        site.properties["topics"] = {**TOPICS, "mistyped": {"retention.ms": 0}}
        stop(site)
        site.properties["topics"] = right
        assert run_on(site, *command).exit_code == (command[0] in DELETING)

    refused(site, "retain")


def test_rebuilt_metadata_have_every_decision(site: RemoteLogFiles) -> None:
    with site.open() as remote_log:
        remote_log.context.bind_store()
    forbid(site)
    remove_metadata(site)

    assert run_on(site, "rebuild-metadata", "--yes").exit_code == 0
    assert run_on(site, "topics", "allow-deletion", "orders").exit_code == 0
    assert run_on(site, "expire").exit_code == 0
    with site.open() as remote_log:
        assert_clean(remote_log)


def expire_what_was_copied(files: RemoteLogFiles) -> None:
    """Copy more, then trim it from the local log."""
    copy_more(files)
    assert run_on(files, "retain", "--topics", "orders").exit_code == 0


def test_nothing_is_copied_twice_by_old_metadata(site: RemoteLogFiles) -> None:
    with forgotten(site):
        copy_more(site)

    for command in ("plan", "copy"):
        refused(site, command)


def test_old_metadata_report_no_offset_of_the_store_as_lost(site: RemoteLogFiles) -> None:
    with forgotten(site):
        expire_what_was_copied(site)
    site.append(4, number=1)

    for command in ("plan", "copy"):
        result = refused(site, command)
        assert "never copied" not in result.err + result.out
    audited = run_on(site, "audit")
    assert audited.exit_code == 1
    assert "older than the store" in audited.out
    assert "gap" not in audited.out
    repaired = run_on(site, "repair")
    assert "give up" not in repaired.out + repaired.err
    assert "rebuild-metadata" in repaired.out + repaired.err


@pytest.mark.parametrize("command", [("audit",), ("audit", "--deep"), ("repair",)])
def test_restored_newer_metadata_ignore_what_old_ones_reported_missing(
    site: RemoteLogFiles, command: tuple[str, ...]
) -> None:
    with forgotten(site):
        copy_more(site)
        newer = database_of(site).read_bytes()
    assert run_on(site, *command).exit_code == 1
    refused(site, "expire")

    put_back(site, newer)

    assert run_on(site, "audit").exit_code == 0
    assert run_on(site, "expire").exit_code == 0


def test_the_audit_reports_a_decision_that_the_metadata_lack(site: RemoteLogFiles) -> None:
    with forgotten(site):
        stop(site)

    audited = run_on(site, "audit")

    assert audited.exit_code == 1
    assert "all deletions are stopped" in " ".join(audited.out.split())


def test_an_audit_of_a_store_without_its_mark_is_not_clean(site: RemoteLogFiles) -> None:
    with site.open() as remote_log:
        remote_log.context.bind_store()
    (site.store / "store.json").unlink()

    audited = run_on(site, "audit")

    assert audited.exit_code == 1
    assert "no store.json is there" in audited.err
