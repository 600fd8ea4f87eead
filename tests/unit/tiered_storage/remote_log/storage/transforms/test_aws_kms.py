"""Data keys wrapped by AWS KMS, tried against moto's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from support.key_rings import ring_file
from tiered_storage.errors import EncryptionKeyError, RemoteStorageError
from tiered_storage.remote_log.storage.transforms.aws_kms import KmsAccess
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing

SEGMENT = "orders-0:AAAAAAAAAAAAAAAAAAAAAA"
DATA_KEY = bytes(range(32))
ACCESS = KmsAccess("eu-central-1", "an-id", "a-secret")


@pytest.fixture(scope="module")
def kms() -> Iterator[tuple[str, Any]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    session = boto3.session.Session(ACCESS.access_key_id, ACCESS.secret_access_key, region_name=ACCESS.region)
    yield url, session.client("kms", endpoint_url=url)
    server.stop()


def ring_of(folder: Path, key_id: str, endpoint: str) -> KeyRing:
    path = ring_file(folder, {"cloud": {"aws.kms.key.id": key_id, "aws.kms.endpoint": endpoint}})
    return KeyRing.load(path, "cloud").reached_by(ACCESS)


def test_kms_wraps_and_unwraps_for_one_segment(tmp_path: Path, kms: tuple[str, Any]) -> None:
    url, client = kms
    arn = client.create_key()["KeyMetadata"]["Arn"]
    ring = ring_of(tmp_path, arn, url)
    wrapped = ring.wrap(DATA_KEY, SEGMENT)
    assert DATA_KEY not in wrapped.wrapped
    assert ring.unwrap(wrapped, SEGMENT) == DATA_KEY
    assert KeyRing.parse(ring.to_text()).reached_by(ACCESS).unwrap(wrapped, SEGMENT) == DATA_KEY
    with pytest.raises(EncryptionKeyError, match="InvalidCiphertext"):
        ring.unwrap(wrapped, "orders-1:AAAAAAAAAAAAAAAAAAAAAA")


def test_a_key_that_kms_does_not_give_is_named(tmp_path: Path, kms: tuple[str, Any]) -> None:
    url, client = kms
    key_id = client.create_key()["KeyMetadata"]["KeyId"]
    ring = ring_of(tmp_path, key_id, url)
    wrapped = ring.wrap(DATA_KEY, SEGMENT)
    with pytest.raises(EncryptionKeyError, match="missing"):
        ring_of(tmp_path, "missing", url).wrap(DATA_KEY, SEGMENT)
    other = client.create_key()["KeyMetadata"]["KeyId"]
    with pytest.raises(EncryptionKeyError, match=other):
        ring_of(tmp_path, other, url).unwrap(replace(wrapped, wrapped=b"x" * 80), SEGMENT)


def test_kms_out_of_reach_may_be_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    ring = ring_of(tmp_path, "any", "http://127.0.0.1:9")
    with pytest.raises(RemoteStorageError) as raised:
        ring.wrap(DATA_KEY, SEGMENT)
    assert raised.value.retriable
    assert "a-secret" not in str(raised.value)
