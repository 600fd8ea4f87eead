"""The pages as an application, with the logins, rights, threads and log lines of the read service."""

from __future__ import annotations

from contextlib import aclosing
from functools import cache
from importlib.resources import files
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.settings.read_rights import Right
from tiered_storage_airflow.clusters import clusters
from tiered_storage_airflow.links import below_reports
from tiered_storage_airflow.page.base import HEADERS, page
from tiered_storage_airflow.page.partition_content import look_up
from tiered_storage_airflow.page.partition_page import partition_page
from tiered_storage_airflow.page.partitions_table import SortedBy, Wanted, partitions_page
from tiered_storage_airflow.page.records_page import MOST_BYTES, RECORDS, ShownRecord, records_page, shown_records
from tiered_storage_airflow.page.segment_page import find_run, segment_page
from tiered_storage_airflow.page.topic_pages import Rights, TopicLagShown, topic_page, topics_page
from tiered_storage_airflow.read_service.access import AccessLog, access_of
from tiered_storage_airflow.read_service.login import Visitor, VisitorDep, visitor_of
from tiered_storage_airflow.read_service.partitions import (
    DescribedDep,
    ReadDep,
    SegmentPath,
    admit,
    find_segment,
    partitions_of,
)
from tiered_storage_airflow.read_service.problem import ProblemError, not_found
from tiered_storage_airflow.read_service.record_forms import Form
from tiered_storage_airflow.read_service.record_stream import RecordStream
from tiered_storage_airflow.read_service.routes.exception_handlers import add_exception_handlers
from tiered_storage_airflow.read_service.routes.metadata import describe
from tiered_storage_airflow.read_service.routes.metadata import topics as visible_topics
from tiered_storage_airflow.read_service.service import OpenService, OpenServiceDep, ReadService

PARTITIONS_OF_A_PAGE = 25
LARGEST = 2**63 - 1
ASSETS = {"style.css": "text/css; charset=utf-8", "theme.js": "text/javascript; charset=utf-8"}


def page_app(service: ReadService) -> FastAPI:
    """Return the application that reads through `service`, which belongs to the caller."""
    app = FastAPI(
        title="Remote Log: where data are",
        dependencies=[Depends(visitor_of)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.read_service = service
    # The clusters whose pages are mounted too; list them once, so that no request reads a settings file.
    app.state.other_clusters = [each.name for each in clusters() if each.name != service.cluster]
    add_exception_handlers(app, service, _as_page)
    app.add_middleware(AccessLog, metrics=service.metrics, below="/page")
    app.get("/")(_topics)
    app.get("/assets/{name}")(_asset)
    app.get("/partitions")(_partitions)
    app.get("/topics/{topic}")(_topic)
    app.get("/topics/{topic}/partitions/{partition}")(_partition)
    app.get("/topics/{topic}/partitions/{partition}/records")(_records)
    app.get("/topics/{topic}/partitions/{partition}/segments/{segment_id}")(_segment)
    return app


async def _topics(request: Request, service: OpenServiceDep, visitor: VisitorDep) -> Response:
    topics = (await visible_topics(service, visitor)).topics
    has_any = (await service.rights_now()).has_any(visitor.name, visitor.roles)
    file = service.rights
    rights = Rights(file.path, file.problem is not None, visitor.name, visitor.roles, has_any)
    return _page(topics_page(_root(request), topics, rights, _other_clusters(request)))


async def _partitions(
    request: Request,
    service: OpenServiceDep,
    visitor: VisitorDep,
    topic: Annotated[str, Query(max_length=249)] = "",
    sort: SortedBy = SortedBy.LAG,
    descending: bool = True,
    only_trouble: bool = False,
    start: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
) -> Response:
    metrics = await service.kept_metrics()
    rights = await service.rights_now()
    asked = Wanted(topic, sort, descending, only_trouble, start)

    def may_see(name: str) -> bool:
        return rights.allows(visitor.name, visitor.roles, Right.DESCRIBE, name)

    return _page(await service.threads.asking.run(lambda: partitions_page(_root(request), metrics, asked, may_see)))


async def _topic(
    request: Request,
    service: OpenServiceDep,
    visitor: VisitorDep,
    topic: str,
    start: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    await admit(request, service, visitor, Right.DESCRIBE, topic)
    partitions, following = await partitions_of(service, topic, start, PARTITIONS_OF_A_PAGE)
    shown = [(await describe(service, each), await service.tiers.snapshot(each)) for each in partitions]
    lag = await _lag_of(service, topic)
    # On a thread: drawing 100,000 segments takes a while.
    return _page(await service.threads.asking.run(lambda: topic_page(_root(request), topic, shown, following, lag)))


async def _lag_of(service: OpenService, topic: str) -> TopicLagShown:
    """Return what the kept metrics have of a topic; nothing if they cannot be read: the rest of the page can."""
    try:
        return TopicLagShown.of(topic, await service.kept_metrics(), await service.lag_history())
    except (TieredStorageError, ProblemError) as error:
        return TopicLagShown(None, None, (f"Metrics cannot be read: {error}",))


async def _partition(
    request: Request, asked: DescribedDep, visitor: VisitorDep, start: Annotated[int, Query(ge=0, le=LARGEST)] = 0
) -> Response:
    may_read = await _may_read(asked.service, visitor, asked.partition)
    content = await look_up(asked, start, may_read=may_read)
    return _page(await asked.service.threads.asking.run(lambda: partition_page(_root(request), content)))


async def _segment(request: Request, asked: DescribedDep, visitor: VisitorDep, segment_id: SegmentPath) -> Response:
    segment: RemoteLogSegmentMetadata = await find_segment(asked, segment_id)
    service, root = asked.service, _root(request)
    own: ReadService = request.app.state.read_service
    run = await find_run(service, segment_id, own.cluster)
    may_read = await _may_read(service, visitor, asked.partition)
    return _page(segment_page(root, f"{root.removesuffix('/page')}/v1", segment, run, may_read=may_read))


async def _records(
    request: Request, asked: ReadDep, offset: Annotated[int | None, Query(ge=0, le=LARGEST)] = None
) -> Response:
    service = asked.service
    isolation = Isolation.READ_UNCOMMITTED
    readable = await service.tiers.readable_range(asked.partition, isolation, offset=offset)
    access = access_of(request)
    access.first_offset = readable.start
    batches = service.tiers.batches(asked.partition, readable.start, readable.end, isolation)
    stream = RecordStream(batches, RECORDS, MOST_BYTES, Form.JSON, service, access)
    records: list[ShownRecord] = []
    service.places.take()
    try:
        async with aclosing(stream.encoded(shown_records)) as pieces:
            async for piece in pieces:
                records += piece
    finally:
        service.places.free()
    return _page(records_page(_root(request), asked.partition, readable, records))


async def _asset(name: str) -> Response:
    if name not in ASSETS:
        raise not_found(f"there is no asset {name!r}")
    return Response(_content_of(name), media_type=ASSETS[name], headers={"Cache-Control": "private, max-age=300"})


@cache
def _content_of(asset: str) -> bytes:
    return files("tiered_storage_airflow.page").joinpath("assets", asset).read_bytes()


async def _may_read(service: OpenService, visitor: Visitor, partition: TopicIdPartition) -> bool:
    return (await service.rights_now()).allows(visitor.name, visitor.roles, Right.READ, partition.topic)


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _other_clusters(request: Request) -> list[tuple[str, str]]:
    """Return the names of the other clusters, with the addresses of their pages."""
    own: ReadService = request.app.state.read_service
    reports = _root(request).removesuffix(f"{below_reports(own.cluster)}/page")
    names: list[str | None] = request.app.state.other_clusters
    return [(name or "the first", f"{reports}{below_reports(name)}/page/") for name in names]


def _page(text: str) -> Response:
    return HTMLResponse(text, headers=HEADERS)


def _as_page(request: Request, problem: ProblemError) -> Response:
    """Return the problem as a page, with its status."""
    title = f"{problem.status}: {problem.title}"
    content = page("problem.html", _root(request), title, [], detail=problem.detail)
    return HTMLResponse(content, problem.status, headers={**HEADERS, **problem.headers})
