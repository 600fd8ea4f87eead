"""The read service: offsets, segments, bytes and records, for users with rights on a topic (read_rights.py).

Every route, even the documentation, asks Airflow's auth manager who the user is: the guard is the application's, so no
router can lack it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute

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
        # In this order: the check of a login blocks the event loop for a moment, so requests for much data wait first.
        dependencies=[Depends(_in_turn), Depends(visitor_of), Depends(_admitted)],
        responses=PROBLEMS,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.read_service = service
    add_exception_handlers(app, service)
    app.add_middleware(AccessLog, metrics=service.metrics)
    for router in (metadata_routes.router, offset_routes.router, service_routes.router, data_routes.router):
        app.include_router(router)
    return app


_SENDING_MUCH = frozenset(route.endpoint for route in data_routes.router.routes if isinstance(route, APIRoute))


async def _in_turn(request: Request) -> None:
    """Let a request for bytes or records wait its turn. Raises ProblemError (429) if too many wait."""
    if request.scope["endpoint"] in _SENDING_MUCH:
        await _service_of(request).admission.wait(request)


async def _admitted(request: Request) -> AsyncIterator[None]:
    """Remember the login of a request for bytes or records; any other request has priority over those until its end."""
    service = _service_of(request)
    if request.scope["endpoint"] in _SENDING_MUCH:
        service.admission.know(request)
        yield
        return
    with service.short_calls.one():
        yield


def _service_of(request: Request) -> ReadService:
    service: ReadService = request.app.state.read_service
    return service
