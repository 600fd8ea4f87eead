"""Airflow connections of each store's usual type: what becomes of them, and that the store opens with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servers.azurite import ACCOUNT, CONTAINER, KEY, azurite_server
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.object_store import ObjectStore
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.settings.settings import Settings
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook

ROLE = "arn:aws:iam::123456789012:role/writer"


@pytest.fixture(autouse=True)
def environment_of_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must not be mixed with a connection's own identity."""
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.setenv(name, "of-the-machine")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b2YtdGhlLW1hY2hpbmU=")


def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, **connection: Any) -> ObjectStoreOptions:
    monkeypatch.setenv("AIRFLOW_CONN_TRIAL", json.dumps(connection))
    given = {"state.directory": tmp_path, "rsm.config.url": url, "rsm.config.allow.http": True}
    return RemoteStorageHook("trial").options(Settings.model_validate(given))


def test_a_role_of_an_aws_connection_is_assumed_with_its_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extra = {
        "role_arn": ROLE,
        "assume_role_kwargs": {"ExternalId": "ours", "DurationSeconds": 900},
        "region_name": "eu-north-1",
        "verify": "/etc/ours.pem",
        "config_kwargs": {"s3": {"addressing_style": "virtual"}},
        "service_config": {
            "s3": {"endpoint_url": "https://s3.example.com"},
            "sts": {"endpoint_url": "https://sts.example.com"},
        },
    }
    found = options(monkeypatch, tmp_path, "s3://bucket", conn_type="aws", login="id", password="secret", extra=extra)
    assert found.roles == (ROLE,)
    assert found.role_arguments == {"ExternalId": "ours", "DurationSeconds": 900}
    assert (found.endpoint, found.sts_endpoint) == ("https://s3.example.com", "https://sts.example.com")
    assert (found.access_key_id, found.secret_access_key, found.region) == ("id", "secret", "eu-north-1")
    assert (found.ca_bundle, found.path_style) == ("/etc/ours.pem", False)


def test_a_role_alone_is_assumed_with_the_identity_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extra = {"role_arn": f"{ROLE},{ROLE}2"}
    for conn_type in ("aws", "remote_storage"):
        found = options(monkeypatch, tmp_path, "s3://bucket", conn_type=conn_type, extra=extra)
        assert (found.roles, found.access_key_id) == ((ROLE, f"{ROLE}2"), "of-the-machine")


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"profile_name": "tiering"}, ("profile", "tiering")),
        (
            {
                "role_arn": ROLE,
                "assume_role_method": "assume_role_with_web_identity",
                "assume_role_with_web_identity_federation": "file",
                "assume_role_with_web_identity_token_file": "/var/token",
            },
            ("web_identity_token_file", "/var/token"),
        ),
    ],
)
def test_another_identity_replaces_the_keys_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: dict[str, str], field: tuple[str, str]
) -> None:
    found = options(monkeypatch, tmp_path, "s3://bucket", conn_type="aws", extra=extra)
    assert getattr(found, field[0]) == field[1]
    assert (found.access_key_id, found.secret_access_key) == (None, None)


@pytest.mark.parametrize(
    ("extra", "mark"),
    [
        ({"verify": False}, "sets verify=false"),
        ({"role_arn": ROLE, "assume_role_method": "assume_role_with_saml"}, "assume_role_with_saml"),
        ({"role_arn": ROLE, "assume_role_method": "assume_role_with_web_identity"}, "federation: file"),
    ],
)
def test_unsupported_extras_of_an_aws_connection_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: dict[str, object], mark: str
) -> None:
    with pytest.raises(ConfigurationError, match=mark):
        options(monkeypatch, tmp_path, "s3://bucket", conn_type="aws", extra=extra)


def test_an_azure_connection_opens_its_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with azurite_server(tmp_path / "azurite") as azure:
        text = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azure.url};"
        for connection in (
            {"conn_type": "wasb", "login": ACCOUNT, "password": KEY, "host": azure.url},
            {"conn_type": "wasb", "extra": {"connection_string": text}},
            {"conn_type": "remote_storage", "login": ACCOUNT, "password": KEY, "extra": {"endpoint_url": azure.url}},
        ):
            url = f"az://{CONTAINER}/{connection['conn_type']}"
            store = ObjectStore(url, options(monkeypatch, tmp_path, url, **connection))
            store.create("x", b"content")
            assert store.get_range("x", 0, 7) == b"content"


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (
            {"login": "app", "password": "s", "host": "https://acc.blob.core.windows.net", "extra": {"tenant_id": "t"}},
            {"account_name": "acc", "client_id": "app", "client_secret": "s", "tenant_id": "t"},
        ),
        ({"login": "acc", "extra": {"sas_token": "https://acc/?sv=1&sig=2"}}, {"sas_key": "sv=1&sig=2"}),
        ({"login": "acc", "extra": {"managed_identity_client_id": "m"}}, {"account_name": "acc", "client_id": "m"}),
    ],
)
def test_other_identities_of_azure_are_those_of_airflows_own_hook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connection: dict[str, Any], expected: dict[str, str]
) -> None:
    found = options(monkeypatch, tmp_path, "az://container", conn_type="wasb", **connection)
    assert (
        expected.items()
        <= {name.removeprefix("azure_storage_"): value for name, value in found.properties.items()}.items()
    )
    assert not {"of-the-machine", "b2YtdGhlLW1hY2hpbmU="} & {*found.properties.values()}
    assert found.properties["azure_credential_type"] != "access_key"
    assert ObjectStore("az://container", found).root == "az://container"


def test_a_google_connection_is_for_gs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = options(
        monkeypatch, tmp_path, "gs://bucket", conn_type="google_cloud_platform", extra={"key_path": "/etc/key.json"}
    )
    assert found.properties["google_service_account"] == "/etc/key.json"


def test_a_connection_of_another_stores_type_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"trial .*wasb.*s3://"):
        options(monkeypatch, tmp_path, "s3://bucket", conn_type="wasb", login="acc", password=KEY)
