"""The alert rules and the dashboard in docs/monitoring: each metric that they name is one that is served."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from unit.built_metrics import gateway_labels, served_labels

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "docs" / "monitoring"
PAGE = (PROJECT / "docs" / "monitoring.md").read_text("utf-8")
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
DURATION = re.compile(r"\d+[smhd]")
OF_GRAFANA = {"$__rate_interval": "5m", "$topic": ".*"}
"""What Grafana puts in place of its variables."""
LABEL_VALUES = re.compile(r"label_values\((?P<metric>\w+), (?P<label>\w+)\)")
"""A query of Grafana's own: the values of a label."""
SERVED = served_labels()
WATCHED = {**SERVED, **gateway_labels()}
"""Of the endpoint and of gateways."""


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


def parsed(expression: str) -> list[promql.Expr]:
    """Parse as Prometheus does, which also checks names and types of functions; return all parts."""
    for variable, value in OF_GRAFANA.items():
        expression = expression.replace(variable, value)
    parts: list[promql.Expr] = []
    promql.walk(promql.parse(expression), parts.append)
    return parts


def metric_of(part: promql.Expr) -> str | None:
    """Return the metric that a selector names; None for any other part."""
    vector = part.vector_selector if isinstance(part, promql.MatrixSelector) else part
    return vector.name if isinstance(vector, promql.VectorSelector) else None


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_an_expression_is_promql_over_metrics_and_labels_that_are_served(title: str, expression: str) -> None:
    parts = parsed(expression)
    named = {metric for part in parts if (metric := metric_of(part)) is not None}
    assert named
    assert named <= WATCHED.keys()
    every = set.intersection(*(WATCHED[metric] for metric in named))
    for part in parts:
        if isinstance(part, promql.VectorSelector) and part.name is not None:
            assert {each.name for each in part.matchers.matchers} <= WATCHED[part.name]
        elif isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            assert set(part.modifier.labels) <= every
        elif isinstance(part, promql.Call) and part.func.name in {"rate", "increase"}:
            # Only counters have a rate.
            assert str(metric_of(part.args[0])).endswith("_total")


@pytest.mark.parametrize("variable", [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"])
def test_a_variable_of_the_dashboard_has_the_values_of_a_label_that_is_served(variable: dict[str, Any]) -> None:
    query = LABEL_VALUES.fullmatch(variable["query"]["query"])
    assert query is not None
    assert query["label"] in SERVED[query["metric"]]


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


def metrics_in(titled: Iterable[tuple[str, str]]) -> set[str]:
    """Return the metrics that expressions name."""
    return {str(metric_of(part)) for _, expression in titled for part in parsed(expression) if metric_of(part)}


def test_the_dashboard_shows_what_the_alerts_watch_of_topics() -> None:
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    shown = metrics_in(each for each in expressions() if each[0] in titles)
    watched = metrics_in(each for each in expressions() if each[0] not in titles)
    of_topics = {metric for metric in watched if "topic" in SERVED.get(metric, ())}
    assert len(of_topics) > 7
    assert of_topics - shown == set()


def test_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)


def test_the_page_names_every_metric_that_is_served() -> None:
    assert {name for name in SERVED if f"`{name}`" not in PAGE} == set()
