"""Which fields of a dataclass are secrets, and that only those change sides."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiered_storage.redaction import with_secrets_of
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions


@dataclass(frozen=True, slots=True)
class Login:
    user: str = "nobody"
    password: str = field(default="", repr=False)


def test_secret_fields_are_those_that_are_not_shown() -> None:
    given = Login("ada", "hush")

    assert with_secrets_of(given, Login()) == Login("ada", "")
    assert with_secrets_of(Login("grace"), given) == Login("grace", "hush")
    assert "hush" not in repr(given)


def test_the_options_of_a_store_keep_their_keys_apart() -> None:
    keys = ObjectStoreOptions(access_key_id="hush", secret_access_key="hush", session_token="hush")
    rest = ObjectStoreOptions(role_arguments={"a": "hush"}, properties={"b": "hush"}, configs={"c": "hush"})

    for given in (keys, rest):
        assert given.without_secrets() == ObjectStoreOptions()
        assert ObjectStoreOptions(region="here").with_secrets_of(given).without_secrets().region == "here"
        assert ObjectStoreOptions().with_secrets_of(given) == given
