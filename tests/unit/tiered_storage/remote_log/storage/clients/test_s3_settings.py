"""What each setting of S3 makes of a request: users have settings only, so each test begins with a settings file."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import trustme
import yaml

from servers.aws_roles import Account, Role, role_arn, running_account
from servers.s3_proxy import Asked, Refusal, proxy
from support.object_stores import S3Endpoint
from tiered_storage.errors import RemoteObjectNotFoundError, RemoteStorageRefusedError
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.settings.settings import load_settings

# What is sent does not depend on the server.
pytestmark = pytest.mark.parametrize("s3_endpoint", ["localbucket"], indirect=True)

NAME = "folder/segment.log"
KEY = S3Endpoint("").access_key
SECRETS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": S3Endpoint("").secret_key}


@contextmanager
def opened(directory: Path, endpoint: S3Endpoint, **given: object) -> Iterator[ObjectClient]:
    """Open an empty store at `endpoint` as every command does; settings have underscores for dots, no prefix."""
    reached = {"endpoint": endpoint.url, "region": endpoint.region, "allow_http": True}
    url = f"s3://{endpoint.bucket}/{uuid4().hex}"
    named = {f"rsm.config.{name.replace('_', '.')}": value for name, value in {"url": url, **reached, **given}.items()}
    file = directory / "settings.yaml"
    file.write_text(yaml.safe_dump(named))
    settings = load_settings(file, environ={})
    client = open_object_client(settings.rsm_config_url, store_options(settings, SECRETS))
    yield client
    client.close()


def use(client: ObjectClient) -> None:
    """Write an object, create another and read both."""
    client.put(NAME, 3, iter([memoryview(b"abc")]))
    assert client.create("identity.json", b"ours")
    assert client.get_range(NAME, 0, 3) + client.get_range("identity.json", 0, 4) == b"abcours"


def requests(directory: Path, endpoint: S3Endpoint, **given: object) -> list[Asked]:
    """Return the requests that a store with the settings `given` sends."""
    seen: list[Asked] = []
    with proxy(endpoint, seen.append) as proxied, opened(directory, proxied, **given) as client:
        use(client)
    return seen


def values(seen: list[Asked], header: str) -> set[str | None]:
    """Return the values of a header; None stands for requests without it."""
    return {asked.headers.get(header) for asked in seen}


def writes(seen: list[Asked]) -> list[Asked]:
    found = [asked for asked in seen if asked.method == "PUT"]
    assert len(found) == 2
    return found


@pytest.mark.parametrize(("pays", "expected"), [(True, "requester"), (False, None)])
def test_the_setting_for_buckets_whose_reader_pays(
    s3_endpoint: S3Endpoint, tmp_path: Path, *, pays: bool, expected: str | None
) -> None:
    seen = requests(tmp_path, s3_endpoint, requester_pays=pays)
    assert values(seen, "x-amz-request-payer") == {expected}


@pytest.mark.parametrize(("encryption", "key"), [("AES256", None), ("aws:kms", "our-key"), (None, None)])
def test_the_settings_for_encryption_by_the_server(
    s3_endpoint: S3Endpoint, tmp_path: Path, encryption: str | None, key: str | None
) -> None:
    given = {"server_side_encryption": encryption, "kms_key_id": key}
    seen = requests(tmp_path, s3_endpoint, **{name: value for name, value in given.items() if value})
    written = writes(seen)
    assert values(written, "x-amz-server-side-encryption") == {encryption}
    assert values(written, "x-amz-server-side-encryption-aws-kms-key-id") == {key}


@pytest.mark.parametrize(("conditional", "expected"), [(True, "*"), (False, None)])
def test_the_setting_for_conditional_writes(
    s3_endpoint: S3Endpoint, tmp_path: Path, *, conditional: bool, expected: str | None
) -> None:
    created = [
        asked
        for asked in writes(requests(tmp_path, s3_endpoint, conditional_writes=conditional))
        if asked.path.endswith("/identity.json")
    ]
    assert values(created, "if-none-match") == {expected}


def test_the_setting_of_the_region(s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    seen = requests(tmp_path, s3_endpoint, region="ap-south-2")
    assert all(f"Credential={KEY}/" in asked.headers["authorization"] for asked in seen)
    assert all("/ap-south-2/s3/aws4_request" in asked.headers["authorization"] for asked in seen)


@pytest.mark.parametrize(("by_path", "host"), [(True, "s3.example.com"), (False, "a-bucket.s3.example.com")])
def test_the_setting_for_a_bucket_in_the_host(
    s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_path: bool, host: str
) -> None:
    seen: list[Asked] = []

    def look(asked: Asked) -> Refusal | None:
        seen.append(asked)
        return Refusal(404, "NoSuchKey")

    with proxy(s3_endpoint, look) as proxied:
        # No host has these names: the server stands for a proxy, which gets the whole URL.
        monkeypatch.setenv("HTTP_PROXY", proxied.url)
        named = replace(proxied, url="http://s3.example.com", bucket="a-bucket")
        with opened(tmp_path, named, path_style_access=by_path) as client, pytest.raises(RemoteObjectNotFoundError):
            client.size(NAME)
    assert values(seen, "host") == {host}
    assert {"a-bucket/" in asked.path for asked in seen} == {by_path}


def test_the_settings_of_roles(s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    roles = {"first": Role(KEY), "last": Role("first", external_id="ours")}
    with running_account(s3_endpoint, Account(roles, admitted="last")) as account:
        given = {"role_arn": f"{role_arn('first')},{role_arn('last')}", "sts_endpoint": account.sts_url}
        with opened(tmp_path, account.s3, **given, role_external_id="ours") as client:
            use(client)
        assert {account.sessions[key].role for key in account.seen} == {"last"}
        with opened(tmp_path, account.s3, **given) as client, pytest.raises(RemoteStorageRefusedError):
            use(client)


def test_the_setting_of_a_bundle_of_certificates(s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    bundle = tmp_path / "bundle.pem"
    authority.cert_pem.write_to_path(str(bundle))
    with running_account(s3_endpoint, Account({"last": Role(KEY)}, admitted="last"), context) as account:
        given = {"allow_http": False, "role_arn": role_arn("last"), "sts_endpoint": account.sts_url}
        with opened(tmp_path, account.s3, **given, ca_bundle=str(bundle)) as client:
            use(client)
        refused = pytest.raises(RemoteStorageRefusedError, match=r"rsm\.config\.ca\.bundle")
        with opened(tmp_path, account.s3, **given) as client, refused:
            use(client)
