"""Who asks: what Airflow's auth manager says of the token or the cookie of a request.

Auth managers have users of their own. All give a name; of roles the simple one gives `role`, Flask AppBuilder's (FAB)
`roles`, objects with a name, and Amazon's `groups`. Where an auth manager gives none of these, as Keycloak's, rights
can only be given to users.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials

from tiered_storage_airflow.read_service.access import access_of
from tiered_storage_airflow.read_service.problem import ProblemError

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is logged in."""

    name: str
    roles: frozenset[str]


async def visitor_of(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)]
) -> Visitor:
    """Return who asks. Raises ProblemError (401) where nobody is logged in, or the token is expired or none of ours."""
    try:
        user = await get_user(request, None, bearer)
    except HTTPException as error:
        if error.status_code not in {401, 403}:
            raise
        detail = f"{error.detail}: log in to Airflow, or send a token of POST /auth/token as Authorization: Bearer …"
        raise ProblemError(401, "Unauthorized", detail, headers=_CHALLENGE) from error
    visitor = Visitor(str(user.get_name()), frozenset(_roles(user)))
    access_of(request).user = visitor.name
    return visitor


VisitorDep = Annotated[Visitor, Depends(visitor_of)]


def _roles(user: Any) -> Iterable[str]:
    given: list[object] = [getattr(user, "role", None), *(getattr(user, "roles", None) or ())]
    given += getattr(user, "groups", None) or ()
    for role in given:
        name = role if isinstance(role, str) else getattr(role, "name", None)
        if isinstance(name, str):
            yield name
