"""The routes that tell of the service itself: health, figures, and its documentation."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from tiered_storage_airflow.read_service import metrics as figures
from tiered_storage_airflow.read_service.documentation import documentation_page
from tiered_storage_airflow.read_service.health import health as look
from tiered_storage_airflow.read_service.schemas import HealthAnswer
from tiered_storage_airflow.read_service.service import OpenServiceDep

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
}

router = APIRouter(tags=["service"])


@router.get("/health", responses={503: {"description": "It cannot work.", "model": HealthAnswer}})
async def health(service: OpenServiceDep, response: Response) -> HealthAnswer:
    """Tell whether the service can work, and what is wrong."""
    found = await look(service)
    response.status_code = 200 if found.ok else 503
    return found


@router.get("/figures", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def service_figures(service: OpenServiceDep) -> Response:
    """Give what this process counts of itself, in Prometheus' text form."""
    return Response(service.figures.text(), media_type=figures.MEDIA_TYPE)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """Give the OpenAPI document."""
    return JSONResponse(_openapi(request))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Give the same as a page."""
    return HTMLResponse(documentation_page(_openapi(request)), headers=PAGE_HEADERS)


def _openapi(request: Request) -> dict[str, Any]:
    document: dict[str, Any] = {**request.app.openapi()}
    document["servers"] = [{"url": request.scope.get("root_path", "") or "/"}]
    return document
