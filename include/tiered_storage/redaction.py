"""Keep secrets out of messages, logs, reports and arguments of programs: what counts as one, and what is shown instead.

Text and URLs are masked, a text with more suspicion, since it may be an invalid URL. A dataclass declares a secret as a
field with `repr=False`: `with_secrets_of` separates those fields from what anybody may read.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import Secret

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

_CARRIES_CREDENTIALS = "it contains credentials: give them as AWS_* in the environment or in an Airflow connection"
_USER_AND_PASSWORD = re.compile(r"(?<=://)([^/:@]*):.*@", re.DOTALL)
_PASSWORD = re.compile(r"(?<=://)[^/:@]*:.+@", re.DOTALL)
_COLON_TO_THE_LAST_AT = re.compile(r":.*@", re.DOTALL)
_SECRET_PARAMETER = re.compile(r"([?&][^=&]*(?:password|passwd|pwd|secret|token)[^=&]*)=[^&]*", re.IGNORECASE)


def hide_secrets(text: str) -> str:
    """Return `text`, which may be an invalid URL, with everything masked that could be a password or secret."""
    return _SECRET_PARAMETER.sub(r"\1=***", _COLON_TO_THE_LAST_AT.sub(":***@", text))


def has_password(url: str) -> bool:
    """Return whether `url` contains a password, also as a parameter."""
    return bool(_PASSWORD.search(url) or _SECRET_PARAMETER.search(url))


class SecretUrl(Secret[str]):
    """A URL whose password only `get_secret_value()` returns; `str`, `repr` and logs never show it."""

    def _display(self) -> str:
        covered = _USER_AND_PASSWORD.sub(r"\1:***@", self._secret_value)
        return _SECRET_PARAMETER.sub(r"\1=***", covered)

    def without_secrets(self) -> str:
        """Return the URL without its password and secret parameters: it still names the same store."""
        plain = _USER_AND_PASSWORD.sub(r"\1@", self._secret_value)
        address, _, query = plain.partition("?")
        kept = [part for part in query.split("&") if part and not _SECRET_PARAMETER.match(f"?{part}")]
        return f"{address}?{'&'.join(kept)}" if kept else address


def refuse_credentials(url: str) -> None:
    """Raise ValueError, without showing the URL, if it contains credentials before its path."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(_CARRIES_CREDENTIALS)


def refuse_credentials_in_endpoint(endpoint: str) -> None:
    """Raise ValueError, without showing the endpoint, if it contains credentials: a key may hold a slash."""
    if "@" in endpoint:
        raise ValueError(_CARRIES_CREDENTIALS)


def with_secrets_of(options: Options, other: DataclassInstance) -> Options:
    """Return `options` with the secret fields of `other`, of the same class: those that its repr does not show."""
    return replace(options, **{each.name: getattr(other, each.name) for each in fields(other) if not each.repr})
