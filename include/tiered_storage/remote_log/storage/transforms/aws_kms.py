"""Wrap and unwrap data keys by a key of AWS KMS, which never leaves it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tiered_storage.errors import EncryptionKeyError, RemoteStorageError

_CONTEXT = "remote-log-segment"
_REFUSED = frozenset(
    {
        "AccessDeniedException",
        "DisabledException",
        "ExpiredTokenException",
        "IncorrectKeyException",
        "InvalidCiphertextException",
        "InvalidKeyUsageException",
        "KMSInvalidStateException",
        "NotFoundException",
        "UnrecognizedClientException",
        "ValidationException",
    }
)
"""Answers of KMS that a retry does not change."""
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class KmsAccess:
    """How AWS KMS is reached; None means boto3's usual sources. The keys do not show in the repr."""

    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


def encrypt_by_kms(access: KmsAccess, key_id: str, endpoint: str | None, data_key: bytes, segment: str) -> bytes:
    """Return the `data_key` of `segment`, encrypted by the key `key_id`.

    Raises EncryptionKeyError if KMS refuses, and RemoteStorageError if it does not answer.
    """
    context = {_CONTEXT: segment}
    return _asked(access, key_id, endpoint, "CiphertextBlob", "encrypt", Plaintext=data_key, EncryptionContext=context)


def decrypt_by_kms(access: KmsAccess, key_id: str, endpoint: str | None, wrapped: bytes, segment: str) -> bytes:
    """Return the data key of `segment`. Raises as `encrypt_by_kms`."""
    context = {_CONTEXT: segment}
    return _asked(access, key_id, endpoint, "Plaintext", "decrypt", CiphertextBlob=wrapped, EncryptionContext=context)


def _asked(access: KmsAccess, key_id: str, endpoint: str | None, wanted: str, call: str, **arguments: Any) -> bytes:
    """Return the field `wanted` of the answer to `call`."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        with _lock:
            client = _client(access, _region(key_id) or access.region, endpoint)
        answer = getattr(client, call)(KeyId=key_id, **arguments)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        if code in _REFUSED:
            raise EncryptionKeyError(f"AWS KMS refuses to {call} with the key {key_id}: {code}") from error
        raise RemoteStorageError(f"AWS KMS could not {call} with the key {key_id}: {code}") from error
    except BotoCoreError as error:
        raise RemoteStorageError(f"AWS KMS cannot be asked to {call} with the key {key_id}: {error}") from error
    if wanted not in answer:
        raise RemoteStorageError(f"{endpoint or 'AWS KMS'}: the answer to {call} is not one of AWS KMS")
    return bytes(answer[wanted])


@lru_cache(maxsize=8)
def _client(access: KmsAccess, region: str | None, endpoint: str | None) -> Any:
    import boto3

    session = boto3.session.Session(
        aws_access_key_id=access.access_key_id,
        aws_secret_access_key=access.secret_access_key,
        aws_session_token=access.session_token,
        region_name=region,
    )
    return session.client("kms", endpoint_url=endpoint)


def _region(key_id: str) -> str | None:
    parts = key_id.split(":")
    return parts[3] if len(parts) > 5 and parts[0] == "arn" else None
