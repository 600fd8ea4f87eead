"""docs/read-service.md lists what exists."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from support.read_service_site import ReadServiceSite, served, token
from support.remote_logs import BATCH_BYTES
from tiered_storage.settings.read_rights import Right, load_read_rights
from tiered_storage_airflow.read_service.routes.exception_handlers import PROBLEMS

DOCS = Path(__file__).parents[5] / "docs"
TEXT = (DOCS / "read-service.md").read_text("utf-8")


def test_the_table_of_routes_has_every_route(site: ReadServiceSite) -> None:
    [table] = re.findall(r"^\| Route .*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    partition = "/topics/{topic}/partitions/{partition}"
    named = {path.replace("…", partition) for row in table.splitlines() for path in re.findall(r"`([…/][^` ]*)`", row)}
    assert named == set(site.get("/openapi.json").json()["paths"])


def test_the_table_of_statuses_has_every_status() -> None:
    [table] = re.findall(r"^\| Status .*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([0-9, ]+) \|", table, re.MULTILINE)
    assert {int(status) for row in rows for status in row.split(",")} == {*map(int, PROBLEMS), 416}


def test_the_example_of_rights_gives_them(tmp_path: Path) -> None:
    [example] = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    path = tmp_path / "rights.yaml"
    path.write_text(example)
    rights = load_read_rights(path)
    assert rights.allows("bob", ["Analyst"], Right.READ, "clicks-2026")
    assert not rights.allows("bob", ["Analyst"], Right.READ, "payments.eu")
    assert rights.allows("alice", [], Right.DESCRIBE, "audit.log")


def test_the_examples_with_curl_do_what_they_say(own_site: ReadServiceSite, tmp_path: Path) -> None:
    _, commands = re.findall(
        r"^## With curl\n\n```bash\n(.*?)^```\n\n```bash\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL
    )[0]
    folder = tmp_path / "here"
    folder.mkdir()
    printed = _run_in(folder, commands, own_site)
    assert '"log_end_offset":35' in printed
    assert [f'{{"offset":{offset},' in printed for offset in (6, 7, 9, 10, 25)] == [False, True, True, False, True]
    table = pa.ipc.open_stream(folder / "orders.arrows").read_all()
    assert table.column("offset").to_pylist() == list(range(35))
    assert (folder / "segment.log").read_bytes() == own_site.files.objects(".log")[0].read_bytes()
    assert (folder / "orders.batches").stat().st_size == 7 * BATCH_BYTES


def test_the_examples_of_reading_do_what_they_say(
    own_site: ReadServiceSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "reading.md").read_text("utf-8").partition("\n## Over HTTP\n")[2].partition("\n## ")[0]
    [commands] = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [script] = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    printed = _run_in(tmp_path, commands, own_site)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(script, "docs/reading.md", "exec"), {})  # noqa: S102 -- ours

    assert '"offset":25,"timestamp":1700000025000' in printed
    assert [f'{{"offset":{offset},' in printed for offset in (24, 25, 26, 27)] == [False, True, True, False]
    assert capsys.readouterr().out == "10 records from offset 15\n"


def _run_in(folder: Path, commands: str, site: ReadServiceSite) -> str:
    with served(site) as address:
        environment = {"PATH": os.environ["PATH"], "AIRFLOW": address, "TOKEN": token("reader")}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            check=False,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
