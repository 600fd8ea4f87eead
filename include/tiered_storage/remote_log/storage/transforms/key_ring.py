"""The keys that wrap data keys: a YAML file, the key ring, names each one by an id.

    keys:
      2026-11:                                     an RSA key pair, as PEM
        private.key.file: 2026-11.pem
      2025-07:                                     a public key alone can only encrypt
        public.key.file: 2025-07.public.pem
      cold:                                        an AES key of 32 bytes, as they are or in base64
        key.file: cold.key
      cloud:                                       a key of AWS KMS, by ARN, id or alias
        aws.kms.key.id: arn:aws:kms:eu-central-1:111122223333:key/1234
        aws.kms.endpoint: https://vpce-….kms.eu-central-1.vpce.amazonaws.com     optional

Relative paths begin in the folder of the key ring. A key that cannot be used is a problem only of the segments that
need it. Keys show in no repr.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter

from tiered_storage.errors import EncryptionKeyError
from tiered_storage.regular_files import open_regular
from tiered_storage.remote_log.storage.transforms.aes_gcm import KEY_BYTES
from tiered_storage.remote_log.storage.transforms.aws_kms import (
    KmsClients,
    decrypt_by_kms,
    encrypt_by_kms,
    usual_clients,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

PRIVATE_KEY_FILE = "private.key.file"
PUBLIC_KEY_FILE = "public.key.file"
KEY_FILE = "key.file"
KMS_KEY_ID = "aws.kms.key.id"
KMS_ENDPOINT = "aws.kms.endpoint"
_NAMES = frozenset({PRIVATE_KEY_FILE, PUBLIC_KEY_FILE, KEY_FILE, KMS_KEY_ID, KMS_ENDPOINT})
_KINDS = ((PRIVATE_KEY_FILE, PUBLIC_KEY_FILE), (KEY_FILE,), (KMS_KEY_ID,))
"""What names a key; an RSA key may have both of its halves."""
_MOST_KEY_FILE_BYTES = 64 << 10
_MOST_RING_BYTES = 1 << 20
_LONGEST_ID = 200
_NONCE_BYTES = 12
_SMALLEST_RSA_BITS = 2048


class WrapAlgorithm(StrEnum):
    """How a data key is wrapped; the values are stored."""

    RSA_OAEP = "RSA-OAEP-SHA-256"
    AES_GCM = "AES-256-GCM"
    AWS_KMS = "AWS-KMS"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key, wrapped by the key `key_id` of a key ring."""

    key_id: str
    algorithm: WrapAlgorithm
    wrapped: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the ring: PEM or 32 bytes in `material`, or the id of a key of AWS KMS; or the `problem` with it."""

    id: str
    algorithm: WrapAlgorithm | None = None
    material: bytes = field(default=b"", repr=False)
    is_public: bool = False
    kms_key_id: str = ""
    kms_endpoint: str | None = None
    problem: str | None = None
    file: Path | None = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys by id. New data keys are wrapped by the key `active`; `problem` says why the ring itself is unusable.

    `path` is the file, if it was read from one on this machine.
    """

    active: str | None = None
    keys: Mapping[str, Key] = field(default_factory=dict)
    source: str = "rsm.config.encryption.key.ring.file"
    problem: str | None = None
    path: Path | None = None

    @classmethod
    def load(cls, path: Path | None, active: str | None) -> Self:
        """Read the key ring at `path`. It never raises: what is wrong is in `problem`, and in that of each key."""
        if path is None:
            return cls(active)
        try:
            return cls(active, _read_keys(path), str(path), path=path)
        except _UnusableError as error:
            return cls(active, source=str(path), problem=f"{path}: {error}", path=path)

    def read_again(self) -> Self:
        """Return what the file has now; this ring if it came from none."""
        return self if self.path is None else self.load(self.path, self.active)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `to_text` wrote."""
        return TypeAdapter(cls).validate_json(text)

    def to_text(self) -> str:
        """Return the ring with its keys as JSON, for the secret environment of a job."""
        adapter = TypeAdapter(type(self))
        return adapter.dump_json(self, exclude={"path": True, "keys": {"__all__": {"file"}}}).decode()

    def active_key(self) -> Key:
        """Return the key that wraps new data keys. Raises EncryptionKeyError if it cannot."""
        if self.active is None:
            raise EncryptionKeyError(
                "rsm.config.encryption.key.pair.id is not set: name the key of the key ring that encrypts"
            )
        return self._key(self.active)

    def wrap(self, data_key: bytes, segment: str, kms: KmsClients = usual_clients) -> WrappedKey:
        """Return the `data_key` of `segment`, wrapped by the active key. Raises as `unwrap`."""
        key = self.active_key()
        context = segment.encode()
        if key.algorithm is WrapAlgorithm.RSA_OAEP:
            wrapped = _public_key(key).encrypt(data_key, _oaep())
        elif key.algorithm is WrapAlgorithm.AES_GCM:
            wrapped = _wrapped_by_aes(key, data_key, context)
        else:
            wrapped = encrypt_by_kms(kms, key.kms_key_id, key.kms_endpoint, data_key, segment)
        return WrappedKey(key.id, WrapAlgorithm(key.algorithm or ""), wrapped)

    def unwrap(self, wrapped: WrappedKey, segment: str, kms: KmsClients = usual_clients) -> bytes:
        """Return the data key of `segment`.

        Raises EncryptionKeyError if the ring lacks the key or has another one under its id, and RemoteStorageError if
        AWS KMS does not answer.
        """
        try:
            return self._unwrapped(wrapped, segment, kms)
        except EncryptionKeyError as error:
            raise EncryptionKeyError(f"{segment}: its data key cannot be unwrapped: {error}") from error

    def _unwrapped(self, wrapped: WrappedKey, segment: str, kms: KmsClients) -> bytes:
        key = self._key(wrapped.key_id)
        if key.algorithm is not wrapped.algorithm:
            raise EncryptionKeyError(
                f"{self.source}: key {key.id} is for {key.algorithm}, and {wrapped.algorithm} wrapped it: the key ring "
                "has another key under this id; put back the right one"
            )
        if key.is_public:
            raise EncryptionKeyError(
                f"{self.source}: key {key.id} has only its public half: add its {PRIVATE_KEY_FILE} to decrypt"
            )
        if key.algorithm is WrapAlgorithm.AWS_KMS:
            return _checked(key, decrypt_by_kms(kms, key.kms_key_id, key.kms_endpoint, wrapped.wrapped, segment))
        unwrap = _unwrapped_by_rsa if key.algorithm is WrapAlgorithm.RSA_OAEP else _unwrapped_by_aes
        data_key = unwrap(key, wrapped.wrapped, segment.encode())
        if data_key is None:
            raise EncryptionKeyError(
                f"{self.source}: key {key.id} is not the key that wrapped it: the key ring has another key under this "
                "id; put back the right one"
            )
        return _checked(key, data_key)

    def _key(self, key_id: str) -> Key:
        if self.problem is not None:
            raise EncryptionKeyError(f"key {key_id} is needed, and {self.problem}")
        key = self.keys.get(key_id)
        if key is None:
            raise EncryptionKeyError(
                f"{self.source}: has no key {key_id}: put it back; without it these bytes stay unreadable"
            )
        if key.problem is not None:
            raise EncryptionKeyError(f"{self.source}: key {key_id}: {key.problem}")
        return key


class _UnusableError(Exception):
    """Why a file of keys cannot be used; the message never shows its content."""


def _read_keys(path: Path) -> dict[str, Key]:
    import yaml

    class Loader(yaml.BaseLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            names: set[str] = set()
            for key, _ in node.value:
                if str(key.value) in names:
                    raise _UnusableError(f"line {key.start_mark.line + 1} repeats a name: choose another for it")
                names.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        content = yaml.load(_read(path, _MOST_RING_BYTES), Loader=Loader)  # noqa: S506 -- it makes only text
    except yaml.YAMLError:
        # Its message quotes the file, which may be a key that was named by mistake.
        raise _UnusableError("this is not YAML") from None
    keys = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(keys, dict):
        raise _UnusableError("it must hold 'keys:' and below that a mapping from ids to keys")
    return {str(key_id): _read_key(str(key_id), entry, path.parent) for key_id, entry in keys.items()}


def _read_key(key_id: str, entry: object, folder: Path) -> Key:
    if len(key_id) > _LONGEST_ID or not key_id.isprintable():
        return Key(key_id, problem=f"an id has at most {_LONGEST_ID} printable characters")
    if (
        not isinstance(entry, dict)
        or not entry.keys() <= _NAMES
        or not all(isinstance(each, str) for each in entry.values())
    ):
        return Key(key_id, problem=f"it must be a mapping with any of {', '.join(sorted(_NAMES))}")
    if sum(any(entry.get(name) for name in names) for names in _KINDS) > 1:
        return Key(key_id, problem="it names several keys: give each one an id of its own")
    if entry.get(KMS_KEY_ID):
        endpoint = entry.get(KMS_ENDPOINT) or None
        return Key(key_id, WrapAlgorithm.AWS_KMS, kms_key_id=entry[KMS_KEY_ID], kms_endpoint=endpoint)
    name = next((name for name in (PRIVATE_KEY_FILE, PUBLIC_KEY_FILE, KEY_FILE) if entry.get(name)), None)
    if name is None:
        return Key(key_id, problem=f"it names no key: give {PRIVATE_KEY_FILE}, {KEY_FILE} or {KMS_KEY_ID}")
    return _key_in(key_id, name, folder / Path(entry[name]).expanduser())


def _key_in(key_id: str, name: str, file: Path) -> Key:
    try:
        material = _read(file, _MOST_KEY_FILE_BYTES)
        if name == KEY_FILE:
            key = Key(key_id, WrapAlgorithm.AES_GCM, _aes_key(material), file=file)
        else:
            key = Key(key_id, WrapAlgorithm.RSA_OAEP, material, is_public=name == PUBLIC_KEY_FILE, file=file)
            _public_key(key)
    except (_UnusableError, EncryptionKeyError) as error:
        return Key(key_id, problem=f"{file}: {error}", file=file)
    return key


def _read(path: Path, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "its path is not valid"
        raise _UnusableError(f"cannot be read ({reason})") from None
    if len(content) > limit:
        raise _UnusableError(f"has more than {limit} bytes")
    return content


def _aes_key(material: bytes) -> bytes:
    if len(material) == KEY_BYTES:
        return material
    try:
        key = base64.b64decode(material.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise _UnusableError(f"an AES key has {KEY_BYTES} bytes, as they are or in base64")
    return key


def _checked(key: Key, data_key: bytes) -> bytes:
    if len(data_key) != KEY_BYTES:
        raise EncryptionKeyError(f"key {key.id} unwraps it to {len(data_key)} bytes, and a data key has {KEY_BYTES}")
    return data_key


def _oaep() -> Any:
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.hashes import SHA256

    return padding.OAEP(mgf=padding.MGF1(algorithm=SHA256()), algorithm=SHA256(), label=None)


def _wrapped_by_aes(key: Key, data_key: bytes, context: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key.material).encrypt(nonce, data_key, context)


def _unwrapped_by_aes(key: Key, wrapped: bytes, context: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key.material).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        return None


def _unwrapped_by_rsa(key: Key, wrapped: bytes, _context: bytes) -> bytes | None:
    try:
        return _private_key(key.material).decrypt(wrapped, _oaep())
    except ValueError:
        return None


def _public_key(key: Key) -> RSAPublicKey:
    return _public_half(key.material) if key.is_public else _private_key(key.material).public_key()


@lru_cache(maxsize=64)
def _private_key(material: bytes) -> RSAPrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(material, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise EncryptionKeyError("it is not a private key in PEM without a password") from None
    if not isinstance(found, RSAPrivateKey) or found.key_size < _SMALLEST_RSA_BITS:
        raise EncryptionKeyError(f"it is not an RSA key of at least {_SMALLEST_RSA_BITS} bits")
    return found


@lru_cache(maxsize=64)
def _public_half(material: bytes) -> RSAPublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        found = load_pem_public_key(material)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise EncryptionKeyError("it is not a public key in PEM") from None
    if not isinstance(found, RSAPublicKey) or found.key_size < _SMALLEST_RSA_BITS:
        raise EncryptionKeyError(f"it is not an RSA key of at least {_SMALLEST_RSA_BITS} bits")
    return found
