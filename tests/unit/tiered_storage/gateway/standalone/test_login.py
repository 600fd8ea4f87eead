from __future__ import annotations

from pathlib import Path

import pytest
from scramp import ScramClient

from tiered_storage.errors import ConfigurationError
from tiered_storage.gateway.standalone.login import Login, LoginRefusedError
from tiered_storage.gateway.standalone.users import Users, load_users


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.yaml"
    path.write_text("alice: secret\n")
    path.chmod(0o600)
    return path


def scram(login: Login, mechanism: str, user: str, password: str) -> None:
    assert login.choose(mechanism)
    client = ScramClient([mechanism], user, password)
    client.set_server_first(login.step(client.get_client_first().encode()).decode())
    client.set_server_final(login.step(client.get_client_final().encode()).decode())


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in(file: Path, mechanism: str) -> None:
    login = Login(Users(file), with_tls=False)

    scram(login, mechanism, "alice", "secret")

    assert login.user == "alice"


@pytest.mark.parametrize(("user", "password"), [("alice", "guess"), ("bob", "secret"), ("alice", "")])
def test_a_wrong_name_or_password_is_refused_at_the_end(file: Path, user: str, password: str) -> None:
    login = Login(Users(file), with_tls=False)

    with pytest.raises(LoginRefusedError):
        scram(login, "SCRAM-SHA-256", user, password or "x")
    assert login.user is None


def test_a_password_is_taken_over_tls_only(file: Path) -> None:
    assert not Login(Users(file), with_tls=False).choose("PLAIN")
    login = Login(Users(file), with_tls=True)
    assert login.choose("PLAIN")

    assert login.step(b"\0alice\0secret") == b""
    assert login.user == "alice"


@pytest.mark.parametrize(
    "sent", [b"", b"alice\0secret", b"\0alice\0guess", b"bob\0alice\0secret", b"\xff\0a\0b", b"\0\0"]
)
def test_what_is_no_login_by_password_is_refused(file: Path, sent: bytes) -> None:
    login = Login(Users(file), with_tls=True)
    login.choose("PLAIN")

    with pytest.raises(LoginRefusedError):
        login.step(sent)
    assert login.user is None


@pytest.mark.parametrize(
    "sent", [b"", b"n,,", b"n,,n=,r=", b"p=tls-unique,,n=alice,r=x", b"n,,n=alice", b"\xff", b"a" * 5000]
)
def test_what_is_no_scram_is_refused(file: Path, sent: bytes) -> None:
    login = Login(Users(file), with_tls=False)
    login.choose("SCRAM-SHA-256")

    with pytest.raises(LoginRefusedError):
        login.step(sent)
        login.step(sent)
    assert login.user is None


def test_names_without_a_user_do_not_show(file: Path) -> None:
    users = Users(file)

    assert users.keys("SCRAM-SHA-512", "bob").salt == users.keys("SCRAM-SHA-512", "bob").salt
    assert users.keys("SCRAM-SHA-512", "alice") == users.keys("SCRAM-SHA-512", "alice")
    assert len(users.keys("SCRAM-SHA-512", "bob").stored_key) == 64


def test_nobody_logs_in_while_the_file_is_invalid(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = Users(file)
    file.write_text("- nothing\n")
    assert not users.is_password("alice", "secret")
    assert "nobody can log in" in caplog.text

    file.write_text("alice: changed\nbob: b\n")
    assert users.is_password("alice", "changed")
    assert users.is_password("bob", "b")


@pytest.mark.parametrize("content", ["", "alice:\n", "alice: [a]\n", "'a b': c\n", "alice: secret: x\n", "\0"])
def test_an_invalid_file_is_refused_without_its_content(file: Path, content: str) -> None:
    file.write_text(content)

    with pytest.raises(ConfigurationError, match="name: password") as refused:
        load_users(file)
    assert "secret" not in str(refused.value)


def test_a_file_that_others_can_read_is_refused(file: Path) -> None:
    file.chmod(0o640)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        load_users(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gateway\.users\.file"):
        load_users(tmp_path / "nothing")
