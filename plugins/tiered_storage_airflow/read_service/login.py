"""Identify the user of a request: Airflow's auth manager checks its token or cookie.

Each auth manager has its own user class. All have a name. For roles, the simple auth manager has `role`, Flask
AppBuilder's (FAB) `roles`, objects with a name, and Amazon's `groups`. With one that has none of these, such as
Keycloak's, only users can have rights, not roles.

Airflow has no public module for it. Its documentation of plugins has their applications ask core_api.security, as this
module and web_app do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user, resolve_user_from_token
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials

from tiered_storage_airflow.read_service.access import access_of
from tiered_storage_airflow.read_service.problem import ProblemError

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True, slots=True)
class Visitor:
    """A logged-in user, and the user's token (None: Airflow required none)."""

    name: str
    roles: frozenset[str]
    token: str | None = field(default=None, repr=False)


async def visitor_of(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)]
) -> Visitor:
    """Return the user. Raises ProblemError (401) without a login, or if the token is expired or not Airflow's."""
    visitor = await _judged(get_user(request, None, bearer), _token(request, bearer))
    access_of(request).user = visitor.name
    return visitor


async def checked_again(visitor: Visitor) -> Visitor:
    """Check the login of `visitor` again; return it with the present roles.

    Raises ProblemError (401) if the token has expired or was revoked since, or the user was removed or deactivated.
    """
    if visitor.token is None:
        return visitor
    return await _judged(resolve_user_from_token(visitor.token), visitor.token)


async def _judged(judging: Awaitable[Any], token: str | None) -> Visitor:
    try:
        user = await judging
    except HTTPException as error:
        if error.status_code not in {401, 403}:
            raise
        raise _not_logged_in(str(error.detail)) from error
    # FAB's users can be deactivated; its tokens stay valid.
    if not getattr(user, "is_active", True):
        raise _not_logged_in("this user was deactivated")
    return Visitor(str(user.get_name()), frozenset(_roles(user)), token)


def _not_logged_in(why: str) -> ProblemError:
    detail = f"{why}: log in to Airflow, or send a token of POST /auth/token as Authorization: Bearer …"
    return ProblemError(401, "Unauthorized", detail, headers=_CHALLENGE)


def _token(request: Request, bearer: HTTPAuthorizationCredentials | None) -> str | None:
    """Return the token that Airflow's get_user checks: a bearer's comes before the cookie's."""
    if bearer is not None and bearer.scheme.lower() == "bearer":
        return bearer.credentials
    return request.cookies.get(COOKIE_NAME_JWT_TOKEN)


VisitorDep = Annotated[Visitor, Depends(visitor_of)]


def _roles(user: Any) -> Iterable[str]:
    role = getattr(user, "role", None)
    # To the simple auth manager, admin and ADMIN are the same role.
    given: list[object] = [role.upper() if isinstance(role, str) else None, *(getattr(user, "roles", None) or ())]
    given += getattr(user, "groups", None) or ()
    for role in given:
        name = role if isinstance(role, str) else getattr(role, "name", None)
        if isinstance(name, str):
            yield name
