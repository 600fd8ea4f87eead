"""Who signs requests to S3: roles, sessions that expire in the middle of an upload, web identity, and refusals."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from servers.aws_roles import Account, Role, role_arn, running_account
from support.object_stores import S3Endpoint, options_for
from tiered_storage.errors import ConfigurationError, RemoteStorageError, RemoteStorageRefusedError
from tiered_storage.remote_log.storage.clients.aws_credentials import AwsIdentity
from tiered_storage.remote_log.storage.clients.object_store import PART_BYTES, ObjectStore
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

NAME = "folder/segment.log"
KEY = S3Endpoint("").access_key


@pytest.fixture(autouse=True)
def no_identity_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"),
        *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CA_BUNDLE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def options(account: Account, *roles: str) -> ObjectStoreOptions:
    reached = options_for(account.s3)
    return replace(reached, sts_endpoint=account.sts_url, roles=tuple(role_arn(role) for role in roles))


def store(account: Account, given: ObjectStoreOptions) -> ObjectStore:
    return ObjectStore(f"s3://{account.s3.bucket}/root", given)


def put(store: ObjectStore, size: int) -> None:
    store.put(NAME, size, (memoryview(bytes(min(1 << 20, size - at))) for at in range(0, size, 1 << 20)))


def test_roles_are_assumed_one_with_the_other(s3_endpoint: S3Endpoint) -> None:
    roles = {"first": Role(KEY), "last": Role("first", external_id="ours")}
    with running_account(s3_endpoint, Account(roles, admitted="last")) as account:
        given = replace(options(account, "first", "last"), role_arguments={"ExternalId": "ours"})
        put(store(account, given), 10)
        assert store(account, given).size(NAME) == 10
        assert {account.sessions[key].role for key in account.seen} == {"last"}
        assert AwsIdentity(given).described().startswith("arn:aws:sts::123456789012:assumed-role/last/")


def outlast(account: Account, parts: int) -> Iterator[memoryview]:
    """Yield the parts of an upload, the later ones after the session that signed the first has expired."""
    yield memoryview(bytes(PART_BYTES))
    yield memoryview(bytes(PART_BYTES))
    while not account.seen:
        time.sleep(0.01)
    first = account.seen[0]
    while time.time() < account.sessions[first].expires:
        time.sleep(0.01)
    for _ in range(2, parts):
        yield memoryview(bytes(PART_BYTES))


def test_a_session_that_expires_in_the_middle_of_an_upload_is_renewed(s3_endpoint: S3Endpoint) -> None:
    account = Account({"writer": Role(KEY)}, admitted="writer", seconds=1)
    with running_account(s3_endpoint, account):
        given = options(account, "writer")
        store(account, given).put(NAME, 6 * PART_BYTES, outlast(account, 6))
        assert store(account, given).size(NAME) == 6 * PART_BYTES
    assert len({*account.seen}) > 1


def test_a_session_that_nobody_can_renew_ends_the_upload_with_a_clear_error(s3_endpoint: S3Endpoint) -> None:
    account = Account({"writer": Role(KEY)}, admitted="writer", seconds=1)
    with running_account(s3_endpoint, account):
        session = AwsIdentity(options(account, "writer")).credentials()
        alone = replace(
            options_for(account.s3),
            access_key_id=session["access_key_id"],
            secret_access_key=session["secret_access_key"],
            session_token=session["token"],
        )
        with pytest.raises(RemoteStorageRefusedError, match="credentials have expired"):
            store(account, alone).put(NAME, 6 * PART_BYTES, outlast(account, 6))


def test_a_web_identity_is_read_again_for_each_session(
    s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("of the pod")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", role_arn("pod"))
    account = Account({"pod": Role("of the pod")}, admitted="pod", seconds=1)
    with running_account(s3_endpoint, account):
        # What finds credentials by itself asks where everything of AWS is.
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", account.sts_url)
        opened = store(account, replace(options(account), access_key_id=None, secret_access_key=None))
        put(opened, 10)
        token.write_text("of the next pod")
        account.roles["pod"] = Role("of the next pod")
        while time.time() < account.sessions[account.seen[-1]].expires:
            time.sleep(0.01)
        assert opened.size(NAME) == 10
        by_options = replace(
            options(account, "pod"), access_key_id=None, secret_access_key=None, web_identity_token_file=str(token)
        )
        assert store(account, by_options).size(NAME) == 10


def test_a_profile_of_awss_own_files_may_assume_roles(s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(f"[base]\naws_access_key_id={KEY}\naws_secret_access_key=x\n")
    with running_account(s3_endpoint, Account({"last": Role(KEY)}, admitted="last")) as account:
        given = replace(options(account, "last"), access_key_id=None, secret_access_key=None, profile="base")
        put(store(account, given), 10)


def test_a_role_that_is_refused_is_named(s3_endpoint: S3Endpoint) -> None:
    with running_account(s3_endpoint, Account({"other": Role("somebody")}, admitted="other")) as account:
        given = options(account, "other")
        for call in (lambda: put(store(account, given), 10), lambda: AwsIdentity(given).described()):
            with pytest.raises(RemoteStorageRefusedError, match=re.escape(role_arn("other"))) as raised:
                call()
            assert s3_endpoint.secret_key not in str(raised.value)


def test_no_credentials_at_all_are_reported(s3_endpoint: S3Endpoint) -> None:
    given = replace(options_for(s3_endpoint), access_key_id=None, secret_access_key=None)
    with pytest.raises(RemoteStorageRefusedError, match="credentials"):
        put(ObjectStore(f"s3://{s3_endpoint.bucket}/root", given), 10)


def test_an_unknown_profile_is_reported(s3_endpoint: S3Endpoint) -> None:
    given = replace(options_for(s3_endpoint), access_key_id=None, secret_access_key=None, profile="nobody")
    with pytest.raises(RemoteStorageRefusedError, match="nobody"):
        put(ObjectStore(f"s3://{s3_endpoint.bucket}/root", given), 10)


def test_a_service_that_is_out_of_reach_is_worth_another_try(s3_endpoint: S3Endpoint) -> None:
    with running_account(s3_endpoint, Account({}, admitted="last")) as account:
        given = replace(options(account, "last"), connect_timeout_ms=500)
    with pytest.raises(RemoteStorageError, match="assumed") as raised:
        put(ObjectStore(f"s3://{s3_endpoint.bucket}/root", replace(given, endpoint=s3_endpoint.url)), 10)
    assert raised.value.retriable


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def test_a_bundle_of_certificates_is_for_the_store_and_for_its_roles(
    s3_endpoint: S3Endpoint, authority: trustme.CA, tls: ssl.SSLContext, tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right.pem", tmp_path / "wrong.pem"
    authority.cert_pem.write_to_path(str(right))
    trustme.CA().cert_pem.write_to_path(str(wrong))
    with running_account(s3_endpoint, Account({"last": Role(KEY)}, admitted="last"), tls) as account:
        given = replace(options(account, "last"), allow_http=False, ca_bundle=str(right))
        put(store(account, given), 10)
        assert store(account, given).size(NAME) == 10
        for bundle in (str(wrong), None):
            with pytest.raises(RemoteStorageRefusedError, match=r"rsm\.config\.ca\.bundle"):
                put(store(account, replace(given, ca_bundle=bundle)), 10)
            with pytest.raises(RemoteStorageError, match=r"rsm\.config\.ca\.bundle"):
                put(store(account, replace(given, ca_bundle=bundle, roles=(), max_retries=0)), 10)


@pytest.mark.parametrize("content", [None, "no certificates"])
def test_a_file_that_has_no_certificates_is_refused(content: str | None, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    with pytest.raises(ConfigurationError, match=r"bundle\.pem: .*rsm\.config\.ca\.bundle"):
        ObjectStore("s3://bucket", ObjectStoreOptions(ca_bundle=str(bundle)))
