"""What a run of local retention takes from the events of the asset that started it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.operators.local_retention import occasions_of


def _occasions(*extras: dict[str, Any]) -> list[tuple[int, frozenset[str] | None]]:
    run = SimpleNamespace(run_type="asset_triggered", data_interval_end=None)
    events = {"asset": [SimpleNamespace(extra=extra) for extra in extras]}
    return occasions_of(cast("Any", {"dag_run": run, "triggering_asset_events": events}))


def test_each_event_that_names_a_time_and_partitions_is_an_occasion_of_its_own() -> None:
    first, second = {"now": 7, "partitions": ["orders-0"]}, {"now": 9, "partitions": []}
    assert _occasions(first, second) == [(7, frozenset({"orders-0"})), (9, frozenset())]


def test_events_without_them_and_runs_without_events_mean_all_partitions_now() -> None:
    for occasions in (_occasions({}), _occasions()):
        [(now, partitions)] = occasions
        assert now > 1_700_000_000_000
        assert partitions is None


def test_no_event_makes_anything_older_than_it_is() -> None:
    [(now, _)] = _occasions({"now": 1 << 62, "partitions": ["orders-0"]})
    assert now < 1 << 50


@pytest.mark.parametrize("now", ["7", "soon", None, 7.5, True])
def test_an_event_whose_time_is_none_is_refused(now: object) -> None:
    with pytest.raises(AirflowFailException, match="now="):
        _occasions({"now": now, "partitions": ["orders-0"]})


@pytest.mark.parametrize("partitions", ["orders-0", 3, None, [3]])
def test_an_event_whose_partitions_are_none_is_refused(partitions: object) -> None:
    with pytest.raises(AirflowFailException, match=r"now=7 .*partitions="):
        _occasions({"now": 7, "partitions": partitions})
