"""The read service: offsets, segments, bytes and records, for users with rights on a topic (read_rights.py).

Every route, even the documentation, asks Airflow's auth manager who the user is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI, Request

from tiered_storage_airflow.read_service.access import AccessLog
from tiered_storage_airflow.read_service.login import visitor_of
from tiered_storage_airflow.read_service.routes import data as data_routes
from tiered_storage_airflow.read_service.routes import metadata as metadata_routes
from tiered_storage_airflow.read_service.routes import offsets as offset_routes
from tiered_storage_airflow.read_service.routes import service as service_routes
from tiered_storage_airflow.read_service.routes.exception_handlers import PROBLEMS, add_exception_handlers
from tiered_storage_airflow.read_service.service import ReadService


def read_api(service: ReadService) -> FastAPI:
    """Return the application that reads through `service`, which belongs to the caller."""
    app = FastAPI(
        title="Remote Log",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.read_service = service
    add_exception_handlers(app, service)
    app.add_middleware(AccessLog, metrics=service.metrics)
    short, much = [Depends(visitor_of), Depends(_first)], [Depends(_in_turn), Depends(visitor_of), Depends(_known)]
    for router in (metadata_routes.router, offset_routes.router, service_routes.router):
        app.include_router(router, dependencies=short, responses=PROBLEMS)
    app.include_router(data_routes.router, dependencies=much, responses=PROBLEMS)
    return app


async def _first(request: Request) -> AsyncIterator[None]:
    """Give this request priority over those that send much."""
    with _service_of(request).short_calls.one():
        yield


async def _in_turn(request: Request) -> None:
    await _service_of(request).admission.wait(request)


async def _known(request: Request) -> None:
    _service_of(request).admission.know(request)


def _service_of(request: Request) -> ReadService:
    service: ReadService = request.app.state.read_service
    return service
