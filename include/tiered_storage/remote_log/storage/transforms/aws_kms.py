"""Wrap and unwrap data keys by a key of AWS KMS, which never leaves it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tiered_storage.errors import EncryptionKeyError, RemoteStorageError, RemoteStorageRefusedError

_CONTEXT = "remote-log-segment"
_KEY_REFUSED = frozenset(
    {
        "AccessDeniedException",
        "DisabledException",
        "IncorrectKeyException",
        "InvalidCiphertextException",
        "InvalidKeyUsageException",
        "KMSInvalidStateException",
        "NotFoundException",
        "ValidationException",
    }
)
"""Answers of KMS about the key that a retry does not change."""
_CALLER_REFUSED = frozenset({"ExpiredTokenException", "InvalidSignatureException", "UnrecognizedClientException"})
"""Answers of KMS about who asks."""

KmsClients = Callable[[str | None, str | None], Any]
"""Returns botocore's client of AWS KMS in a region, at an endpoint; None stands for the usual ones.

Threads may share it. It raises RemoteStorageError and RemoteStorageRefusedError.
"""


@lru_cache(maxsize=8)
def usual_clients(region: str | None, endpoint: str | None) -> Any:
    """Return a client that asks with what boto3 finds on this machine; see KmsClients."""
    import boto3

    return boto3.session.Session(region_name=region).client("kms", endpoint_url=endpoint)


def encrypt_by_kms(clients: KmsClients, key_id: str, endpoint: str | None, data_key: bytes, segment: str) -> bytes:
    """Return the `data_key` of `segment`, encrypted by the key `key_id`.

    Raises EncryptionKeyError if KMS refuses the key, RemoteStorageRefusedError if it refuses us, and RemoteStorageError
    if it does not answer.
    """
    context = {_CONTEXT: segment}
    return _asked(clients, key_id, endpoint, "CiphertextBlob", "encrypt", Plaintext=data_key, EncryptionContext=context)


def decrypt_by_kms(clients: KmsClients, key_id: str, endpoint: str | None, wrapped: bytes, segment: str) -> bytes:
    """Return the data key of `segment`. Raises as `encrypt_by_kms`."""
    context = {_CONTEXT: segment}
    return _asked(clients, key_id, endpoint, "Plaintext", "decrypt", CiphertextBlob=wrapped, EncryptionContext=context)


def _asked(clients: KmsClients, key_id: str, endpoint: str | None, wanted: str, call: str, **arguments: Any) -> bytes:
    """Return the field `wanted` of the answer to `call`."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = getattr(clients(_region(key_id), endpoint), call)(KeyId=key_id, **arguments)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        if code in _KEY_REFUSED:
            raise EncryptionKeyError(f"AWS KMS refuses to {call} with the key {key_id}: {code}") from error
        if code in _CALLER_REFUSED:
            raise RemoteStorageRefusedError(f"AWS KMS refuses our credentials for the key {key_id}: {code}") from error
        raise RemoteStorageError(f"AWS KMS could not {call} with the key {key_id}: {code}") from error
    except BotoCoreError as error:
        raise RemoteStorageError(f"AWS KMS cannot be asked to {call} with the key {key_id}: {error}") from error
    if wanted not in answer:
        raise RemoteStorageError(f"{endpoint or 'AWS KMS'}: the answer to {call} is not one of AWS KMS")
    return bytes(answer[wanted])


def _region(key_id: str) -> str | None:
    parts = key_id.split(":")
    return parts[3] if len(parts) > 5 and parts[0] == "arn" else None
