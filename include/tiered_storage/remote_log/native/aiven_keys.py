"""The private keys that unwrap the data keys of Aiven's plugin: RSA with OAEP, whose hash and mask use SHA3-512.

The library for cryptography refuses SHA3 there, so the padding is taken off here. Python's integers do not hide how
long a power takes. Nobody can have this process unwrap keys of their choice and measure it: it unwraps one key a
segment, for whoever owns the private key.

Source: RFC 8017, sections 7.1.2 and B.2.1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tiered_storage.errors import EncryptionKeyError
from tiered_storage.remote_log.native.aiven_manifest import WrappedDataKey

_DATA_KEY_BYTES = 32
_HASH_BYTES = 64
_COUNTER_BYTES = 4
_KEY_FILE = re.compile(r"encryption\.key\.pairs\.(?P<id>.+)\.private\.key\.file")


class PrivateKeys:
    """Unwraps data keys by the private keys in `files`, by the ids of their pairs. Thread-safe."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Read nothing yet."""
        self._files = files
        self._read: dict[str, RSAPrivateKey] = {}

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> Self:
        """Return those that the options name."""
        found = ((_KEY_FILE.fullmatch(name), value) for name, value in configs.items())
        return cls({match["id"]: Path(value) for match, value in found if match is not None})

    def unwrap(self, key: WrappedDataKey, source: str) -> bytes:
        """Return the data key. Raises EncryptionKeyError, naming `source`."""

        found = unwrapped(self._private_key(key.key_pair_id, source), key.wrapped)
        if found is None or len(found) != _DATA_KEY_BYTES:
            raise EncryptionKeyError(
                f"{source}: the key pair {key.key_pair_id} does not unwrap its data key: name the right private key in "
                f"rsm.config.encryption.key.pairs.{key.key_pair_id}.private.key.file"
            )
        return found

    def _private_key(self, key_pair_id: str, source: str) -> RSAPrivateKey:

        known = self._read.get(key_pair_id)
        if known is not None:
            return known
        setting = f"rsm.config.encryption.key.pairs.{key_pair_id}.private.key.file"
        file = self._files.get(key_pair_id)
        if file is None:
            raise EncryptionKeyError(f"{source}: encrypted for the key pair {key_pair_id}: set {setting}")
        try:
            found = load_pem_private_key(file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise EncryptionKeyError(
                f"{source}: {file} of {setting} cannot be read as a private key in PEM without a password "
                f"({type(error).__name__})"
            ) from None
        if not isinstance(found, RSAPrivateKey):
            raise EncryptionKeyError(f"{source}: {file} of {setting} is not an RSA key")
        return self._read.setdefault(key_pair_id, found)


def unwrapped(private: RSAPrivateKey, wrapped: bytes) -> bytes | None:
    """Return what OAEP with SHA3-512 wrapped; None if it was not wrapped for this key, or changed since."""
    numbers = private.private_numbers()
    modulus = numbers.public_numbers.n
    size = (modulus.bit_length() + 7) // 8
    number = int.from_bytes(wrapped, "big")
    if len(wrapped) != size or number >= modulus or size < 2 * _HASH_BYTES + 2:
        return None
    padded = pow(number, numbers.d, modulus).to_bytes(size, "big")
    masked_seed, masked = padded[1 : 1 + _HASH_BYTES], padded[1 + _HASH_BYTES :]
    seed = _xor(masked_seed, _mask(masked, _HASH_BYTES))
    block = _xor(masked, _mask(seed, len(masked)))
    label, rest = block[:_HASH_BYTES], block[_HASH_BYTES:].lstrip(b"\0")
    if padded[0] or label != hashlib.sha3_512().digest() or rest[:1] != b"\1":
        return None
    return rest[1:]


def _mask(seed: bytes, size: int) -> bytes:
    """Return `size` bytes of MGF1."""
    hashes = -(-size // _HASH_BYTES)
    counted = (seed + number.to_bytes(_COUNTER_BYTES, "big") for number in range(hashes))
    return b"".join(hashlib.sha3_512(each).digest() for each in counted)[:size]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
