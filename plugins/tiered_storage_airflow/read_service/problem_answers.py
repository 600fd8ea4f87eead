"""Makes every error of a request an answer in the one form of problem.py."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage_airflow.read_service.problem import MEDIA_TYPE, ProblemError, plain, problem_of

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
    },
}
PROBLEM = {MEDIA_TYPE: {"schema": _SCHEMA}}
_MEANINGS = {
    401: "Nobody is logged in, or the token is expired or none of Airflow's.",
    403: "The topic may be seen, and its records not be read.",
    404: "There is no such thing, or not for who asks.",
    409: "Several lives of the topic have the name, or the segment's copy has not ended.",
    410: "It was deleted.",
    422: "A parameter cannot be meant.",
    429: "No room now: come again.",
    502: "The store or the metadata lost it, or it is damaged; or the service is set up wrongly.",
    503: "The store, the metadata or the local tier are out of reach for a while.",
    504: "The time for it was up.",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": PROBLEM} for status, meaning in _MEANINGS.items()
}
"""What every route may answer with, for its documentation."""

_MOST_CHARACTERS = 300
_log = logging.getLogger(__name__)


def answer_problems(app: FastAPI) -> None:
    """Answer all that is raised in `app`; what nobody foresaw is logged, and told of without a word of it."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(TieredStorageError, _of_the_library)
    app.add_exception_handler(RequestValidationError, _unfit)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _unforeseen)


async def _problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)  # noqa: S101 - what it is registered for
    return error.response()


async def _of_the_library(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TieredStorageError)  # noqa: S101 - as above
    problem = problem_of(error)
    if isinstance(error, ConfigurationError) or problem.status == 502:
        _log.error("the read service could not answer: %s", error)
    return problem.response()


async def _unfit(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as above
    told = [f"{' '.join(map(str, each['loc']))}: {each['msg']}"[:_MOST_CHARACTERS] for each in error.errors()[:10]]
    return plain(422, "; ".join(told)).response()


async def _of_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    return plain(error.status_code, str(error.detail), error.headers).response()


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s failed", request.method, request.url.path[:_MOST_CHARACTERS], exc_info=error)
    return plain(500, "something went wrong that nobody foresaw; the service's log has it").response()
