"""What a dry run shows of what was marked before is what the run deletes."""

from __future__ import annotations

from pathlib import Path

from support.command_line import run_on
from support.remote_logs import ENABLED, ORDERS_0, RemoteLogFiles, a_copied_remote_log, partition_of, segments_of
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.retention.due_segments import PendingDeletion

FORMER = partition_of("former")
DELETABLE = {**ENABLED, "retention.bytes": 1000}
TOPICS = {"orders": DELETABLE, "former": {**DELETABLE, "remote.storage.enable": False}}


def a_site(root: Path) -> RemoteLogFiles:
    return a_copied_remote_log(root, {("orders", 0): 3, ("former", 0): 2}, topics=TOPICS)


def test_topics_that_are_to_be_deleted_are_shown_with_all_their_segments(tmp_path: Path) -> None:
    files = a_site(tmp_path)
    assert run_on(files, "delete-topic", "former").exit_code == 0

    with files.open() as remote_log:
        [due] = remote_log.deletions.pending_deletions()
        size = sum(segment.size for segment in segments_of(remote_log, FORMER))
        assert due == PendingDeletion(FORMER, 2, 0, size, as_a_whole=True)
        deleted = remote_log.deletions.delete_marked("expire").deleted

        assert sum(segment.size for segment in deleted) == size
        assert remote_log.deletions.pending_deletions() == []


def test_expired_segments_are_pending_while_their_deletion_is_allowed(tmp_path: Path) -> None:
    with a_site(tmp_path).open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 20)
        assert plan is not None
        assert remote_log.deletions.pending_deletions() == []
        remote_log.deletions.mark_expired([plan], "expire")
        assert [(due.segments, due.size) for due in remote_log.deletions.pending_deletions()] == [(2, plan.size)]

        remote_log.context.topics.put(
            Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders", remote_storage_enable=True)
        )
        assert remote_log.deletions.pending_deletions() == []


def test_pending_deletions_are_shown_while_deletions_are_stopped(tmp_path: Path) -> None:
    files = a_site(tmp_path)
    assert run_on(files, "delete-topic", "former").exit_code == 0
    with files.open() as remote_log:
        before = remote_log.deletions.pending_deletions()
        remote_log.context.safety.stop("to look at it", "somebody")
        assert remote_log.deletions.pending_deletions() == before != []


def test_the_command_line_shows_pending_deletions_of_the_selected_partitions(tmp_path: Path) -> None:
    files = a_site(tmp_path)
    plan = tmp_path / "plan.jsonl"
    assert run_on(files, "delete-topic", "former").exit_code == 0

    shown = run_on(files, "expire", "--dry-run", "--json").document["due"]
    assert [(row["partition"], row["segments"], row["as_a_whole"]) for row in shown] == [("former-0", 2, True)]
    assert "former-0" in run_on(files, "expire", "--dry-run").out
    saved = run_on(files, "expire", "--topics", "orders", "--dry-run", "--save-plan", plan, "--json")
    assert saved.document["due"] == []
    assert run_on(files, "expire", "--plan", plan).exit_code == 0

    with files.open() as remote_log:
        assert len(segments_of(remote_log, FORMER)) == 2
