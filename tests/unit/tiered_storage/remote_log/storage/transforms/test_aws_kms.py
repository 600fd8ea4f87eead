"""Data keys wrapped by AWS KMS, tried against moto's, as the identity that reaches the store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from servers.aws_roles import Account, Role, role_arn, running_account
from support.key_rings import ring_file
from support.object_stores import S3Endpoint, moto_server, options_for
from support.remote_segments import copied, segment_bytes, segment_data, segment_metadata
from tiered_storage.errors import EncryptionKeyError, RemoteStorageError, RemoteStorageRefusedError
from tiered_storage.remote_log.jobs.worker import JobAccess, JobSecrets, StoreAccess
from tiered_storage.remote_log.storage.clients.aws_credentials import AwsIdentity
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.transforms.encoding import Encoding
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing

SEGMENT = "orders-0:AAAAAAAAAAAAAAAAAAAAAA"
DATA_KEY = bytes(range(32))
KEY = S3Endpoint("").access_key
STORAGE = f"{ObjectRemoteStorageManager.__module__}.{ObjectRemoteStorageManager.__name__}"


@pytest.fixture(scope="module")
def aws() -> Iterator[S3Endpoint]:
    """S3 and KMS at one address."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def kms(aws: S3Endpoint) -> Any:
    session = boto3.session.Session(aws.access_key, aws.secret_key, region_name=aws.region)
    return session.client("kms", endpoint_url=aws.url)


def ring_of(folder: Path, key_id: str, endpoint: str) -> KeyRing:
    return KeyRing.load(ring_file(folder, {"cloud": {"aws.kms.key.id": key_id, "aws.kms.endpoint": endpoint}}), "cloud")


def test_kms_wraps_and_unwraps_for_one_segment(tmp_path: Path, aws: S3Endpoint, kms: Any) -> None:
    clients = AwsIdentity(options_for(aws)).kms_client
    ring = ring_of(tmp_path, kms.create_key()["KeyMetadata"]["Arn"], aws.url)
    wrapped = ring.wrap(DATA_KEY, SEGMENT, clients)
    assert DATA_KEY not in wrapped.wrapped
    assert ring.unwrap(wrapped, SEGMENT, clients) == DATA_KEY
    assert KeyRing.parse(ring.to_text()).unwrap(wrapped, SEGMENT, clients) == DATA_KEY
    with pytest.raises(EncryptionKeyError, match="InvalidCiphertext"):
        ring.unwrap(wrapped, "orders-1:AAAAAAAAAAAAAAAAAAAAAA", clients)


def test_a_key_that_kms_does_not_give_is_named(tmp_path: Path, aws: S3Endpoint, kms: Any) -> None:
    clients = AwsIdentity(options_for(aws)).kms_client
    ring = ring_of(tmp_path, kms.create_key()["KeyMetadata"]["KeyId"], aws.url)
    wrapped = ring.wrap(DATA_KEY, SEGMENT, clients)
    with pytest.raises(EncryptionKeyError, match="missing"):
        ring_of(tmp_path, "missing", aws.url).wrap(DATA_KEY, SEGMENT, clients)
    other = kms.create_key()["KeyMetadata"]["KeyId"]
    with pytest.raises(EncryptionKeyError, match=other):
        ring_of(tmp_path, other, aws.url).unwrap(replace(wrapped, wrapped=b"x" * 80), SEGMENT, clients)


def test_kms_out_of_reach_may_be_asked_again(tmp_path: Path, aws: S3Endpoint) -> None:
    clients = AwsIdentity(replace(options_for(aws), connect_timeout_ms=500)).kms_client
    ring = ring_of(tmp_path, "any", "http://127.0.0.1:9")
    with pytest.raises(RemoteStorageError) as raised:
        ring.wrap(DATA_KEY, SEGMENT, clients)
    assert raised.value.retriable
    assert aws.secret_key not in str(raised.value)


def with_roles(account: Account, *roles: str, **others: Any) -> ObjectStoreOptions:
    arns = tuple(role_arn(role) for role in roles)
    return replace(options_for(account.s3), sts_endpoint=account.sts_url, roles=arns, **others)


def test_a_worker_of_spark_asks_kms_under_the_roles_of_the_store_and_renews_them(
    tmp_path: Path, aws: S3Endpoint, kms: Any
) -> None:
    roles = {"first": Role(KEY), "last": Role("first", external_id="ours")}
    with running_account(aws, Account(roles, admitted="last", seconds=1)) as account:
        ring = ring_of(tmp_path, kms.create_key()["KeyMetadata"]["Arn"], account.s3.url)
        given = with_roles(account, "first", "last", role_arguments={"ExternalId": "ours"}, key_ring=ring)
        url = f"s3://{aws.bucket}/kms"
        at_home = JobAccess(
            "work",
            "job",
            StoreAccess(STORAGE, url, given.without_secrets()),
            JobSecrets.of(b"signing", given),
        )
        assert "ours" not in str(at_home.arguments)
        [secrets] = at_home.environment.values()
        there = JobAccess.parse("work", "job", at_home.arguments[-1], secrets)
        content = segment_bytes(1000)
        metadata = segment_metadata(len(content))
        data = replace(segment_data(content), encoding=Encoding(encryption=True))
        with closing(there.store.open(there.secrets.options)) as storage:
            finished = copied(metadata, storage.copy_log_segment_data(metadata, data))
            storage._encoded._ciphers._kept.clear()  # type: ignore[attr-defined]
            while time.time() < account.sessions[account.seen[-1]].expires:
                time.sleep(0.01)
            assert b"".join(storage.fetch_log_segment(finished)) == content
        assert {account.sessions[key].role for key in account.seen} == {"last"}
        assert len({*account.seen}) > 1


def test_a_role_that_is_refused_is_no_lost_key(tmp_path: Path, aws: S3Endpoint) -> None:
    with running_account(aws, Account({"other": Role("somebody")}, admitted="other")) as account:
        clients = AwsIdentity(with_roles(account, "other")).kms_client
        with pytest.raises(RemoteStorageRefusedError, match=re.escape(role_arn("other"))) as raised:
            ring_of(tmp_path, "any", aws.url).wrap(DATA_KEY, SEGMENT, clients)
    assert not isinstance(raised.value, EncryptionKeyError)
