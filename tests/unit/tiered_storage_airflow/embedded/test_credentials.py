"""The generated secrets: private, kept, and in the forms that Airflow wants."""

from __future__ import annotations

import json
import stat
import traceback
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tiered_storage_airflow.embedded.credentials import load_or_generate, passwords_path, read, secrets_path
from tiered_storage_airflow.embedded.errors import EmbeddedAirflowError


def test_both_files_are_for_their_owner_only(tmp_path: Path) -> None:
    load_or_generate(tmp_path)
    for path in (secrets_path(tmp_path), passwords_path(tmp_path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == sorted([secrets_path(tmp_path), passwords_path(tmp_path)])


def test_a_file_that_became_readable_for_all_is_closed_again(tmp_path: Path) -> None:
    load_or_generate(tmp_path)
    passwords_path(tmp_path).chmod(0o644)
    load_or_generate(tmp_path)
    assert stat.S_IMODE(passwords_path(tmp_path).stat().st_mode) == 0o600


def test_the_second_start_finds_what_the_first_one_generated(tmp_path: Path) -> None:
    assert load_or_generate(tmp_path) == load_or_generate(tmp_path) == read(tmp_path)


def test_two_installations_share_nothing(tmp_path: Path) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    one, two = (load_or_generate(home) for home in homes)
    assert one.jwt_secret != two.jwt_secret
    assert one.fernet_key != two.fernet_key
    assert one.admin_password != two.admin_password


def test_the_secrets_have_the_forms_that_airflow_wants(tmp_path: Path) -> None:
    credentials = load_or_generate(tmp_path)
    Fernet(credentials.fernet_key)
    assert len(credentials.jwt_secret) >= 64
    assert json.loads(passwords_path(tmp_path).read_text()) == {"admin": credentials.admin_password}


def test_randomness_is_passed_in(tmp_path: Path) -> None:
    assert load_or_generate(tmp_path, random_bytes=bytes).admin_password == "A" * 24


def test_a_password_that_its_owner_chose_is_kept(tmp_path: Path) -> None:
    passwords_path(tmp_path).write_text('{"admin": "my own"}')
    assert load_or_generate(tmp_path).admin_password == "my own"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"jwt_secret": "s3cr3t\xff"}'])
def test_a_damaged_file_is_named_and_nothing_of_it_is_shown(tmp_path: Path, content: bytes) -> None:
    load_or_generate(tmp_path)
    secrets_path(tmp_path).write_bytes(content)
    with pytest.raises(EmbeddedAirflowError, match=r"secrets\.json: no jwt_secret can be read") as error:
        load_or_generate(tmp_path)
    assert "s3cr3t" not in "".join(traceback.format_exception(error.value))
