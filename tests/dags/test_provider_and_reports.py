"""What Airflow's own API server shows of Remote Log: its connection type with a form, links, and reports of runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from starlette.testclient import TestClient

from dags.airflow_runs import AirflowHome, FinishedRun
from support.command_line import mentions
from support.tiered_site import TIERED, TieredSite
from tiered_storage_airflow.links import page_url, report_url

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess


@pytest.fixture(scope="module")
def api(airflow: AirflowHome) -> Iterator[TestClient]:
    """The API server in this process; without a login."""
    from airflow.api_fastapi.app import create_app

    with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
        yield client


def login(api: TestClient, role: str = "ADMIN") -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="somebody", role=role))
    return {"Authorization": f"Bearer {token}"}


def test_the_connection_type_is_known_with_a_form_of_its_own(api: TestClient) -> None:
    answer = api.get("/ui/connections/hook_meta", headers=login(api))
    assert answer.status_code == 200
    [form] = [hook for hook in answer.json() if hook["connection_type"] == "remote_storage"]
    assert form["hook_name"] == "Remote storage (Remote Log)"
    assert list(form["extra_fields"]) == ["endpoint_url", "region_name", "role_arn", "aws_session_token"]
    assert form["extra_fields"]["aws_session_token"]["schema"]["format"] == "password"
    shown = {name: field for name, field in form["standard_fields"].items() if field}
    assert "Access key ID" in shown["login"]["title"]
    assert "Secret access key" in shown["password"]["title"]
    assert all(shown[name]["hidden"] for name in ("host", "port", "url_schema"))


def test_a_connection_filled_in_by_that_form_reaches_the_store(
    airflow: AirflowHome, api: TestClient, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage.settings.settings import load_settings
    from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook

    filled_in = {
        "connection_id": "by_the_form",
        "conn_type": "remote_storage",
        "login": "an id",
        "password": "a secret",
        "extra": '{"endpoint_url": "https://minio.example:9000", "region_name": "eu-north-1"}',
    }
    assert api.post("/api/v2/connections", json=filled_in, headers=login(api)).status_code == 201
    site.configure({})
    # As the API server and the scheduler have it: what they run finds connections in the database.
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    options = RemoteStorageHook("by_the_form").options(load_settings(site.config))
    assert (options.endpoint, options.region) == ("https://minio.example:9000", "eu-north-1")
    assert (options.access_key_id, options.secret_access_key) == ("an id", "a secret")
    assert api.delete("/api/v2/connections/by_the_form", headers=login(api)).status_code == 204


@pytest.mark.parametrize(
    "topics",
    ["orders(", "a{1001}", "(" * 5000, "(?!__).*", "(a{1000}){1000}", "\ud800"],
    ids=["open", "repeats", "deep", "look-around", "large", "no text"],
)
def test_a_form_with_an_invalid_expression_begins_no_run(airflow: AirflowHome, api: TestClient, topics: str) -> None:
    from json import dumps

    content = dumps({"logical_date": None, "conf": {"topics": topics}})
    headers = {**login(api), "Content-Type": "application/json"}
    answer = api.post("/api/v2/dags/plan_deletions/dagRuns", content=content, headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    if topics != "\ud800":
        assert mentions(answer.json()["detail"], "is not a ", "RE2")


@pytest.fixture
def run(airflow: AirflowHome, site: TieredSite, spark: SparkInProcess) -> FinishedRun:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": TIERED})
    return airflow.run("copy_segments", run_id=f"by:hand~{uuid4().hex}")


def links_of(api: TestClient, run: FinishedRun, task_id: str) -> Any:
    from urllib.parse import quote

    path = f"/api/v2/dags/copy_segments/dagRuns/{quote(run.run_id, safe='')}/taskInstances/{task_id}/links"
    answer = api.get(path, headers=login(api))
    assert answer.status_code == 200, answer.text
    return answer.json()["extra_links"]


def test_every_task_links_to_the_report_of_its_run(api: TestClient, run: FinishedRun) -> None:
    expected = {"Report": report_url("copy_segments", run.run_id)}
    for task_id in ("plan", "copy", "announce"):
        assert links_of(api, run, task_id) == expected

    page = api.get(expected["Report"], headers=login(api))
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "<th>committed segments</th><td>2</td>" in page.text
    assert f"<p>{run.run_id}</p>" in page.text
    assert 'href="?file=plan%2Fplan.jsonl"' in page.text
    assert "/by%3Ahand~" in expected["Report"]
    plan = api.get(expected["Report"], params={"file": "plan/plan.jsonl"}, headers=login(api))
    assert plan.status_code == 200
    assert plan.headers["content-type"].startswith("text/plain")
    assert plan.text.startswith('{"segments":[{"topic_id_partition"')


@pytest.mark.parametrize(
    ("base_url", "begin"),
    [
        ("", "/remote-log/"),
        ("https://airflow.example", "/remote-log/"),
        ("https://airflow.example/team/airflow/", "/team/airflow/remote-log/"),
    ],
)
def test_a_link_leads_below_the_base_url_of_the_api_server(
    base_url: str, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert report_url("a_dag", "a run") == f"{begin}dags/a_dag/runs/a%20run"
    assert page_url() == f"{begin}page/"


def test_reports_are_for_those_who_are_logged_in_and_lead_nowhere_else(
    api: TestClient, run: FinishedRun, site: TieredSite
) -> None:
    url = report_url("copy_segments", run.run_id)
    assert api.get(url).status_code == 401
    assert api.get(url, headers={"Authorization": "Bearer nonsense"}).status_code in {401, 403}
    assert api.get(url, headers=login(api, "VIEWER")).status_code == 200
    for file in ("../../../remote_log_metadata.db", "/etc/passwd", "plan/plan.jsonl/../plan.jsonl", "nothing"):
        assert api.get(url, params={"file": file}, headers=login(api)).status_code == 404
    assert api.get(report_url("copy_segments", "another run"), headers=login(api)).status_code == 404
    for path in ("/remote-log/docs", "/remote-log/openapi.json", "/remote-log/"):
        assert api.get(path, headers=login(api)).status_code == 404
    site.config.write_text("no.such.setting: 1")
    broken = api.get(url, headers=login(api))
    assert broken.status_code == 502
    assert "no.such.setting" in broken.json()["detail"]
