"""The read service where it is used: mounted in Airflow's own API server, with its middleware around it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from dags.airflow_runs import AirflowHome
from support.read_service_site import login
from support.tiered_site import RECORDS, TIERED, TieredSite

V1 = "/remote-log/v1"
ORDERS = f"{V1}/topics/orders/partitions/0"


@pytest.fixture
def api(airflow: AirflowHome, site: TieredSite) -> Iterator[TestClient]:
    """The API server over a topic with 20 remote offsets and 30 in all; its role OP may read everything."""
    from airflow.api_fastapi.app import create_app

    site.write_logs({"orders-0": 2})
    rights = site.root / "rights.yaml"
    rights.write_text("roles: {OP: {read: ['*']}}\n")
    site.configure({"orders": TIERED}, read_service_rights_file=str(rights))
    site.copy()
    with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
        yield client


def test_the_service_is_mounted_with_airflows_logins(api: TestClient, site: TieredSite) -> None:
    operator = login("somebody", "OP")
    assert api.get(f"{V1}/topics").status_code == 401
    assert api.get(f"{V1}/topics", headers={"Authorization": "Bearer x.y.z"}).status_code == 401
    assert api.get(f"{V1}/topics", headers=login("somebody", "ADMIN")).json() == {"topics": []}
    [topic] = api.get(f"{V1}/topics", headers=operator).json()["topics"]
    assert (topic["topic"], topic["partitions"]) == ("orders", [0])
    assert api.get(ORDERS, headers=operator).json()["log_end_offset"] == 3 * RECORDS
    assert api.get(f"{V1}/health", headers=operator).json()["ok"] is True
    assert api.get(f"{V1}/docs", headers=operator).status_code == 200
    document = api.get(f"{V1}/openapi.json", headers=operator).json()
    assert document["servers"] == [{"url": V1}]


def test_airflows_middleware_leaves_bytes_as_they_are(api: TestClient, site: TieredSite) -> None:
    operator = {**login("somebody", "OP"), "Accept-Encoding": "gzip"}
    segment = site.segments("orders-0")[0]
    data = f"{ORDERS}/segments/{segment.segment_id.id}/data"
    whole = api.get(data, headers=operator)
    assert whole.headers["content-encoding"] == "identity"
    assert whole.headers["content-length"] == str(segment.size)
    [stored] = [path for path in site.state.rglob("*.log") if segment.segment_id.id in path.name]
    assert whole.content == stored.read_bytes()
    part = api.get(data, headers={**operator, "Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, whole.content[5:10])
    records = api.get(f"{ORDERS}/records", headers=operator)
    assert len(records.text.splitlines()) == 3 * RECORDS


def test_errors_keep_the_services_own_format_within_airflow(api: TestClient) -> None:
    for path, status in (
        (f"{ORDERS}/records?offset=99", 416),
        (f"{V1}/topics/none/partitions", 404),
        (f"{V1}/no", 404),
    ):
        answer = api.get(path, headers=login("somebody", "OP"))
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


def test_the_menu_leads_to_the_page(api: TestClient) -> None:
    operator = login("somebody", "OP")
    plugins = api.get("/api/v2/plugins", headers=login("somebody", "ADMIN")).json()["plugins"]
    [views] = [plugin["external_views"] for plugin in plugins if plugin["name"] == "tiered_storage"]
    assert [(view["name"], view["href"]) for view in views] == [("Remote Log", "/remote-log/page/")]
    token = operator["Authorization"].removeprefix("Bearer ")
    page = api.get("/remote-log/page/", headers={"Cookie": f"_token={token}"})
    assert page.status_code == 200
    assert 'href="/remote-log/page/topics/orders"' in page.text
    assert api.get("/remote-log/page/").status_code == 401
    assert api.get("/remote-log/page/assets/style.css", headers=operator).status_code == 200
