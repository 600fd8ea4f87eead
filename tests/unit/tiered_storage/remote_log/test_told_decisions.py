"""Decisions raise a number in the store and in the metadata; whoever lacks one is known as older."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.metadata_stores import ManualClock
from support.remote_logs import ORDERS_0, RemoteLogFiles, a_copied_remote_log
from tiered_storage.errors import ConfigurationError, OutdatedMetadataError, RemoteStorageError
from tiered_storage.remote_log.metadata.safety import AuditVerdict
from tiered_storage.remote_log.metadata.sql_safety import SqlSafety
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage.remote_log.storage.object_names import store_decision_name
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.store_decisions import StoreDecision, StoreDecisions
from tiered_storage.remote_log.told_decisions import DecisionTelling, ToldSafety


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        remote_log.bind_store()
    return files


def telling(remote_log: RemoteLogManager) -> DecisionTelling:
    return replace(remote_log.telling, pause=lambda _: None)


def told(remote_log: RemoteLogManager) -> StoreDecisions:
    assert isinstance(remote_log.storage, ObjectRemoteStorageManager)
    return remote_log.storage.decisions


def numbers(remote_log: RemoteLogManager) -> tuple[int, int]:
    """Return the number of the last decision in the metadata, and in the store."""
    return remote_log.safety.decision_number(), told(remote_log).newest_number()


def forbid(remote_log: RemoteLogManager) -> None:
    remote_log.topics.put(replace(remote_log.decided_topic(ORDERS_0), remote_deletion_allowed=False))


def a_verdict(anomalies: int, at: int) -> AuditVerdict:
    return AuditVerdict(ORDERS_0.cluster_id, ORDERS_0.topic_id, False, at, anomalies)


DECISIONS: dict[str, Callable[[RemoteLogManager], None]] = {
    "forbid": forbid,
    "stop": lambda remote_log: remote_log.safety.stop("why", "ada"),
    "lift": lambda remote_log: remote_log.safety.lift("ada"),
    "a verdict": lambda remote_log: remote_log.safety.put_verdict(a_verdict(1, 5)),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_each_decision_raises_both_numbers(files: RemoteLogFiles, decision: str) -> None:
    with files.open() as remote_log:
        for count in (1, 2) if decision != "a verdict" else (1,):
            DECISIONS[decision](remote_log)
            assert numbers(remote_log) == (count, count)
        telling(remote_log).ensure_known()
        assert remote_log.checks.audit(deep=True).anomalies == ()


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("step", [(StoreDecisions, "add"), (SqlSafety, "raise_decision_number")])
def test_killed_at_any_step_it_holds_and_nobody_is_held_up(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, decision: str, step: tuple[type, str]
) -> None:
    with files.open() as remote_log:
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(*step, interrupted)
            DECISIONS[decision](remote_log)
        assert remote_log.safety.decision_number() == 0
        telling(remote_log).ensure_known()
        forbid(remote_log)
        known, in_store = numbers(remote_log)
        assert known == in_store > 0


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_only_the_first_verdict_that_finds_something_is_told(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        for night, anomalies in enumerate((0, 1, 2, 0, 3)):
            remote_log.safety.put_verdict(a_verdict(anomalies, night))
        assert numbers(remote_log) == (2, 2)


def test_metadata_that_lack_a_decision_are_older_and_named_is_the_only_one(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        told(remote_log).add(StoreDecision(1, "topic orders (x): paused", 5))
        with pytest.raises(OutdatedMetadataError, match=r"what they lack is 'topic orders .x.: paused': decide"):
            telling(remote_log).ensure_known()
        told(remote_log).add(StoreDecision(2, "all deletions are stopped", 6))
        with pytest.raises(OutdatedMetadataError, match="none after 0: they are older than the store") as raised:
            telling(remote_log).ensure_known()
        assert "what they lack" not in str(raised.value)


def test_one_that_is_being_decided_just_now_is_waited_for(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        told(remote_log).add(StoreDecision(1, "topic orders (x): paused", 5))
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            remote_log.safety.raise_decision_number(1)

        replace(remote_log.telling, pause=pause).ensure_known()
        assert len(pauses) == 1


def test_a_stop_in_old_metadata_holds_and_is_told_and_they_stay_old(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        told(remote_log).add(StoreDecision(4, "topic orders (x): paused", 5))
        ToldSafety(remote_log.store.safety, telling(remote_log)).stop("why", "ada")
        assert remote_log.safety.stopped() is not None
        assert numbers(remote_log) == (0, 5)


def test_two_that_decide_at_once_have_a_number_each(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    add = StoreDecisions.add

    def after_another(self: StoreDecisions, decision: StoreDecision) -> bool:
        monkeypatch.setattr(StoreDecisions, "add", add)
        assert add(self, StoreDecision(1, "another's", 5))
        return add(self, decision)

    with files.open() as remote_log:
        monkeypatch.setattr(StoreDecisions, "add", after_another)
        forbid(remote_log)
        assert numbers(remote_log) == (2, 2)


@pytest.mark.parametrize("error", [RemoteStorageError, ConfigurationError])
def test_a_store_out_of_reach_is_told_by_whoever_deletes_next(
    files: RemoteLogFiles, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def out_of_reach() -> ObjectRemoteStorageManager:
        raise error("away")

    with files.open() as remote_log:
        away = ToldSafety(remote_log.store.safety, replace(telling(remote_log), open_storage=out_of_reach))
        away.stop("why", "ada")
        assert "could not be told (away)" in caplog.text
        assert numbers(remote_log) == (0, 0)
        telling(remote_log).ensure_known()
        assert numbers(remote_log) == (1, 1)


def test_nothing_is_written_into_a_store_that_is_not_bound_or_another_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = a_copied_remote_log(tmp_path)
    (files.store / "store.json").unlink(missing_ok=True)
    with files.open() as remote_log:
        bound = remote_log.store.identity.bound_store_uuid()
        forbid(remote_log)
        assert not (files.store / "store.decisions").exists()
        assert bool(caplog.text) is (bound is not None)


def test_a_storage_manager_of_ones_own_is_told_nothing(files: RemoteLogFiles) -> None:
    class Own:
        """No ObjectRemoteStorageManager."""

    with files.open() as remote_log:
        own = DecisionTelling(remote_log.store, Own, ManualClock())  # type: ignore[arg-type]
        own.tell("x")
        own.ensure_known()
        assert numbers(remote_log) == (1, 0)


def test_old_metadata_stay_old_where_the_store_is_out_of_reach_for_a_while(files: RemoteLogFiles) -> None:
    def out_of_reach() -> ObjectRemoteStorageManager:
        raise RemoteStorageError("away")

    with files.open() as remote_log:
        told(remote_log).add(StoreDecision(1, "topic orders (x): not remote deletion allowed", 5))
        ToldSafety(remote_log.store.safety, replace(telling(remote_log), open_storage=out_of_reach)).stop("", "ada")
        with pytest.raises(OutdatedMetadataError):
            telling(remote_log).ensure_known()
        with pytest.raises(OutdatedMetadataError):
            ToldSafety(remote_log.store.safety, telling(remote_log)).lift("ada")


@pytest.mark.parametrize(("killed_in", "next_word"), [("lift", "stop"), ("a verdict", "a clean verdict")])
def test_what_a_killed_process_decided_is_known_though_the_next_word_takes_its_place(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, killed_in: str, next_word: str
) -> None:
    words = DECISIONS | {"a clean verdict": lambda remote_log: remote_log.safety.put_verdict(a_verdict(0, 6))}
    with files.open() as remote_log:
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(SqlSafety, "raise_decision_number", interrupted)
            words[killed_in](remote_log)
        words[next_word](remote_log)
        telling(remote_log).ensure_known()


def test_what_old_metadata_find_wanting_does_not_make_the_newest_ones_old(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        told(remote_log).add(StoreDecision(3, "topic orders (x): paused", 5))
        ToldSafety(remote_log.store.safety, telling(remote_log)).put_verdict(a_verdict(1, 6))
        assert numbers(remote_log) == (0, 3)


def test_a_stop_that_is_said_to_old_metadata_again_and_again_is_told_once(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        told(remote_log).add(StoreDecision(4, "topic orders (x): paused", 5))
        for _ in range(3):
            ToldSafety(remote_log.store.safety, telling(remote_log)).stop("why", "ada")
        assert numbers(remote_log) == (0, 5)


def test_a_store_that_keeps_earlier_decisions_has_been_told(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise RemoteStorageError("nothing may be deleted here")

    with files.open() as remote_log:
        forbid(remote_log)
        monkeypatch.setattr(type(told(remote_log).client), "delete", refuses)
        DECISIONS["stop"](remote_log)
        assert numbers(remote_log) == (2, 2)


def test_a_broken_decision_that_is_known_hinders_nobody_and_one_that_is_not_names_the_way_out(
    files: RemoteLogFiles,
) -> None:
    with files.open() as remote_log:
        forbid(remote_log)
        [known] = (files.store / "store.decisions").iterdir()
        known.write_bytes(b"{")
        assert remote_log.checks.audit().anomalies == ()
        forbid(remote_log)
        assert numbers(remote_log) == (2, 2)
        (files.store / store_decision_name(3)).write_bytes(b"{")
        with pytest.raises(OutdatedMetadataError, match=r"cannot be read .*no JSON.*rebuild-metadata"):
            telling(remote_log).ensure_known()
        [anomaly] = remote_log.checks.audit().anomalies
        assert "rebuild-metadata" in anomaly.message


def test_a_backup_from_before_the_first_deletion_is_as_new_as_the_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        identity = remote_log.store.identity
        if identity.bound_store_uuid() is None:
            forbid(remote_log)
        backup = remote_log.safety.decision_number(), remote_log.safety.untold_number()
        assert backup[1] == 0
        remote_log.bind_to_delete()
        assert told(remote_log).newest_number() == backup[0]
