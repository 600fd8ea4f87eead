"""What a run of local retention takes from the events of the asset that started it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.operators.local_retention import occasions_of


def _occasions(*extras: dict[str, Any]) -> list[tuple[int, str | None]]:
    run = SimpleNamespace(run_type="asset_triggered", data_interval_end=None)
    events = {"asset": [SimpleNamespace(extra=extra) for extra in extras]}
    return occasions_of(cast("Any", {"dag_run": run, "triggering_asset_events": events}))


def test_each_event_that_names_a_time_and_a_file_is_an_occasion_of_its_own() -> None:
    first, second = {"now": 7, "path": "runs/a/announced.jsonl"}, {"now": 9, "path": "runs/b/announced.jsonl"}
    assert _occasions(first, second) == [(7, "runs/a/announced.jsonl"), (9, "runs/b/announced.jsonl")]


def test_events_without_them_and_runs_without_events_mean_all_partitions_now() -> None:
    for occasions in (_occasions({}), _occasions()):
        [(now, path)] = occasions
        assert now > 1_700_000_000_000
        assert path is None


def test_no_event_makes_anything_older_than_it_is() -> None:
    [(now, _)] = _occasions({"now": 1 << 62, "path": "runs/a/announced.jsonl"})
    assert now < 1 << 50


@pytest.mark.parametrize("now", ["7", "soon", None, 7.5, True])
def test_an_event_whose_time_is_none_is_refused(now: object) -> None:
    with pytest.raises(AirflowFailException, match="now="):
        _occasions({"now": now, "path": "runs/a/announced.jsonl"})


@pytest.mark.parametrize("path", ["orders-0", "/etc/passwd", 3, None, ["runs/a"]])
def test_an_event_whose_file_is_none_of_a_run_is_refused(path: object) -> None:
    with pytest.raises(AirflowFailException, match=r"now=7 .*path="):
        _occasions({"now": 7, "path": path})
