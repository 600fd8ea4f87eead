"""Makes every error of a request an answer in the one form of problem.py."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage_airflow.read_service.problem import ProblemError, plain, problem_of

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
