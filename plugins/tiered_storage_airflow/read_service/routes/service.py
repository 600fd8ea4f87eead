"""The routes that tell of the service itself: health, figures, and its documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from tiered_storage_airflow.read_service.access import METRICS_MEDIA_TYPE
from tiered_storage_airflow.read_service.routes.health import health as look
from tiered_storage_airflow.read_service.routes.schemas import HealthAnswer
from tiered_storage_airflow.read_service.service import OpenServiceDep

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Remote Log: the read service</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ color-scheme: light dark }} body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem;
padding: 0 1rem }} code {{ overflow-wrap: anywhere }} h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.05rem;
margin-top: 2rem }} table {{ border-collapse: collapse }} td {{ padding: .15rem 1rem .15rem 0; vertical-align: top }}
</style></head><body><main><h1>Remote Log: the read service</h1>
<p>Log in to Airflow, or send a token of <code>POST /auth/token</code> as <code>Authorization: Bearer …</code>. What you
may see and read is a matter of rights of its own. The same as OpenAPI: <a href="openapi.json">openapi.json</a>.</p>
{routes}</main></body></html>
"""


def documentation_page(document: Mapping[str, Any]) -> str:
    """Return the page."""
    base = document["servers"][0]["url"].rstrip("/")
    routes = "".join(
        _route(method, base + path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    return _PAGE.format(routes=routes)


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = "".join(_parameter(each) for each in operation.get("parameters", ()))
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(answer.get('description', ''))}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
        f"<p>{escape(operation.get('description', ''))}</p>"
        f"<table>{parameters}</table><details><summary>Answers</summary><table>{answers}</table></details></section>"
    )


def _parameter(parameter: Mapping[str, Any]) -> str:
    limits = ", ".join(_limits(parameter.get("schema", {})))
    return (
        f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{escape(parameter.get('description', ''))}</td>"
        f"<td>{escape(limits)}</td></tr>"
    )


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in schema:
        yield " or ".join(map(str, schema["enum"]))
    if "minimum" in schema:
        yield f"from {schema['minimum']:,}"
    if "maximum" in schema:
        yield f"to {schema['maximum']:,}"
    if "default" in schema:
        yield f"else {schema['default']}"


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
    return Response(service.figures.text(), media_type=METRICS_MEDIA_TYPE)


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
