"""What schemathesis makes of the service's own OpenAPI document: requests that fit it, and requests that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.read_service_site import ReadServiceSite, login

TOPICS = ("orders", "orders", "orders", "payments", "absent")
CONFORMANCE = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
PATHS = (
    "/topics",
    "/topics/{topic}/partitions",
    "/topics/{topic}/partitions/{partition}",
    "/topics/{topic}/partitions/{partition}/offsets",
    "/topics/{topic}/partitions/{partition}/offsets/by-time",
    "/topics/{topic}/partitions/{partition}/offsets/{name}",
    "/topics/{topic}/partitions/{partition}/records",
    "/topics/{topic}/partitions/{partition}/segments",
    "/topics/{topic}/partitions/{partition}/segments/{segment_id}",
    "/topics/{topic}/partitions/{partition}/segments/{segment_id}/data",
    "/topics/{topic}/partitions/{partition}/segments/{segment_id}/indexes/{name}",
    "/health",
    "/metrics",
)
PEOPLE: Mapping[str, Callable[[], dict[str, str]]] = {
    "reader": lambda: login("reader"),
    "watcher": lambda: login("watcher"),
    "unauthorized": lambda: login("unauthorized", "ADMIN"),
    "anybody": lambda: login("anybody", "OP"),
    "nobody": dict,
    "garbled": lambda: {"Authorization": "Bearer garbled.to.ken"},
    "expired": lambda: login("reader", seconds=-60),
    "of another kind": lambda: {"Authorization": "Basic cmVhZGVyOng="},
}
"""The headers of each caller, made for each request because tokens expire."""
NOT_LOGGED_IN = frozenset({"nobody", "garbled", "expired", "of another kind"})
MAY_SEE = {"reader": {"orders"}, "watcher": {"orders"}, "unauthorized": set(), "anybody": {"orders", "payments"}}


def allowed(name: str, path: str, topic: str | None) -> frozenset[int] | None:
    """Return the statuses that rights leave open; None: any that the document has."""
    if name in NOT_LOGGED_IN:
        return frozenset({401})
    if topic is None or topic in MAY_SEE[name]:
        gives_records = path.endswith(("/records", "/data"))
        return frozenset({403, 404, 422}) if name == "watcher" and gives_records else None
    return frozenset({404, 422})


@pytest.fixture(scope="module")
def document(site: ReadServiceSite) -> dict[str, Any]:
    found: dict[str, Any] = site.get("/openapi.json").json()
    return found


def test_every_path_of_the_document_is_tried(document: dict[str, Any]) -> None:
    assert sorted(document["paths"]) == sorted(PATHS)


@pytest.mark.parametrize("examples", [5, pytest.param(150, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", PATHS)
def test_the_service_keeps_what_its_document_says(
    site: ReadServiceSite, document: dict[str, Any], path: str, mode: str, examples: int
) -> None:
    # Takes a second to import, which no process that only collects tests has to wait for.
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS, load_all_checks, not_a_server_error

    load_all_checks()
    conforming = CHECKS.get_by_names(CONFORMANCE)
    is_negative = mode == "negative"
    operation = schemathesis.openapi.from_dict(document)[path]["GET"]
    segment = site.segments()[0].segment_id.id

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)), data=st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        places = case.path_parameters or {}
        is_kept = is_negative and data.draw(st.booleans())
        if "topic" in places and not is_kept:
            places["topic"] = data.draw(st.sampled_from(TOPICS))
        if "partition" in places and not is_kept:
            places["partition"] = 0
        if "segment_id" in places and not is_kept:
            places["segment_id"] = segment
        name = data.draw(st.sampled_from(sorted(PEOPLE)))
        asked = case.as_transport_kwargs(base_url="http://testserver")
        others = {key: value for key, value in asked["headers"].items() if key != "Authorization"}
        answer = site.client.request(
            asked["method"], asked["url"], params=asked.get("params"), headers={**others, **PEOPLE[name]()}
        )
        # Which path it was, only the service knows, where a made-up name has slashes.
        if name in NOT_LOGGED_IN and answer.status_code in {404, 405}:
            assert answer.json()["title"] in {"NotFound", "MethodNotAllowed"}
        else:
            statuses = allowed(name, path, places.get("topic"))
            assert statuses is None or answer.status_code in statuses
        # A client that knows a newer leader than the service is asked to come back later.
        is_ahead = "current_leader_epoch" in (asked.get("params") or {}) and "UnknownLeaderEpoch" in answer.text
        case.validate_response(answer, checks=conforming if is_ahead else [not_a_server_error, *conforming])
        assert "Traceback" not in answer.text
        if "payments" not in MAY_SEE.get(name, ()):
            assert "payments" not in answer.text.replace(repr(places.get("topic")), "")

    ask()
