"""Key rings for tests, with new keys in files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing

RING = "key-ring.yaml"


@cache
def _rsa_key(name: str) -> rsa.RSAPrivateKey:
    # One for each name: making a key takes a while.
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def rsa_files(folder: Path, name: str, other: str = "") -> None:
    """Write an RSA key pair: NAME.pem and NAME.public.pem; `other` stands for another pair under the same name."""
    key = _rsa_key(name + other)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(folder / f"{name}.pem", private)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write(folder / f"{name}.public.pem", public)


def aes_file(folder: Path, name: str) -> None:
    """Write a new AES key: NAME.key."""
    _write(folder / f"{name}.key", os.urandom(32))


def ring_file(folder: Path, keys: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a key ring of `keys`; return its path."""
    path = folder / RING
    _write(path, yaml.safe_dump({"keys": {name: dict(entry) for name, entry in keys.items()}}).encode())
    return path


def key_ring(folder: Path, active: str = "first") -> KeyRing:
    """Return a key ring with the RSA keys `first` and `second` and the AES key `third`."""
    return KeyRing.load(ring_of_three(folder), active)


def ring_of_three(folder: Path) -> Path:
    """Write that key ring; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    rsa_files(folder, "first")
    rsa_files(folder, "second")
    if not (folder / "third.key").exists():
        aes_file(folder, "third")
    return ring_file(
        folder,
        {
            "first": {"private.key.file": "first.pem"},
            "second": {"private.key.file": "second.pem"},
            "third": {"key.file": "third.key"},
        },
    )


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
