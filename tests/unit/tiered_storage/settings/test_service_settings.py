from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import mentions
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.service.schedule import Pace
from tiered_storage.settings.settings import Settings, load_settings


def loaded(root: Path, **properties: Any) -> Settings:
    file = root / "settings.yaml"
    file.write_text(yaml.safe_dump(properties))
    return load_settings(file, environ={})


def test_the_pace_is_kafkas_by_default(tmp_path: Path) -> None:
    assert Pace.of(loaded(tmp_path)) == Pace(30.0, 0.5, 30.0, 0.2)


def test_the_documents_names_set_the_interval_and_a_retry_that_is_always_the_same(tmp_path: Path) -> None:
    settings = loaded(tmp_path, rlm_process_interval_ms=5000, rlm_retry_interval_ms=7000)

    assert Pace.of(settings) == Pace(5.0, 7.0, 7.0, 0.2)


@pytest.mark.parametrize("value", [-0.1, 0.51, "much", True, "nan"])
def test_a_jitter_is_at_most_a_half(tmp_path: Path, value: object) -> None:
    assert (
        loaded(tmp_path, **{"remote.log.manager.task.retry.jitter": "0.5"}).remote_log_manager_task_retry_jitter == 0.5
    )

    with pytest.raises(ConfigurationError) as refused:
        loaded(tmp_path, **{"remote.log.manager.task.retry.jitter": value})
    assert mentions(str(refused.value), "remote.log.manager.task.retry.jitter")
