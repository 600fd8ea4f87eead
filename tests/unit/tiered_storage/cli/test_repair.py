from __future__ import annotations

from pathlib import Path

from support.command_line import mentions, run_on
from support.remote_logs import SEGMENT_BYTES, a_copied_remote_log, flip_bit


def test_damaged_segments_are_copied_again_and_the_audit_is_clean(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.objects(".log")[1].unlink()

    planned = run_on(files, "repair", "--dry-run", "--json")
    assert planned.exit_code == 0
    assert [row["action"] for row in planned.rows] == ["copy again", "mark for deletion"]
    assert "offsets 10 to 19 from" in planned.rows[0]["what"]
    assert run_on(files, "audit").exit_code == 1

    done = run_on(files, "repair")
    assert (done.exit_code, done.err) == (0, "")
    assert "copied again" in done.out
    assert run_on(files, "audit", "--deep").exit_code == 0
    again = run_on(files, "repair", "--json")
    assert (again.exit_code, again.rows, again.document["anomalies"]) == (0, [], 0)


def test_only_a_deep_repair_finds_what_only_a_deep_audit_finds(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    flip_bit(files.objects(".log")[1], SEGMENT_BYTES // 2)

    assert run_on(files, "repair", "--json").rows == []
    assert [row["action"] for row in run_on(files, "repair", "--deep", "--json").rows] == [
        "copied again",
        "marked for deletion",
    ]
    assert run_on(files, "audit", "--deep").exit_code == 0


def test_faults_left_to_a_person_are_reported_and_fail(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    (files.store / "holiday.jpg").write_bytes(b"")
    files.objects(".log")[1].unlink()
    for path in files.partition_directory().iterdir():
        if path.name.startswith("00000000000000000010"):
            path.unlink()
    for path in files.partition_directory().glob("00000000000000000000.*"):
        path.unlink()

    result = run_on(files, "repair", "--topics", "orders")

    assert result.exit_code == 1
    assert mentions(result.err, "left to you: orders-0", "offsets 10 to 19")
    assert "1 anomalies are left" in result.err


def test_a_repair_of_nothing_that_exists_fails(tmp_path: Path) -> None:
    result = run_on(a_copied_remote_log(tmp_path), "repair", "--topics", "ordres")

    assert result.exit_code == 1
    assert "matches" in result.err


# --------------------------------------------------------------------------------------------------- rebuild-metadata


def test_lost_metadata_are_rebuilt(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    before = run_on(files, "segments", "--json").rows
    metadata = files.root / "state" / "remote_log_metadata.db"
    refused = run_on(files, "rebuild-metadata")
    assert refused.exit_code == 1
    assert "never changes one" in refused.err
    for path in metadata.parent.glob("remote_log_metadata.db*"):
        path.unlink()

    dry = run_on(files, "rebuild-metadata", "--dry-run", "--json")
    assert (dry.exit_code, dry.rows[0]["segments"], metadata.exists()) == (0, 3, False)
    done = run_on(files, "rebuild-metadata", "--yes", "--json")
    assert (done.exit_code, done.document["file"]) == (0, str(metadata))
    assert "deletion is forbidden" in done.err
    assert run_on(files, "segments", "--json").rows == before
    assert run_on(files, "audit", "--deep").exit_code == 0
    [topic] = run_on(files, "topics", "list", "--json").rows
    assert (topic["local_deletion_allowed"], topic["remote_deletion_allowed"]) == (False, False)


def test_a_rebuild_reports_unreadable_segments_and_exits_with_1(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    flip_bit(files.objects(".indexes")[1], 100)
    result = run_on(files, "rebuild-metadata", "--into", tmp_path / "new.db", "--yes", "--json")

    assert result.exit_code == 1
    assert (result.rows[0]["segments"], result.rows[0]["unreadable"]) == (2, 1)
    assert "cannot be rebuilt" in result.document["troubles"][0]["message"]
