"""docs/configuration.md says what the settings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.reference import EXAMPLE, main, reference
from tiered_storage.settings.settings import Settings, load_settings
from tiered_storage.settings.topics import TopicSettings

PAGE = Path(__file__).parents[4] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    main(["--check", str(PAGE)])


def test_a_page_that_has_drifted_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "configuration.md"
    for text in (None, "# Configuration\n"):
        if text:
            page.write_text(text)
        with pytest.raises(ConfigurationError, match=r"configuration\.md .*: run "):
            main(["--check", str(page)])
    main(["--write", str(page)])
    main(["--check", str(page)])


def test_without_arguments_the_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert capsys.readouterr().out == reference()


def test_the_command_fails_with_one_line_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tiered_storage.settings.reference", "--check", str(tmp_path / "absent.md")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1


def test_every_name_is_on_the_page_once_for_every_meaning() -> None:
    page = reference()
    for model in (Settings, TopicSettings):
        for name in model.known_names():
            if name != "topics":
                assert f"| `{name}` |" in page


def test_the_example_can_be_used_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(EXAMPLE)
    settings = load_settings(file, environ={})
    assert len(settings.log_dirs) == 2
    assert settings.topics["payments"].retention_ms == -1
    assert settings.notices == ()
