"""What the pages in the browser need."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.airflow_pages import find_chromium


def test_without_chromium_it_says_what_to_paste(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"apt-get install -y chromium$"):
        find_chromium()
