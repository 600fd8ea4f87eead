"""The generated secrets: private, kept, and in the forms that Airflow wants."""

from __future__ import annotations

import json
import stat
import traceback
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tiered_storage.settings.read_rights import Right, load_read_rights
from tiered_storage_airflow.embedded.credentials import (
    begin_rights,
    load_or_generate,
    passwords_path,
    read,
    rights_path,
    secrets_path,
)
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError


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
    with pytest.raises(EmbeddedAirflowError, match=r"secrets\.json.*jwt_secret") as error:
        load_or_generate(tmp_path)
    assert "s3cr3t" not in "".join(traceback.format_exception(error.value))


def test_the_admin_begins_with_the_right_to_see_all_topics_and_to_lift_a_stop(tmp_path: Path) -> None:
    begin_rights(tmp_path)

    rights = load_read_rights(rights_path(tmp_path))
    assert rights.allows("admin", ["ADMIN"], Right.DESCRIBE, "orders")
    assert not rights.allows("admin", ["ADMIN"], Right.READ, "orders")
    assert not rights.allows("somebody", ["USER"], Right.DESCRIBE, "orders")
    assert rights.admins == {"admin"}
    assert stat.S_IMODE(rights_path(tmp_path).stat().st_mode) == 0o600


def test_the_lines_that_it_proposes_give_what_they_say(tmp_path: Path) -> None:
    begin_rights(tmp_path)
    path = rights_path(tmp_path)
    written = path.read_text()
    begin, proposed = written.split("by a DAG:\n")
    path.write_text(begin + "\n" + proposed.replace("# ", ""))
    assert load_read_rights(path).allows("admin", [], Right.READ, "orders")


def test_a_file_of_rights_that_is_there_stays_as_its_owner_left_it(tmp_path: Path) -> None:
    rights_path(tmp_path).write_text("admins: [ada]\n")
    begin_rights(tmp_path)
    assert rights_path(tmp_path).read_text() == "admins: [ada]\n"
