"""Turn every error of a request into a response, in the form of problem.py or as a page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiered_storage.errors import RemoteMetadataError, TieredStorageError
from tiered_storage_airflow.read_service.access import access_of, plain_text
from tiered_storage_airflow.read_service.problem import MEDIA_TYPE, ProblemError, plain, problem_of, too_late
from tiered_storage_airflow.read_service.service import ReadService

_SCHEMA = {
    "type": "object",
    "required": ["title", "status", "detail", "retriable"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "retriable": {"type": "boolean"},
        "log_start_offset": {"type": "integer"},
        "log_end_offset": {"type": "integer"},
        "leader_epoch": {"type": "integer"},
        "diverging_epoch": {"type": "integer"},
        "end_offset": {"type": "integer"},
    },
}
PROBLEM = {MEDIA_TYPE: {"schema": _SCHEMA}}
_MEANINGS = {
    401: "Nobody is logged in, or the token is expired or not Airflow's.",
    403: "You may see the topic, but not read its records.",
    404: "It does not exist, or you may not see it.",
    409: "The topic had several incarnations, the segment's copy is not finished, or the leader epoch is wrong.",
    410: "It was deleted.",
    422: "A parameter is invalid.",
    429: "The service is at its limit: try again.",
    502: "The data or the metadata are lost or damaged, or the service is misconfigured.",
    503: "The store, the metadata or the local tier cannot be reached now.",
    504: "There was no response in time.",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": PROBLEM} for status, meaning in _MEANINGS.items()
}
"""The error responses of every route, for its documentation."""

_MOST_CHARACTERS = 300
_log = logging.getLogger(__name__)


Render = Callable[[Request, ProblemError], Response]


def as_json(_: Request, problem: ProblemError) -> Response:
    """Return the problem as JSON."""
    return problem.response()


def add_exception_handlers(app: FastAPI, service: ReadService, render: Render = as_json) -> None:
    """Respond to every error in `app`, and to requests without a response within the time limit of `service`.

    An unexpected error is logged; the response shows nothing of it.
    """

    async def answer(request: Request, error: Exception) -> Response:
        return render(request, _problem(request, error))

    for kind in (ProblemError, TieredStorageError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
    app.add_middleware(_AnswersInTime, service=service, render=render)


class _AnswersInTime:
    """The ASGI layer that ends a request whose response has not begun in time, whatever it waits for."""

    def __init__(self, app: ASGIApp, service: ReadService, render: Render) -> None:
        self._app = app
        self._service = service
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seconds = self._service.seconds_to_answer
        limit = asyncio.timeout(seconds)

        async def begun(message: Message) -> None:
            if message["type"] == "http.response.start":
                limit.reschedule(None)
            await send(message)

        try:
            async with limit:
                await self._app(scope, receive, begun)
        except TimeoutError:
            if not limit.expired():
                raise
            problem = too_late(seconds)
            _log.error("%s %s: %s", scope["method"], plain_text(scope["path"]), problem.detail)
            await self._render(Request(scope, receive), problem)(scope, receive, send)


def _problem(request: Request, error: Exception) -> ProblemError:
    match error:
        case ProblemError():
            return error
        case TieredStorageError():
            problem = problem_of(error)
            # Only a user with a right on the requested topic may see paths, hosts and other topics in messages. Nobody
            # may see messages of the metadata store, which can name any topic.
            is_shown = access_of(request).has_right and not isinstance(error, RemoteMetadataError)
            if problem.status == 502 or not is_shown:
                _log.error("the read service could not respond: %s", error)
            return (
                problem if is_shown else replace(problem, detail=f"{problem.title}: the service's log has the reason")
            )
        case RequestValidationError():
            found = [f"{' '.join(map(str, each['loc']))}: {each['msg']}"[:_MOST_CHARACTERS] for each in error.errors()]
            return plain(422, "; ".join(found[:10]))
        case HTTPException():
            return plain(error.status_code, str(error.detail), error.headers)
        case _:
            _log.error("%s %s failed", request.method, plain_text(request.url.path), exc_info=error)
            return plain(500, "an unexpected error; the service's log has the details")
