"""Where those come in who want bytes or records: one by one, since to judge a login takes time of the event loop."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from fastapi import Request

from tiered_storage_airflow.read_service.fair_queue import FairQueue, ShortCalls
from tiered_storage_airflow.read_service.problem import busy

MOST_KNOWN = 10_000
MOST_STRANGERS = 1000
SECONDS_BETWEEN = 0.05


class Admission:
    """Whose credentials were good before does not wait behind those that nobody knows yet. For one event loop."""

    def __init__(self, short: ShortCalls) -> None:
        """Let them in with pauses while there are `short` calls."""
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._friends = FairQueue(1, short, SECONDS_BETWEEN)
        self._strangers = FairQueue(1, short, SECONDS_BETWEEN)

    async def wait(self, request: Request) -> None:
        """Return when it is the turn of `request`. Raises ProblemError (429) where too many strangers wait already."""
        credentials = _credentials(request)
        if credentials is None:
            return  # refused by whoever judges logins, at no cost
        if credentials in self._known:
            self._known.move_to_end(credentials)
            await self._friends.take()
            return
        if self._strangers.waiting >= MOST_STRANGERS:
            raise busy("too many requests wait already")
        await self._strangers.take()

    def know(self, request: Request) -> None:
        """Remember that the credentials of `request` were good; that is no login, they are judged each time."""
        credentials = _credentials(request)
        if credentials is not None:
            self._known[credentials] = None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)


def _credentials(request: Request) -> bytes | None:
    given = [request.headers.get("authorization", ""), request.cookies.get(COOKIE_NAME_JWT_TOKEN, "")]
    return hashlib.sha256("\n".join(given).encode()).digest() if any(given) else None
