"""The commands of docs/first-run.md and docs/leaving.md work as promised, in their order, on a small directory."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from support.command_line import CommandResult, run
from support.remote_logs import RemoteLogFiles, a_copied_remote_log, a_remote_log
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILES_BESIDE = (HIGH_WATERMARK_CHECKPOINT, "log-start-offset-checkpoint", "recovery-point-offset-checkpoint")


def commands_of(page: str) -> list[list[str]]:
    """Return the arguments of each command of ours in the page's blocks for a shell."""
    lines = "".join(BLOCKS.findall((DOCS / page).read_text("utf-8"))).splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each[1:] for each in words if each[:1] == [".venv/bin/tiered-storage"]]


def results_of(page: str, files: RemoteLogFiles) -> dict[str, CommandResult]:
    """Run the page's commands, with their folders below the root of `files`; each has to succeed."""
    results: dict[str, CommandResult] = {}
    for arguments in commands_of(page):
        placed = [argument.replace("/srv/", f"{files.root}/srv/") for argument in arguments]
        result = run(*placed, "--config", files.config)
        assert result.exit_code == 0, (arguments, result.err)
        results[" ".join(arguments)] = result
    return results


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_the_first_run_works_as_written(tmp_path: Path, has_checkpoints: bool) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2, ("clicks", 0): 1}, topics={})
    if not has_checkpoints:
        for name in (*FILES_BESIDE, "meta.properties"):
            (files.log_directory / name).unlink()
        found = run("doctor", "--config", files.config)
        assert (found.exit_code, "log.end.is.stable: true" in " ".join(found.out.split())) == (1, True)
        files.properties["log.end.is.stable"] = True

    results = results_of("first-run.md", files)

    assert "Due: 2 segments" in results["plan"].out
    assert re.search(r"tiered-storage topics enable TOPIC\W+clicks\b", results["plan"].err)
    assert "Copied: 1 segments" in results["copy --max-segments 1"].out
    assert results["segments"].out.count("COPY_SEGMENT_FINISHED") == 1
    assert "0 anomalies" in results["audit --deep"].out
    assert files.local_starts() == [0, 10, 20]


def test_the_page_on_leaving_works_as_written(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    results = results_of("leaving.md", files)

    assert len([command for command in results if "--as-topic" in command]) == 1
    assert (tmp_path / "srv" / "restored" / "orders-0" / f"{0:020}.log").is_file()
    assert (tmp_path / "srv" / "archive" / "orders-archive-0" / f"{0:020}.log").is_file()


def test_the_list_of_dags_in_the_docs_is_that_of_the_dags_folder() -> None:
    page = (DOCS / "airflow.md").read_text("utf-8")
    table = page.partition("| DAG | When |")[2].partition("\n\n")[0]

    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)

    assert sorted(named) == sorted(path.stem for path in DOCS.parent.joinpath("dags").glob("*.py"))


def test_the_page_on_encryption_works_as_written(tmp_path: Path) -> None:
    """Each block, in its order; at the end the old key is removed, as the page's last step allows."""
    files = a_remote_log(tmp_path / "log", {("orders", 0): 2})
    files.clock.now = wall_clock()
    (tmp_path / "srv").mkdir()
    text = (DOCS / "encryption.md").read_text("utf-8").replace("/srv/", f"{tmp_path}/srv/")
    results: dict[str, CommandResult] = {}
    for kind, block in re.findall(r"^ *```(sh|yaml)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        if kind == "yaml":
            files.properties |= yaml.safe_load(block)
        elif ".venv/bin/tiered-storage" not in block:
            subprocess.run(["sh", "-ec", block], check=True, capture_output=True)
        else:
            for line in block.splitlines():
                program, *arguments = shlex.split(line)
                assert program == ".venv/bin/tiered-storage"
                result = run(*arguments, "--config", files.config)
                assert result.exit_code == 0, (arguments, result.out, result.err)
                results[" ".join(arguments)] = result
    assert "key 2026 wraps and unwraps" in " ".join(results["doctor"].out.split())
    assert "0 anomalies" in results["audit --deep"].out
    assert "2 due" in results["rotate-keys --dry-run"].out
    assert "2 rotated" in results["rotate-keys"].out
    assert [json.loads(path.read_bytes())["key_id"] for path in files.objects(".key")] == ["2027", "2027"]

    assert "0 due" in run("rotate-keys", "--dry-run", "--config", files.config).out
    ring = tmp_path / "srv" / "keys" / "key-ring.yaml"
    keys = yaml.safe_load(ring.read_text())["keys"]
    del keys["2026"]
    ring.write_text(yaml.safe_dump({"keys": keys}))
    (ring.parent / "2026.pem").unlink()
    audited = run("audit", "--deep", "--config", files.config)
    assert (audited.exit_code, "0 anomalies" in audited.out) == (0, True), audited
