"""The alert rules and the dashboard in docs/monitoring: each metric that they name is one that is served."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.built_metrics import served_names

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "docs" / "monitoring"
PAGE = (PROJECT / "docs" / "monitoring.md").read_text("utf-8")
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
METRIC = re.compile(r"\b(?:kafka_server|remote_log)_[a-z_]+")
DURATION = re.compile(r"\d+[smhd]")
FUNCTIONS = {"max", "min", "sum", "by", "increase", "rate", "time", "absent", "or"}


def alerts() -> list[dict[str, Any]]:
    [group] = RULES["groups"]
    assert group["name"] == "remote-log"
    return list(group["rules"])


def expressions() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"].replace("label_values", "max")


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_an_expression_names_only_metrics_that_are_served_and_is_well_formed(title: str, expression: str) -> None:
    named = set(METRIC.findall(expression))
    assert named
    assert named <= served_names()
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    without_labels = re.sub(r"\{.*?\}|\[.*?\]|by \(.*?\)", "", expression)
    words = set(re.findall(r"[a-z_]+", without_labels)) - named
    assert words <= FUNCTIONS | {"topic"}
    # Only counters have a rate.
    for counted in re.findall(r"(?:rate|increase)\((\w+)", expression):
        assert counted.endswith("_total")


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert set(alert) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert DURATION.fullmatch(alert.get("for", "0s"))
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"].endswith(".")
    assert f"`{alert['alert']}`" in PAGE


def test_the_dashboard_has_what_grafana_needs() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating"} <= set(DASHBOARD)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in {"timeseries", "stat"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)


def test_the_page_names_every_metric_that_is_served_names() -> None:
    assert {name for name in served_names() if f"`{name}`" not in PAGE} == set()
