"""Metadata and store renew one generation together; metadata that lack a renewal change nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, RemoteLogFiles, a_copied_remote_log, begin
from tiered_storage.errors import (
    ConfigurationError,
    OutdatedMetadataError,
    RemoteObjectCorruptError,
    RemoteStorageError,
)
from tiered_storage.remote_log.copy.tasks import CommitReport
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.generation import GenerationGuard, GuardedSafety
from tiered_storage.remote_log.metadata.metadata_store import Generation
from tiered_storage.remote_log.metadata.safety import AuditResult
from tiered_storage.remote_log.metadata.sql.generation import SqlGeneration
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind
from tiered_storage.remote_log.retention.topic_deletion import TopicDeletionPlan
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import temporary_name
from tiered_storage.remote_log.storage.documents.object_names import STORE_DECISIONS, STORE_GENERATION
from tiered_storage.remote_log.storage.documents.store_generation import StoredGeneration, StoreGenerations
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        remote_log.context.bind_store()
    return files


def carried(remote_log: RemoteLogManager) -> StoreGenerations:
    assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
    return remote_log.context.storage.generations


def numbers(remote_log: RemoteLogManager) -> tuple[int, int]:
    """Return the number of the generation in the metadata, and in the store."""
    return remote_log.context.store.generation.read().number, carried(remote_log).newest_number()


def agreed(remote_log: RemoteLogManager) -> int:
    """Return the number of the generation once both have the same number and token, with none under way."""
    known, stored = remote_log.context.store.generation.read(), carried(remote_log).newest()
    assert stored is not None
    assert (known.number, known.token, known.next_token) == (stored.number, stored.token, None)
    return known.number


def put_another(remote_log: RemoteLogManager) -> None:
    """Renew the store's generation as other metadata do that were the live ones."""
    number = carried(remote_log).newest_number()
    carried(remote_log).publish(StoredGeneration(number + 1, "another's token", "an expiry", 5))


def forbid(remote_log: RemoteLogManager) -> None:
    remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=False))


def a_result(anomalies: int, at: int) -> AuditResult:
    return AuditResult(ORDERS_0.cluster_id, ORDERS_0.topic_id, False, at, anomalies)


DECISIONS: dict[str, Callable[[RemoteLogManager], None]] = {
    "forbid": forbid,
    "stop": lambda remote_log: remote_log.context.safety.stop("why", "ada"),
    "an audit result": lambda remote_log: remote_log.context.safety.put_audit_result(a_result(1, 5)),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_each_decision_renews_the_generation_once(files: RemoteLogFiles, decision: str) -> None:
    with files.open() as remote_log:
        before = agreed(remote_log)
        DECISIONS[decision](remote_log)
        assert agreed(remote_log) == before + 1
        assert remote_log.checks.audit(deep=True).anomalies == ()


def test_a_decision_without_a_change_does_not_renew_the_generation(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        forbid(remote_log)
        remote_log.context.safety.stop("why", "ada")
        remote_log.context.safety.put_audit_result(a_result(1, 5))
        before = agreed(remote_log)
        forbid(remote_log)
        remote_log.context.safety.stop("again", "bob")
        remote_log.context.safety.put_audit_result(a_result(2, 6))
        assert agreed(remote_log) == before


def test_every_run_that_copies_or_deletes_renews(files: RemoteLogFiles) -> None:
    files.append(2)
    with files.open() as remote_log:
        before = agreed(remote_log)
        begin(remote_log)
        assert agreed(remote_log) == before + 1
        deletions = remote_log.deletions
        deletions.enforce_local_retention([])
        deletions.mark_expired([], "expire")
        deletions.delete_marked("expire")
        assert agreed(remote_log) == before + 4


def begun_by_a_person(remote_log: RemoteLogManager) -> dict[str, Callable[[], object]]:
    """Return what a person starts, each planned already: nothing but the run itself looks at the generation."""
    repairs, deletions = remote_log.repairs, remote_log.deletions
    repair = repairs.plan(remote_log.checks.audit(), EVERYTHING)
    return {
        "delete-topic": lambda: deletions.mark_topic_deleted(TopicDeletionPlan("orders", "", ()), "delete-topic"),
        "undelete": lambda: deletions.undelete("orders", "ada"),
        "repair": lambda: repairs.carry_out(repair, "repair", lambda _: CommitReport((), (), (), (), retriable=False)),
    }


@pytest.mark.parametrize("name", ["delete-topic", "undelete", "repair"])
def test_every_command_renews_the_generation_and_metadata_that_lack_a_renewal_are_refused(
    files: RemoteLogFiles, name: str
) -> None:
    with files.open() as remote_log:
        run = begun_by_a_person(remote_log)[name]
        before = agreed(remote_log)
        # An undelete that finds nothing marked is an error, after it renewed.
        with suppress(ConfigurationError):
            run()
        assert agreed(remote_log) == before + 1
        put_another(remote_log)
        with pytest.raises(OutdatedMetadataError, match=r"\(an expiry\)"):
            run()


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("step", [(StoreGenerations, "publish"), (SqlGeneration, "confirm")])
def test_killed_at_any_step_a_decision_holds_and_the_next_run_publishes_it(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, decision: str, step: tuple[type, str]
) -> None:
    with files.open() as remote_log:
        before = agreed(remote_log)
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(*step, interrupted)
            DECISIONS[decision](remote_log)
        remote_log.context.guard.ensure_current()
        assert agreed(remote_log) == before + 1


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_decision_after_one_that_is_under_way_gets_a_generation_of_its_own(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log:
        before = agreed(remote_log)
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(SqlGeneration, "confirm", interrupted)
            forbid(remote_log)
        # Not through the guard: the store is out of reach now.
        remote_log.context.store.safety.stop("why", "ada")
        backup = remote_log.context.store.generation.read()
        remote_log.context.guard.ensure_current()
        assert agreed(remote_log) == before + 2
        assert backup.next_token != remote_log.context.store.generation.read().token


def test_metadata_that_lack_a_renewal_are_refused_by_everything_that_writes(files: RemoteLogFiles) -> None:
    files.append(2)
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        put_another(remote_log)
        deletions = remote_log.deletions
        for work in (
            remote_log.context.bind_store,
            remote_log.plan_copy,
            lambda: remote_log.begin_copy(plan, "copy"),
            lambda: remote_log.commit_copy(()),
            lambda: deletions.enforce_local_retention([]),
            lambda: deletions.mark_expired([], "expire"),
            lambda: deletions.delete_marked("expire"),
            lambda: forbid(remote_log),
            lambda: remote_log.context.safety.lift("ada"),
        ):
            with pytest.raises(OutdatedMetadataError, match=r"\(an expiry\).*rebuild-metadata"):
                work()


def test_one_of_two_metadata_at_one_generation_wins_and_the_other_is_refused(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = StoreGenerations.publish

    def after_another(self: StoreGenerations, generation: StoredGeneration) -> None:
        monkeypatch.setattr(StoreGenerations, "publish", publish)
        publish(self, replace(generation, token="a copy's token"))
        publish(self, generation)

    with files.open() as remote_log:
        monkeypatch.setattr(StoreGenerations, "publish", after_another)
        with pytest.raises(OutdatedMetadataError):
            remote_log.context.guard.renew("an expiry")


def test_the_first_writer_notices_an_overwritten_generation(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        remote_log.context.guard.renew("a copy run")
        [ours] = (files.store / STORE_GENERATION).iterdir()
        theirs = StoredGeneration(agreed(remote_log), "another's token", "an expiry", 5)
        ours.write_bytes(theirs.to_bytes())
        os.utime(ours, (1, 1))

        with pytest.raises(OutdatedMetadataError, match="superseded"):
            remote_log.context.guard.ensure_same()


def test_two_processes_with_the_same_metadata_renew_one_after_the_other(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = StoreGenerations.publish

    with files.open() as remote_log, files.open() as other:
        before = agreed(remote_log)

        def after_another(self: StoreGenerations, generation: StoredGeneration) -> None:
            monkeypatch.setattr(StoreGenerations, "publish", publish)
            other.context.guard.renew("a copy run")
            publish(self, generation)

        monkeypatch.setattr(StoreGenerations, "publish", after_another)
        remote_log.context.guard.renew("an expiry")
        assert agreed(remote_log) == agreed(other) == before + 2


def test_a_renewal_between_two_reads_is_no_sign_of_age(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = StoreGenerations.newest

    with files.open() as remote_log, files.open() as other:

        def and_renewed(self: StoreGenerations) -> StoredGeneration | None:
            monkeypatch.setattr(StoreGenerations, "newest", newest)
            found = newest(self)
            other.context.guard.renew("a copy run")
            return found

        monkeypatch.setattr(StoreGenerations, "newest", and_renewed)
        remote_log.context.guard.ensure_current()


def test_a_stop_in_outdated_metadata_holds_and_says_that_others_are_the_stores(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        before = agreed(remote_log)
        put_another(remote_log)
        with pytest.raises(OutdatedMetadataError):
            remote_log.context.safety.stop("why", "ada")
        assert remote_log.context.safety.stopped() is not None
        remote_log.context.safety.put_audit_result(a_result(1, 6))
        assert numbers(remote_log) == (before, before + 1)


@pytest.mark.parametrize("error", [RemoteStorageError, ConfigurationError])
def test_a_decision_while_the_store_is_out_of_reach_is_published_by_the_next_run(
    files: RemoteLogFiles, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def out_of_reach() -> ObjectRemoteStorageManager:
        raise error("away")

    with files.open() as remote_log:
        before = agreed(remote_log)
        away = GenerationGuard(remote_log.context.store, out_of_reach, remote_log.context.clock)
        GuardedSafety(remote_log.context.store.safety, away).stop("why", "ada")
        assert "(away)" in caplog.text
        assert carried(remote_log).newest_number() == before
        remote_log.context.guard.publish_pending()
        assert agreed(remote_log) == before + 1


def test_nothing_is_written_into_a_store_that_is_not_bound(tmp_path: Path) -> None:
    files = RemoteLogFiles(tmp_path)
    with files.open() as remote_log:
        remote_log.context.safety.stop("why", "ada")
        assert not files.store.exists() or not [*files.store.iterdir()]


def test_a_custom_storage_manager_keeps_no_generation(files: RemoteLogFiles) -> None:
    class Own:
        """No ObjectRemoteStorageManager."""

    with files.open() as remote_log:
        before = agreed(remote_log)
        own = GenerationGuard(remote_log.context.store, Own, remote_log.context.clock)  # type: ignore[arg-type]
        own.renew("x")
        own.ensure_current()
        own.claim("x")
        assert agreed(remote_log) == before


def test_a_store_that_keeps_earlier_generations_carries_the_newest(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise RemoteStorageError("nothing may be deleted here")

    with files.open() as remote_log:
        monkeypatch.setattr(type(carried(remote_log).client), "delete_many", refuses)
        before = agreed(remote_log)
        remote_log.context.guard.renew("a copy run")
        assert agreed(remote_log) == before + 1
        assert len([*(files.store / STORE_GENERATION).iterdir()]) == 2


def test_a_store_that_lost_its_generation_or_went_back_is_refused(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        remote_log.context.guard.renew("a copy run")
        [only] = (files.store / STORE_GENERATION).iterdir()
        carried(remote_log).publish(StoredGeneration(1, "yesterday's", "an expiry", 5))
        content = only.read_bytes()
        only.unlink()
        with pytest.raises(OutdatedMetadataError, match="store is older"):
            remote_log.context.guard.ensure_current()
    first = only.with_name(f"{1:020}.json")
    first.write_bytes(content)
    with files.open() as remote_log:
        with pytest.raises(RemoteObjectCorruptError, match="metadata take-over"):
            remote_log.context.guard.ensure_current()
        first.unlink()
        with pytest.raises(OutdatedMetadataError, match="store is older"):
            remote_log.context.guard.ensure_current()


def test_metadata_of_an_earlier_release_that_lack_a_decision_are_refused(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        [only] = (files.store / STORE_GENERATION).iterdir()
        only.unlink()
        as_migrated(remote_log)
        decisions = files.store / STORE_DECISIONS
        decisions.mkdir()
        (decisions / f"{3:020}.json").write_bytes(b"{}")
        with pytest.raises(OutdatedMetadataError, match=r"decision 3 .* 0: "):
            remote_log.context.guard.ensure_current()
        remote_log.context.store.leases.begin_above({TopicIdPartition("", "", 0, ""): 3})
        remote_log.context.guard.ensure_current()
        assert agreed(remote_log) == 1
        assert [*decisions.iterdir()] == []


def as_migrated(remote_log: RemoteLogManager) -> None:
    """Leave the generation as a migration makes it."""
    with sqlite3.connect(remote_log.context.store.generation.where) as connection:
        connection.execute(
            "UPDATE generation SET number = 0, token = '', next_token = NULL, decisions_digest = NULL, place = NULL"
        )


def test_confirming_late_changes_nothing(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        before = agreed(remote_log)
        remote_log.context.store.generation.confirm(Generation(before, "an earlier one"))
        remote_log.context.store.generation.confirm(Generation(before + 1, "nobody's"))
        assert agreed(remote_log) == before


def test_a_store_that_never_lists_a_generation_ends_the_run(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log:
        as_migrated(remote_log)
        monkeypatch.setattr(StoreGenerations, "newest", lambda _: None)
        with pytest.raises(RemoteStorageError, match="generation"):
            remote_log.context.guard.renew("a copy run")


def test_a_renewal_leaves_alone_what_another_process_writes_now(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        number = agreed(remote_log)
        folder = files.store / STORE_GENERATION
        names = {each: temporary_name(f"{each:020}.json", "0" * 16) for each in (number, number + 1, number + 2)}
        for name in names.values():
            (folder / name).write_bytes(b"{")

        remote_log.context.guard.renew("a copy run")

        left = {path.name for path in folder.iterdir()}
        assert left == {f"{number + 1:020}.json", names[number + 1], names[number + 2]}


def test_a_writer_whose_object_was_taken_for_a_leftover_lost_to_a_later_renewal(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log, files.open() as other:
        client = carried(remote_log).client
        create = type(client).create

        def overtaken(self: LocalDirectory, name: str, content: bytes) -> bool:
            monkeypatch.setattr(type(client), "create", create)
            other.context.guard.renew("a copy run")
            other.context.guard.renew("a copy run")
            raise RemoteStorageError("could not link it")

        before = agreed(remote_log)
        monkeypatch.setattr(type(client), "create", overtaken)
        remote_log.context.guard.renew("an expiry")
        assert agreed(remote_log) > before + 1


def test_a_check_before_a_deletion_asks_the_store_for_one_listing(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log:
        remote_log.context.bind_store()
        asked: list[str] = []
        client = carried(remote_log).client
        for name in ("list", "size", "get_range", "create", "put", "delete_many", "discard_unfinished_many"):
            monkeypatch.setattr(type(client), name, counted(asked, name, getattr(type(client), name)))
        remote_log.deletions.permissions.ensure(ORDERS_0, DeletionKind.REMOTE)
        assert asked == ["list"]


def counted(asked: list[str], name: str, method: Callable[..., object]) -> Callable[..., object]:
    def called(*arguments: object, **named: object) -> object:
        asked.append(name)
        return method(*arguments, **named)

    return called
