"""The application that the API server mounts at /remote-log: reports of runs, the read service at /v1, pages at /page.

The read service and pages of another cluster are below /clusters/west, as are the reports of tasks that work on it.

Every route needs a login. Whoever may see the run's DAG may see its reports; Airflow's own checks decide that. Reports
only read files below `runs/` of the work area: the folder follows from the ids of DAG and run, and the file's name must
be one of a listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.context import open_work_area
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.settings.settings import load_cluster_settings
from tiered_storage_airflow.clusters import clusters
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook
from tiered_storage_airflow.links import below_reports
from tiered_storage_airflow.metrics_endpoint import MetricsEndpoint
from tiered_storage_airflow.page.app import page_app
from tiered_storage_airflow.read_service.problem import ProblemError, too_late
from tiered_storage_airflow.read_service.routes.api import read_api
from tiered_storage_airflow.read_service.service import ReadService
from tiered_storage_airflow.rendering import render
from tiered_storage_airflow.runs.summary import SUMMARY, RunSummary
from tiered_storage_airflow.runs.task_context import folder_name

_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-store"}

MOST_BYTES_SHOWN = 5_000_000
"""How many bytes of a file are shown; all of it is in the work area."""


def read_service() -> FastAPI:
    """Return the application; its routes are there while it runs."""
    return FastAPI(
        title="Remote Log",
        dependencies=[Depends(requires_authenticated())],
        lifespan=_with_routes,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )


@asynccontextmanager
async def _with_routes(app: FastAPI) -> AsyncIterator[None]:
    """Serve the reports, the read service and the pages of every cluster while the API server runs."""
    services = [ReadService(cluster=cluster.name) for cluster in clusters()]
    app.state.read_service = services[0]
    before = list(app.router.routes)
    for service in services:
        place = below_reports(service.cluster)
        app.add_api_route(
            f"{place}/dags/{{dag_id}}/runs/{{run_id:path}}",
            _report_of(service),
            dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))],
        )
        app.mount(f"{place}/v1", read_api(service))
        app.mount(f"{place}/page", page_app(service))
    endpoints = [MetricsEndpoint(service.metrics, service.cluster) for service in services]
    try:
        for endpoint in endpoints:
            endpoint.start()
        yield
    finally:
        app.router.routes[:] = before
        for endpoint in endpoints:
            endpoint.close()
        for service in services:
            service.close()


def _report_of(service: ReadService) -> Callable[..., Awaitable[Response]]:
    async def run_report(dag_id: str, run_id: str, file: str | None = None) -> Response:
        return await _in_time(service, lambda: _answer(service.cluster, dag_id, run_id, file))

    return run_report


async def _in_time(service: ReadService, work: Callable[[], Response]) -> Response:
    """Return the result of `work`, on our own thread: the API server's threads must not wait for the work area."""
    try:
        async with asyncio.timeout(service.seconds_to_answer):
            return await service.reports.run(work)
    except TimeoutError:
        problem = too_late(service.seconds_to_answer)
    except ProblemError as busy:
        problem = busy
    raise HTTPException(problem.status, problem.detail, dict(problem.headers))


def _answer(cluster: str | None, dag_id: str, run_id: str, file: str | None) -> Response:
    folder = f"runs/{folder_name(dag_id, run_id)}"
    try:
        with closing(_work_area(cluster)) as work:
            names = sorted(work.names(folder))
            if not names:
                raise HTTPException(404, f"the run {run_id} of {dag_id} has no files in the work area (yet)")
            if file is None:
                return HTMLResponse(report_page(dag_id, run_id, work, folder, names), headers=_HEADERS)
            if file not in names:
                raise HTTPException(404, f"the run {run_id} of {dag_id} has no file {file}")
            return PlainTextResponse(work.content(f"{folder}/{file}", MOST_BYTES_SHOWN), headers=_HEADERS)
    except TieredStorageError as error:
        raise HTTPException(503 if error.retriable else 502, str(error)) from error


def _work_area(cluster: str | None) -> WorkArea:
    settings = load_cluster_settings(cluster)
    return open_work_area(settings, RemoteStorageHook(cluster=cluster).options(settings))


def report_page(dag_id: str, run_id: str, work: WorkArea, folder: str, names: Sequence[str]) -> str:
    """Return the page as HTML; `names` are those of the files in `folder`."""
    paths = [f"{folder}/{name}" for name in names if name.rpartition("/")[2] == SUMMARY]
    written = (summary for path in paths for summary in work.read_report(path, RunSummary))
    summaries = sorted(written, key=lambda summary: (summary.written_at, summary.task_id))
    return render(
        "run_report.html",
        dag_id=dag_id,
        run_id=run_id,
        summaries=summaries,
        names=names,
        folder=f"{work.url}/{folder}",
    )
