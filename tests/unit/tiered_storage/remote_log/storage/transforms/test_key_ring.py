"""A key ring wraps and unwraps data keys, reports its own faults, and shows no key."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from support.key_rings import aes_file, key_ring, ring_file, rsa_files
from tiered_storage.errors import EncryptionKeyError
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing, WrapAlgorithm

SEGMENT = "orders-0:AAAAAAAAAAAAAAAAAAAAAA"
DATA_KEY = bytes(range(32))


@pytest.mark.parametrize("active", ["first", "third"])
def test_a_wrapped_key_comes_back(tmp_path: Path, active: str) -> None:
    ring = key_ring(tmp_path, active)
    wrapped = ring.wrap(DATA_KEY, SEGMENT)
    assert wrapped.key_id == active
    assert DATA_KEY not in wrapped.wrapped
    assert replace(ring, active="second").unwrap(wrapped, SEGMENT) == DATA_KEY
    assert ring.wrap(DATA_KEY, SEGMENT).wrapped != wrapped.wrapped


def test_an_aes_key_may_be_written_in_base64(tmp_path: Path) -> None:
    (tmp_path / "text.key").write_text("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
    ring = KeyRing.load(ring_file(tmp_path, {"text": {"key.file": "text.key"}}), "text")
    assert ring.keys["text"].material == bytes(range(32))
    assert ring.unwrap(ring.wrap(DATA_KEY, SEGMENT), SEGMENT) == DATA_KEY


def test_a_public_key_can_encrypt_only(tmp_path: Path) -> None:
    rsa_files(tmp_path, "first")
    public = KeyRing.load(ring_file(tmp_path, {"first": {"public.key.file": "first.public.pem"}}), "first")
    wrapped = public.wrap(DATA_KEY, SEGMENT)
    with pytest.raises(EncryptionKeyError, match="public half"):
        public.unwrap(wrapped, SEGMENT)
    assert key_ring(tmp_path).unwrap(wrapped, SEGMENT) == DATA_KEY


def test_a_lost_key_is_named_with_its_segment(tmp_path: Path) -> None:
    ring = key_ring(tmp_path, "second")
    wrapped = ring.wrap(DATA_KEY, SEGMENT)
    (tmp_path / "second.pem").unlink()
    without = KeyRing.load(tmp_path / "key-ring.yaml", "first")
    with pytest.raises(EncryptionKeyError, match=r"orders-0:A.*key second: .*second\.pem"):
        without.unwrap(wrapped, SEGMENT)
    assert without.unwrap(without.wrap(DATA_KEY, SEGMENT), SEGMENT) == DATA_KEY
    none = KeyRing.load(ring_file(tmp_path, {"first": {"private.key.file": "first.pem"}}), "first")
    with pytest.raises(EncryptionKeyError, match=r"orders-0:A.*second"):
        none.unwrap(wrapped, SEGMENT)


@pytest.mark.parametrize("active", ["first", "third"])
def test_another_key_under_the_same_id_is_distinguished_from_damage(tmp_path: Path, active: str) -> None:
    wrapped = key_ring(tmp_path, active).wrap(DATA_KEY, SEGMENT)
    rsa_files(tmp_path, "first", other="x")
    aes_file(tmp_path, "third")
    ring = KeyRing.load(tmp_path / "key-ring.yaml", active)
    with pytest.raises(EncryptionKeyError, match="another key"):
        ring.unwrap(wrapped, SEGMENT)
    changed = {"first": replace(ring.keys["third"], id="first"), "third": replace(ring.keys["first"], id="third")}
    with pytest.raises(EncryptionKeyError, match="another key"):
        replace(ring, keys=changed).unwrap(wrapped, SEGMENT)


def test_a_key_of_another_segment_does_not_unwrap_by_aes(tmp_path: Path) -> None:
    ring = key_ring(tmp_path, "third")
    with pytest.raises(EncryptionKeyError):
        ring.unwrap(ring.wrap(DATA_KEY, SEGMENT), "orders-1:AAAAAAAAAAAAAAAAAAAAAA")


@pytest.mark.parametrize("wrapped", [b"", b"x", bytes(12), bytes(256), bytes(300)])
@pytest.mark.parametrize("algorithm", [WrapAlgorithm.RSA_OAEP, WrapAlgorithm.AES_GCM])
def test_any_bytes_are_no_wrapped_key(tmp_path: Path, wrapped: bytes, algorithm: WrapAlgorithm) -> None:
    active = "first" if algorithm is WrapAlgorithm.RSA_OAEP else "third"
    ring = key_ring(tmp_path, active)
    with pytest.raises(EncryptionKeyError):
        ring.unwrap(replace(ring.wrap(DATA_KEY, SEGMENT), wrapped=wrapped), SEGMENT)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "keys:"),
        ("keys: [first]", "keys:"),
        ("a: b: c", "YAML"),
        ("keys: {? [a, b] : {key.file: x}}", "YAML"),
        ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n", "keys:|YAML"),
        ("keys:\n  first: {key.file: a}\n  first: {key.file: b}\n", "line 3 repeats a name"),
        ("keys:\n  first: {key.file: a, key.file: b}\n", "line 2 repeats a name"),
    ],
)
def test_a_ring_that_cannot_be_used_is_a_problem_only_of_who_needs_it(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "ring.yaml"
    path.write_text(content)
    ring = KeyRing.load(path, "first")
    with pytest.raises(EncryptionKeyError, match=why) as raised:
        ring.wrap(DATA_KEY, SEGMENT)
    assert "c2VjcmV0" not in str(raised.value)


@pytest.mark.parametrize(
    ("key", "content", "why"),
    [
        ({"key.file": "x"}, b"short", "32 bytes"),
        ({"key.file": "x"}, bytes(100_000), "more than"),
        ({"private.key.file": "x"}, b"no pem", "private key"),
        ({"public.key.file": "x"}, b"no pem", "public key"),
        ({"private.key.file": "missing"}, b"", "cannot be read"),
        ({"private.key.file": "."}, b"", "cannot be read"),
        ({"private.key.file": "a\0b"}, b"", "cannot be read"),
        ({"key": "x"}, b"", "mapping"),
        ({}, b"", "names no key"),
        ({"key.file": "x", "private.key.file": "x"}, bytes(32), "several keys"),
        ({"key.file": "x", "aws.kms.key.id": "x"}, bytes(32), "several keys"),
    ],
)
def test_a_key_that_cannot_be_used_says_why(tmp_path: Path, key: dict[str, str], content: bytes, why: str) -> None:
    (tmp_path / "x").write_bytes(content)
    aes_file(tmp_path, "good")
    ring = KeyRing.load(ring_file(tmp_path, {"bad": key, "good": {"key.file": "good.key"}}), "bad")
    with pytest.raises(EncryptionKeyError, match=why):
        ring.wrap(DATA_KEY, SEGMENT)
    assert replace(ring, active="good").wrap(DATA_KEY, SEGMENT).key_id == "good"


@pytest.mark.parametrize("path", ["missing.yaml", "."])
def test_a_ring_that_is_not_there_says_so(tmp_path: Path, path: str) -> None:
    with pytest.raises(EncryptionKeyError, match="cannot be read"):
        KeyRing.load(tmp_path / path, "first").wrap(DATA_KEY, SEGMENT)


def test_without_settings_the_error_names_them() -> None:
    with pytest.raises(EncryptionKeyError, match=r"rsm\.config\.encryption\.key\.pair\.id"):
        KeyRing.load(None, None).wrap(DATA_KEY, SEGMENT)
    with pytest.raises(EncryptionKeyError, match=r"rsm\.config\.encryption\.key\.ring\.file"):
        KeyRing.load(None, "first").wrap(DATA_KEY, SEGMENT)


def test_a_ring_travels_as_text_with_its_problems(tmp_path: Path) -> None:
    ring = key_ring(tmp_path, "first")
    (tmp_path / "second.pem").unlink()
    wrapped = ring.wrap(DATA_KEY, SEGMENT)
    text = KeyRing.load(tmp_path / "key-ring.yaml", "first").to_text()
    for name in ("first.pem", "third.key", "key-ring.yaml"):
        (tmp_path / name).unlink()
    there = KeyRing.parse(text)
    assert there.active == "first"
    assert there.unwrap(wrapped, SEGMENT) == DATA_KEY
    with pytest.raises(EncryptionKeyError, match=r"second\.pem"):
        replace(there, active="second").wrap(DATA_KEY, SEGMENT)
    assert pickle.loads(pickle.dumps(there)) == there  # noqa: S301 -- ours


def test_no_key_shows(tmp_path: Path) -> None:
    ring = key_ring(tmp_path, "third")
    wrapped = ring.wrap(DATA_KEY, SEGMENT)
    for shown in (repr(ring), str(ring), repr(ring.keys["first"]), repr(wrapped)):
        assert "PRIVATE KEY" not in shown
        assert repr(ring.keys["third"].material) not in shown
        assert "material" not in shown
