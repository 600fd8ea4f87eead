from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import mentions, run, run_on
from support.examinations import examined
from support.key_rings import ring_of_three
from support.remote_logs import a_copied_remote_log, a_remote_log
from tiered_storage.cli import doctor
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.metrics.exporter import MetricsExporter
from tiered_storage.remote_log.metrics.samples import PATH, PartitionSamples
from tiered_storage.remote_log.metrics.stored import lag_history, latest_metrics


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_all_is_well_with_exit_code_0(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.clock.now = wall_clock()
    result = run_on(files, "doctor", "--json")

    assert result.exit_code == 0
    assert {row["verdict"] for row in result.rows} == {"ok", "note"}
    assert {row["check"] for row in result.rows} == {
        "settings", "log.dirs", "state.directory", "rights", "store", "encryption", "work area", "metadata", "pair",
        "topics", "deletions", "audit", "backup", "clock", "read service", "versions", "kernels", "java",
    }  # fmt: skip
    assert "0 wrong, " in result.err


def test_a_fault_gives_exit_code_1(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / "meta.properties").write_text("version=7\n")

    result = run_on(files, "doctor")

    assert result.exit_code == 1
    assert "meta.properties" in result.out
    assert "1 wrong, " in result.err


def test_settings_that_cannot_be_meant_do_not_keep_the_rest_from_being_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("log.dir: [/somewhere]\n")

    result = run("doctor", "--config", config, "--json")

    assert result.exit_code == 1
    [wrong] = [row for row in result.rows if row["verdict"] == "wrong"]
    assert wrong["check"] == "settings"
    assert "did you mean log.dirs?" in wrong["message"]
    assert [row["check"] for row in result.rows if row["check"] in {"kernels", "java"}] == ["kernels", "java"]


def test_settings_are_shown_with_where_they_come_from(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, lease_duration_ms=60_000)
    environ = {"TIERED_STORAGE_LOG_RETENTION_HOURS": "24", "PATH": ""}

    passed = examined(files, environ).ok("settings")

    config = files.root / "settings.yaml"
    line = config.read_text().splitlines().index("lease.duration.ms: 60000") + 1
    assert f"read from {config} | " in passed
    assert f"lease.duration.ms is 60000 ({config}, line {line}) | " in passed
    assert any(mentions(line, "log.retention.ms is 86400000", "TIERED_STORAGE_LOG_RETENTION_HOURS") for line in passed)
    assert any(mentions(line, "topics", "orders") for line in passed)


def test_without_a_settings_file_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered_storage.settings.properties.cluster_files.project_root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_STATE_DIRECTORY", str(tmp_path / "state"))

    rows = run("doctor", "--json").rows

    assert any(row["check"] == "settings" for row in rows if row["verdict"] == "note")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("enabled", "said"), [(False, "scheduled deletion is off"), (True, "scheduled deletion is on")]
)
def test_doctor_says_whether_scheduled_runs_delete(tmp_path: Path, enabled: bool, said: str) -> None:
    files = a_remote_log(tmp_path, scheduled_deletion_enable=enabled)

    assert any(said in message for message in examined(files, {"PATH": ""}).ok("settings"))


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda keys: (keys / "third.key").chmod(0o644), "third.key"),
        (lambda keys: (keys / "key-ring.yaml").chmod(0o640), "key-ring.yaml"),
        (lambda keys: (keys / "second.pem").unlink(), "key second"),
        (lambda keys: (keys / "third.key").unlink(), "key third"),
        (lambda keys: (keys / "key-ring.yaml").write_text("no keys"), "key-ring.yaml"),
        (lambda keys: (keys / "key-ring.yaml").unlink(), "key-ring.yaml"),
    ],
)
def test_a_key_ring_that_cannot_be_used_or_is_open_to_others_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], expected: str
) -> None:
    files = a_copied_remote_log(
        tmp_path,
        rsm_config_encryption_enabled=True,
        rsm_config_encryption_key_ring_file=str(ring_of_three(tmp_path / "keys")),
        rsm_config_encryption_key_pair_id="third",
    )
    files.clock.now = wall_clock()
    assert run_on(files, "doctor").exit_code == 0

    spoil(tmp_path / "keys")

    result = run_on(files, "doctor", "--json")
    assert result.exit_code == 1
    wrong = [row for row in result.rows if row["verdict"] == "wrong"]
    assert {row["check"] for row in wrong} == {"encryption"}
    assert any(expected in row["message"] for row in wrong)


def test_encryption_without_a_key_ring_is_named(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {"remote.encryption.enabled": True}})
    [row] = [row for row in run_on(files, "doctor", "--json").rows if row["check"] == "encryption"]
    assert row["verdict"] == "wrong"
    assert "key.ring.file" in row["message"] + row["advice"]


def test_metrics_are_kept_for_the_page_and_the_next_look_only_if_asked(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(4)
    shown = run_on(files, "metrics", "--json")
    with files.open() as remote_log:
        assert latest_metrics(remote_log.context.work) is None
        assert remote_log.context.work.names("metrics") == []

    kept = run_on(files, "metrics", "--keep", "--json")

    assert (shown.exit_code, kept.exit_code) == (0, 0), kept.err
    assert shown.rows == kept.rows
    [row] = kept.rows
    assert (row["topic"], row["lag_segments"]) == ("orders", 2)
    with files.open() as remote_log:
        work = remote_log.context.work
        latest, [point] = latest_metrics(work), lag_history(work, files.clock())
        [sample] = work.read(PATH, PartitionSamples)
    assert latest is not None
    assert [each.segments.remote_size for each in latest.topics] == [row["remote_bytes"]]
    assert point.topics["orders"].segments == row["lag_segments"]
    assert sample.sample is not None
    assert (str(sample.partition), sample.sample.offset) == ("orders-0", 30)


@pytest.mark.parametrize("keep", [False, True])
def test_served_metrics_are_kept_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keep: bool) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(4)

    def look_once(exporter: MetricsExporter, _: threading.Event) -> None:
        exporter.refresh()

    monkeypatch.setattr(MetricsExporter, "run", look_once)
    monkeypatch.setattr(doctor, "serve", lambda *_, **__: lambda: None)

    served = run_on(files, "metrics", "--serve", "9309", *(["--keep"] if keep else []))

    assert served.exit_code == 0, served.err
    with files.open() as remote_log:
        assert bool(remote_log.context.work.names("metrics")) == keep
