"""The client of Airflow's API, against answers in the form that Airflow 3.3 gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tiered_storage_airflow.embedded.api_client import AirflowApi, DagRun, TaskInstance
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError

Answer = Callable[[httpx.Request], httpx.Response]
MOMENT = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
RUN = DagRun("copy_segments", "manual__1", "manual", "queued", MOMENT, None, None)


@contextmanager
def airflow(answer: Answer) -> Iterator[AirflowApi]:
    def logged_in(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            return httpx.Response(201, json={"access_token": "token"})
        assert request.headers["Authorization"] == "Bearer token"
        return answer(request)

    with AirflowApi("http://127.0.0.1:8080", "admin", "password", transport=httpx.MockTransport(logged_in)) as api:
        yield api


def run_row(state: str, run_type: str = "manual") -> dict[str, Any]:
    return {
        "dag_id": "copy_segments",
        "dag_run_id": "manual__1",
        "run_type": run_type,
        "state": state,
        "run_after": "2026-11-21T10:00:00Z",
        "start_date": None if state == "queued" else "2026-11-21T10:00:01Z",
        "end_date": None,
    }


def task_row(task_id: str, state: str | None, map_index: int = -1) -> dict[str, Any]:
    return {
        "dag_id": "copy_segments",
        "dag_run_id": "manual__1",
        "task_id": task_id,
        "map_index": map_index,
        "state": state,
        "try_number": 2,
        "start_date": None,
        "end_date": None,
    }


def test_a_wrong_password_is_an_error_that_says_so() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(401, json={"detail": "Invalid credentials"}))
    with pytest.raises(EmbeddedAirflowError, match=r"POST .*/auth/token: .*401"):
        AirflowApi("http://127.0.0.1:8080", "admin", "wrong", transport=transport)


def test_a_triggered_run_has_no_logical_date_and_carries_its_conf() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=run_row("queued"))

    with airflow(answer) as api:
        assert api.trigger("copy_segments", {"topics": "orders"}) == RUN
    assert requests[0].url.path == "/api/v2/dags/copy_segments/dagRuns"
    assert requests[0].read() == b'{"logical_date":null,"conf":{"topics":"orders"}}'


def test_unpausing_touches_nothing_else() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json={})

    with airflow(answer) as api:
        api.unpause("copy_segments")
    assert (requests[0].method, requests[0].url.query) == ("PATCH", b"update_mask=is_paused")
    assert requests[0].read() == b'{"is_paused":false}'


def test_waiting_reports_the_tasks_and_ends_with_the_run() -> None:
    reported: list[tuple[str, list[TaskInstance]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/taskInstances"):
            return httpx.Response(200, json={"task_instances": [task_row("plan", "success")]})
        return httpx.Response(200, json=run_row("success"))

    with airflow(answer) as api:
        finished = api.wait_for_run(RUN, 60, lambda run, tasks: reported.append((run.state, tasks)))
    assert finished.state == "success"
    assert finished.started == datetime(2026, 11, 21, 10, 0, 1, tzinfo=UTC)
    assert [(state, [task.name for task in tasks]) for state, tasks in reported] == [("success", ["plan"])]


def test_waiting_too_long_is_an_error_that_names_where_the_run_stands() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/taskInstances"):
            rows = [task_row("copy", "running"), task_row("commit_metadata", None, map_index=3)]
            return httpx.Response(200, json={"task_instances": rows})
        return httpx.Response(200, json=run_row("running"))

    with (
        airflow(answer) as api,
        pytest.raises(EmbeddedAirflowError, match=r"\(copy .*running, commit_metadata\[3\] .*None\)"),
    ):
        api.wait_for_run(RUN, 0)


def test_runs_by_asset_events_are_asked_for_from_a_moment_on() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.params["run_type"] == "asset_triggered"
        assert request.url.params["run_after_gte"] == "2026-11-21T10:00:00+00:00"
        return httpx.Response(200, json={"dag_runs": [run_row("running", "asset_triggered")]})

    with airflow(answer) as api:
        assert [run.run_type for run in api.asset_triggered_runs("enforce_local_retention", MOMENT)] == [
            "asset_triggered"
        ]
        assert api.wait_for_asset_triggered_run("enforce_local_retention", MOMENT, 60).state == "running"


def test_backfills_that_have_not_ended_are_counted() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.path, request.url.params["dag_id"]) == ("/api/v2/backfills", "copy_segments")
        ended = [None, MOMENT.isoformat(), None]
        return httpx.Response(
            200, json={"backfills": [{"id": number, "completed_at": at} for number, at in enumerate(ended)]}
        )

    with airflow(answer) as api:
        assert api.running_backfills("copy_segments") == 2


def test_an_asset_event_that_never_comes_is_an_error_that_says_where_to_look() -> None:
    with (
        airflow(lambda _: httpx.Response(200, json={"dag_runs": []})) as api,
        pytest.raises(EmbeddedAirflowError, match="paused"),
    ):
        api.wait_for_asset_triggered_run("enforce_local_retention", MOMENT, 0)


def test_more_than_a_page_is_read_to_its_end() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        offset, limit = int(request.url.params["offset"]), int(request.url.params["limit"])
        rows = [task_row("commit_metadata", "success", map_index=i) for i in range(250)]
        return httpx.Response(200, json={"task_instances": rows[offset : offset + limit]})

    with airflow(answer) as api:
        assert [task.map_index for task in api.task_instances(RUN)] == list(range(250))


def test_the_logs_of_failed_tasks_are_shown_from_their_end() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/taskInstances"):
            return httpx.Response(
                200, json={"task_instances": [task_row("plan", "success"), task_row("copy", "failed", map_index=7)]}
            )
        assert request.url.path.endswith("/taskInstances/copy/logs/2")
        assert request.url.params["map_index"] == "7"
        failure = {
            "timestamp": "2026-11-21T10:00:02Z",
            "event": "Task failed",
            "error_detail": [{"exc_type": "RemoteStorageFullError", "exc_value": "no room"}],
        }
        return httpx.Response(200, json={"content": [{"event": "early"}, "a bare line", failure]})

    with airflow(answer) as api:
        assert api.failures(RUN, lines=3) == (
            "copy[7] failed:\na bare line\n2026-11-21T10:00:02Z Task failed\nRemoteStorageFullError: no room"
        )


def test_reading_is_tried_again_when_airflow_fails_in_itself() -> None:
    answers = iter([httpx.Response(500, text="database is locked"), httpx.Response(200, json=run_row("success"))])
    with airflow(lambda _: next(answers)) as api:
        assert api.run("copy_segments", "manual__1").is_finished


def test_a_run_is_triggered_once_even_where_airflow_fails_in_itself() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(500, text="database is locked")

    with airflow(answer) as api, pytest.raises(EmbeddedAirflowError, match="500: database is locked") as raised:
        api.trigger("copy_segments")
    assert len(asked) == 1
    assert raised.value.retriable


def test_an_airflow_that_is_gone_is_an_error_that_says_so() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with airflow(answer) as api, pytest.raises(EmbeddedAirflowError, match="not answer"):
        api.unpause("copy_segments")


def test_files_that_cannot_be_imported_are_reported_with_their_reason() -> None:
    row = {"filename": "broken.py", "stack_trace": "Traceback:\n  here\nImportError: no such module\n"}
    with airflow(lambda _: httpx.Response(200, json={"import_errors": [row]})) as api:
        assert [(failure.file, failure.reason) for failure in api.import_failures()] == [
            ("broken.py", "ImportError: no such module")
        ]
