"""The examples of docs/reading.md on an exported table; those for Spark are run in tests/integration."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from support.remote_logs import a_copied_remote_log
from support.tables import EXPECTED, example, export_orders
from tiered_storage.remote_log.tables.columns import SCHEMA


@pytest.mark.parametrize("library", ["pyarrow.dataset", "duckdb"])
def test_an_example_prints_what_was_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], library: str
) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 1})
    script = tmp_path / "example.py"
    script.write_text(example(f"import {library}"))
    monkeypatch.setattr(sys, "argv", [str(script), str(export_orders(files))])
    runpy.run_path(str(script))
    assert capsys.readouterr().out.splitlines() == [EXPECTED]


def test_the_columns_are_those_that_are_made() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    table = text.partition("| Column | Type |")[2].partition("\n\n")[0]
    for name in SCHEMA.names:
        assert f"`{name}`" in table
