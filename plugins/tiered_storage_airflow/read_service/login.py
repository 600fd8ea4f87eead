"""Identify the user of a request: Airflow's auth manager checks its token or cookie.

Auth managers have their own user classes. All give a name; for roles the simple one gives `role`, Flask AppBuilder's
(FAB) `roles`, objects with a name, and Amazon's `groups`. If an auth manager gives none of these, such as Keycloak's,
rights can only be given to users.
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
    """A logged-in user, and the token that proves it (None: Airflow required none)."""

    name: str
    roles: frozenset[str]
    token: str | None = field(default=None, repr=False)


async def visitor_of(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)]
) -> Visitor:
    """Return the user. Raises ProblemError (401) if there is no login, or the token is expired or not Airflow's."""
    visitor = await _judged(get_user(request, None, bearer), _token(request, bearer))
    access_of(request).user = visitor.name
    return visitor


async def judged_again(visitor: Visitor) -> Visitor:
    """Return `visitor` with the present roles.

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
    # The simple auth manager takes admin and ADMIN for the same role.
    given: list[object] = [role.upper() if isinstance(role, str) else None, *(getattr(user, "roles", None) or ())]
    given += getattr(user, "groups", None) or ()
    for role in given:
        name = role if isinstance(role, str) else getattr(role, "name", None)
        if isinstance(name, str):
            yield name
