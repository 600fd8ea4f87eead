"""The routes of the service itself: health, metrics, and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from tiered_storage_airflow.read_service.access import METRICS_MEDIA_TYPE
from tiered_storage_airflow.read_service.routes.health import health as look
from tiered_storage_airflow.read_service.routes.schemas import HealthAnswer
from tiered_storage_airflow.read_service.service import OpenServiceDep
from tiered_storage_airflow.rendering import render


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
    found = await look(service)
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
