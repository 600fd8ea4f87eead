from __future__ import annotations

import pytest

from tiered_storage.gateway.connections.client_login import user_of


@pytest.mark.parametrize(
    ("mechanism", "message", "user"),
    [
        ("PLAIN", b"\0anna\0secret", "anna"),
        ("PLAIN", b"other\0anna\0secret", "anna"),
        ("PLAIN", b"garbage", ""),
        ("SCRAM-SHA-512", b"n,,n=anna,r=nonce", "anna"),
        ("SCRAM-SHA-256", b"c=biws,r=nonce,p=proof", ""),
        ("OAUTHBEARER", b"n,,\1auth=Bearer token\1\1", ""),
    ],
)
def test_the_user_is_the_one_that_the_login_names(mechanism: str, message: bytes, user: str) -> None:
    assert user_of(mechanism, message) == user
