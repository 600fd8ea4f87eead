"""airflow_settings.yaml: what is read from it, and how each mistake is named."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT
from tiered_storage_airflow.embedded.settings_file import AirflowSettings, read_airflow_settings


def read_text(tmp_path: Path, text: str) -> AirflowSettings:
    path = tmp_path / "airflow_settings.yaml"
    path.write_text(text)
    return read_airflow_settings(path)


def test_the_projects_own_file_names_what_the_dags_use_and_no_secret() -> None:
    settings = read_airflow_settings(PROJECT_ROOT / "airflow_settings.yaml")
    connections = {connection.conn_id: connection for connection in settings.connections}
    assert connections["spark_default"].conn_host == "local[*]"
    assert json.loads(connections["spark_default"].conn_extra or "") == {"deploy-mode": "client"}
    assert connections["remote_storage_default"].conn_type == "remote_storage"
    assert all(not connection.conn_password for connection in settings.connections)
    assert {pool.pool_name: pool.pool_slot for pool in settings.pools} == {
        "remote_log_copier": 2,
        "remote_log_deleter": 1,
        "remote_log_reader": 2,
        "remote_log_metadata": 4,
    }


@pytest.mark.parametrize("text", ["", "airflow:", "airflow:\n  connections:\n  pools: []\n"])
def test_a_file_may_name_nothing(tmp_path: Path, text: str) -> None:
    assert read_text(tmp_path, text) == AirflowSettings()


def test_the_empty_items_of_astros_template_count_as_missing(tmp_path: Path) -> None:
    template = """
airflow:
  connections:
    - conn_id:
      conn_type:
      conn_host:
      conn_schema:
      conn_login:
      conn_password:
      conn_port:
      conn_uri:
      conn_extra:
        example_extra_field: example-value
  pools:
    - pool_name:
      pool_slot:
      pool_description:
  variables:
    - variable_name:
      variable_value:
"""
    assert read_text(tmp_path, template) == AirflowSettings()


def test_values_become_the_text_that_airflow_keeps(tmp_path: Path) -> None:
    settings = read_text(
        tmp_path,
        """
airflow:
  connections:
    - {conn_id: a, conn_type: http, conn_port: 9092, conn_password: 1234, conn_extra: {verify: false}}
    - {conn_id: b, conn_type: http, conn_extra: '{"verify": true}'}
    - {conn_id: c, conn_uri: 'aws://key:secret@'}
  variables:
    - {variable_name: number, variable_value: 42}
    - {variable_name: truth, variable_value: yes}
    - {variable_name: tree, variable_value: {a: [1]}}
""",
    )
    first, second, third = settings.connections
    assert (first.conn_port, first.conn_password, first.conn_extra) == (9092, "1234", '{"verify": false}')
    assert second.conn_extra == '{"verify": true}'
    assert third.conn_uri == "aws://key:secret@"
    assert [variable.variable_value for variable in settings.variables] == ["42", "true", '{"a": [1]}']


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("airflow: {connections: [{conn_id: a, conn_tpye: spark}]}", r"airflow\.connections\[0\]\.conn_tpye"),
        ("airflow: {connections: [{conn_id: a}]}", r"a needs conn_type or conn_uri"),
        ("airflow: {connections: [{conn_type: spark}]}", r"airflow\.connections\[0\]\.conn_id: Field required"),
        ("airflow: {connections: [{conn_id: a, conn_type: x, conn_port: high}]}", r"connections\[0\]\.conn_port"),
        ("airflow: {connections: [{conn_id: a, conn_type: x, conn_extra: '[1]'}]}", r"conn_extra is not a JSON"),
        ("airflow: {connections: [{conn_id: a, conn_uri: 'x://', conn_host: h}]}", r"conn_uri .*conn_host"),
        (
            "airflow: {connections: [{conn_id: a, conn_type: x}, {conn_id: a, conn_type: y}]}",
            r"airflow\.connections: conn_id a .*2 times",
        ),
        ("airflow: {connections: {conn_id: a}}", r"airflow\.connections: .*list"),
        ("airflow: {pools: [{pool_name: p, pool_slot: 0}]}", r"airflow\.pools\[0\]\.pool_slot"),
        ("airflow: {pools: [{pool_name: p}]}", r"airflow\.pools\[0\]\.pool_slot: Field required"),
        ("airflow: {variables: [{variable_value: 1}]}", r"airflow\.variables\[0\]\.variable_name"),
        ("airflow: {pols: []}", r"airflow\.pols"),
        ("connections: []", r"one key, airflow"),
        ("- airflow", r"one key, airflow"),
        ("airflow: [", r"line 1: .*not YAML"),
    ],
)
def test_a_mistake_is_named_by_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as raised:
        read_text(tmp_path, text)
    assert str(raised.value).startswith(str(tmp_path / "airflow_settings.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "airflow: {connections: [{conn_id: a, conn_password: {nested: hunter2}, conn_port: hunter3}]}",
        "airflow: {connections: [{conn_id: a, conn_password: hunter2",
        "airflow: {connections: [{conn_id: a, hunter2: 1}]}",
        "airflow: {connections: *hunter2}",
    ],
)
def test_a_message_never_shows_a_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_text(tmp_path, text)
    assert "hunter" not in "".join(traceback.format_exception(raised.value))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.yaml: cannot be read"):
        read_airflow_settings(tmp_path / "gone.yaml")
