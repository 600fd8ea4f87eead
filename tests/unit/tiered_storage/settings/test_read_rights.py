from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.read_rights import MOST_BYTES, ReadRights, Right, load_read_rights

TEXT = """\
roles:
  VIEWER:
    describe: [orders, "payments.*"]
    read: [orders]
  NO:
    read: ["*"]
users:
  alice:
    read: ["audit*2026"]
"""


def load(tmp_path: Path, text: str) -> ReadRights:
    path = tmp_path / "rights.yaml"
    path.write_text(text)
    return load_read_rights(path)


def test_admins_are_logins_and_see_no_topic_by_that(tmp_path: Path) -> None:
    rights = load(tmp_path, "admins: [alice, 7]\nroles:\n  bob:\n")

    assert rights.admins == {"alice", "7"}
    assert not rights.allows("alice", [], Right.DESCRIBE, "orders")
    assert load(tmp_path, TEXT).admins == load(tmp_path, "admins:").admins == frozenset()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("admins: alice", "line 1: admins "),
        ("admins: {alice: }", "line 1: admins "),
        ("admins:\n- alice\n- [bob]", "line 3: admins has "),
        ("admins: ['']", "line 1: admins has "),
        ("admin: [alice]", "line 1: the file has an entry"),
    ],
)
def test_admins_that_are_no_list_of_logins_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load(tmp_path, text)

    assert str(error.value).startswith(f"{tmp_path / 'rights.yaml'}, {problem}")


@pytest.mark.parametrize(
    ("user", "roles", "right", "topic", "expected"),
    [
        ("bob", ["VIEWER"], Right.DESCRIBE, "orders", True),
        ("bob", ["VIEWER"], Right.READ, "orders", True),
        ("bob", ["VIEWER"], Right.DESCRIBE, "payments.eu", True),
        ("bob", ["VIEWER"], Right.READ, "payments.eu", False),
        ("bob", ["VIEWER"], Right.DESCRIBE, "paymentsXeu", False),
        ("bob", ["VIEWER"], Right.DESCRIBE, "orders2", False),
        ("bob", ["VIEWER"], Right.DESCRIBE, "myorders", False),
        ("bob", ["viewer"], Right.DESCRIBE, "orders", False),
        ("VIEWER", [], Right.DESCRIBE, "orders", False),
        ("bob", ["alice"], Right.READ, "audit.2026", False),
        ("alice", [], Right.READ, "audit.2026", True),
        ("alice", [], Right.READ, "audit2026", True),
        ("alice", [], Right.READ, "audit.2026.old", False),
        ("alice", ["VIEWER"], Right.DESCRIBE, "orders", True),
        ("bob", ["NO"], Right.READ, "anything", True),
        ("bob", ["NO"], Right.READ, "orders\n", False),
        ("bob", [], Right.DESCRIBE, "orders", False),
    ],
)
def test_all_that_is_not_allowed_is_forbidden(
    tmp_path: Path, user: str, roles: list[str], right: Right, topic: str, expected: bool
) -> None:
    assert load(tmp_path, TEXT).allows(user, roles, right, topic) is expected


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "roles:\n", "roles: {}\nusers:\n", "roles: {A: {}}", "roles: {A: {read: []}}"]
)
def test_a_file_that_allows_nothing_is_a_file(tmp_path: Path, text: str) -> None:
    assert not load(tmp_path, text).allows("a", ["A"], Right.DESCRIBE, "orders")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("role: {}", "line 1: the file has an entry"),
        ("roles:\n  A: {write: [a]}", "line 2: an entry of roles has an entry"),
        ("roles:\n  A: {read: orders}", "line 2: an entry of roles: read "),
        ("roles:\n  A: {read: [a, [b]]}", "line 2: an entry of roles: read "),
        ("roles:\n  A: {read: ['a b']}", "line 2: "),
        ("roles:\n  A: {read: ['(a|b)']}", "line 2: an entry of roles: read "),
        ("roles:\n  A: {read: ['']}", "line 2: an entry of roles: read "),
        ("roles:\n  A: {read: [a]}\n  A: {read: [b]}", "line 3: roles has "),
        ("- roles", "lines of 'name: …'"),
        ("roles: [A]", "line 1: roles "),
        ("roles: {? [a] : {}}", "an entry without a name"),
        ("roles: {", "this is not YAML"),
        ("[" * 5000, "this is not YAML"),
        ('roles: {"\\UFFFFFFFF": {read: [a]}}', "this is not YAML"),
        ("#" * (MOST_BYTES + 1), "bytes of rights"),
    ],
)
def test_a_broken_file_is_refused_with_its_lines(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, text)
    assert expected in str(raised.value)
    assert "rights.yaml" in str(raised.value)


def test_everything_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, "roles:\n  A: {read: x}\nusers:\n  b: {write: [x]}\nothers: {}\n")
    assert len(str(raised.value).splitlines()) == 3


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: .*: No such file"):
        load_read_rights(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_read_rights(tmp_path / "binary.yaml")


@pytest.mark.timeout(60)
def test_a_pattern_of_many_stars_takes_no_time(tmp_path: Path) -> None:
    rights = load(tmp_path, "users: {alice: {read: ['*-*-*-*-*-x', 'a*b*c', '**']}}\n")
    assert rights.allows("alice", [], Right.READ, "-" * 249)
    rights = load(tmp_path, "users: {alice: {read: ['*-*-*-*-*-x']}}\n")
    assert not rights.allows("alice", [], Right.READ, "-" * 249)
    assert rights.allows("alice", [], Right.READ, "-" * 248 + "x")


@given(st.text("ab.*", min_size=1, max_size=8), st.text("ab.", min_size=1, max_size=8))
def test_a_star_matches_any_characters_and_all_others_match_themselves(pattern: str, topic: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rights = load(Path(folder), f"users: {{alice: {{read: ['{pattern}']}}}}\n")
    plain = ".*".join(map(re.escape, pattern.split("*")))
    assert rights.allows("alice", [], Right.READ, topic) == (re.fullmatch(plain, topic) is not None)


@given(st.text(max_size=80))
def test_any_text_parses_as_rights_or_raises_our_error(text: str) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(text)
        file.flush()
        try:
            rights = load_read_rights(Path(file.name))
        except ConfigurationError:
            return
    assert not rights.allows("nobody", [], Right.DESCRIBE, "orders")
