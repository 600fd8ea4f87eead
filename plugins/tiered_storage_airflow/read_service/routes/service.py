"""The routes of the service itself: health, metrics, and documentation. No message names a topic or a path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage_airflow.read_service.access import METRICS_MEDIA_TYPE
from tiered_storage_airflow.read_service.problem import ProblemError, problem_of
from tiered_storage_airflow.read_service.routes.schemas import HealthAnswer
from tiered_storage_airflow.read_service.service import HealthCheck, OpenService, OpenServiceDep
from tiered_storage_airflow.rendering import render

HEALTH_SECONDS = 5.0
"""How long a query of the metadata or the store may take."""


def documentation_page(document: Mapping[str, Any]) -> str:
    """Return the OpenAPI `document` as a page."""
    base = document["servers"][0]["url"].rstrip("/")
    return render("read_service.html", base=base, paths=document["paths"], limits=_limits)


def _limits(parameter: Mapping[str, Any]) -> str:
    """Return the allowed values of `parameter`, in words."""
    schema = parameter.get("schema", {})
    limits = [" or ".join(map(str, schema["enum"]))] if "enum" in schema else []
    limits += [f"from {schema['minimum']:,}"] if "minimum" in schema else []
    limits += [f"to {schema['maximum']:,}"] if "maximum" in schema else []
    limits += [f"default {schema['default']}"] if "default" in schema else []
    return ", ".join(limits)


PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
}

router = APIRouter(tags=["service"])


@router.get("/health", responses={503: {"description": "The service cannot work.", "model": HealthAnswer}})
async def health(service: OpenServiceDep, response: Response) -> HealthAnswer:
    """Return whether the service can work, and what is wrong."""
    found = await _health(service)
    response.status_code = 200 if found.ok else 503
    return found


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def service_metrics(service: OpenServiceDep) -> Response:
    """Return the metrics of this process, in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=METRICS_MEDIA_TYPE)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """Return the OpenAPI document."""
    return JSONResponse(_openapi(request))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Return the OpenAPI document as a page."""
    return HTMLResponse(documentation_page(_openapi(request)), headers=PAGE_HEADERS)


def _openapi(request: Request) -> dict[str, Any]:
    document: dict[str, Any] = {**request.app.openapi()}
    document["servers"] = [{"url": request.scope.get("root_path", "") or "/"}]
    return document


async def _health(service: OpenService) -> HealthAnswer:
    """Return the state of metadata and store, at most a moment old, and the present state of the rest."""
    await service.rights_now()
    has_rights = service.rights.problem is None
    places = service.places
    has_room = places.streams < places.most_streams
    checks = [
        *await service.seen.health.get(lambda: _look(service)),
        HealthCheck(
            "rights", has_rights, "read" if has_rights else "nobody has any right; the service's log has the reason"
        ),
        HealthCheck(
            "room",
            has_room,
            f"{places.streams} of {places.most_streams} places for responses are taken",
        ),
    ]
    return HealthAnswer(all(check.ok for check in checks), checks)


async def _look(service: OpenService) -> list[HealthCheck]:
    """Query metadata and store, each for at most HEALTH_SECONDS."""
    return list(
        await asyncio.gather(
            _check(service, "metadata", service.log.context.store.identity.bound_store_uuid),
            _check(service, "store", lambda: _ask_store(service.log)),
        )
    )


async def _check(service: OpenService, name: str, ask: Callable[[], object]) -> HealthCheck:
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await service.threads.looking[name].run(ask)
    except TimeoutError:
        return HealthCheck(name, False, f"no response within {HEALTH_SECONDS:g} s")
    except ProblemError:
        return HealthCheck(name, False, "an earlier query still has no response")
    except TieredStorageError as error:
        return HealthCheck(name, False, f"{problem_of(error).title}; the service's log has the reason")
    return HealthCheck(name, True, "answers")


def _ask_store(log: RemoteLogManager) -> None:
    """Ask the store for its first object."""
    if (storage := as_listable(log.context.storage)) is not None:
        next(iter(storage.list_objects()), None)
