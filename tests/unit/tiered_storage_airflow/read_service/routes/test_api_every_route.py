"""Every route of what the API server mounts, those of the page too, while something that it works on hangs.

Each has to answer in its time, and none may hold a thread that Airflow's own routes need.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import anyio.to_thread
import httpx
import pytest

from support.read_service_site import RIGHTS, login
from support.remote_logs import RemoteLogFiles, a_copied_remote_log, segments_of
from tiered_storage.errors import RemoteStorageError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tiered_storage.remote_log.manager import RemoteLogManager

A_WHILE = 60.0
"""Seconds that no step of a test takes unless it hangs."""
THREADS_OF_THE_LOOP = 2
REPORT = "/dags/copy_segments/runs/a-run"
NAMES = {"offsets": "max-timestamp", "indexes": "remote-log-index", "assets": "style.css"}
"""A name for the place after each of these in an address."""
HANGING = {
    "opening": ("support.remote_logs.RemoteLogFiles.open",),
    "rights": ("tiered_storage.settings.read_rights.RightsFile.current",),
    "metadata": ("tiered_storage.remote_log.metadata.sql.database.engine.Database.reading",),
    "logs": (
        "tiered_storage.remote_log.source.log_directory_source.LogDirectorySource.partition",
        "tiered_storage.remote_log.source.log_directory_source.LogDirectorySource.partitions",
    ),
    "store": (
        "tiered_storage.remote_log.storage.segment_objects.ObjectRemoteStorageManager.fetch_log_segment",
        "tiered_storage.remote_log.storage.segment_objects.ObjectRemoteStorageManager.fetch_index",
        "tiered_storage.remote_log.storage.segment_objects.ObjectRemoteStorageManager.list_objects",
        "tiered_storage.remote_log.jobs.work_area.WorkArea.names",
        "tiered_storage_airflow.web_app._work_area",
    ),
}
WAITS_FOR = {
    "opening": ("/health", "/topics", "/records", "/data", "/page/"),
    "rights": ("/health", "/topics", "/records", "/data", "/page/"),
    "metadata": ("/health", "/topics", "/records", "/data", "/page/"),
    "logs": ("/topics", "/partitions/0", "/records", "/page/"),
    "store": (REPORT, "/health", "/records", "/data", "/indexes/remote-log-index", "/offsets/by-time?timestamp=1"),
}
"""How addresses end that cannot be answered while it hangs."""


@pytest.fixture
def files(logins: None, tmp_path: Path) -> RemoteLogFiles:
    """Offsets 0 to 34 of orders-0, 0 to 19 of them remote only; and what a run left in the work area."""
    from tiered_storage_airflow.runs.summary import RunSummary
    from tiered_storage_airflow.runs.task_context import folder_name

    rights = tmp_path / "rights.yaml"
    rights.write_text(RIGHTS)
    properties: dict[str, Any] = {"read_service_rights_file": str(rights), "remote_fetch_max_wait_ms": 500}
    files = a_copied_remote_log(tmp_path, {("orders", 0): 3}, **properties)
    for segment in files.local_segments()[:2]:
        segment.log_path.unlink()
    with files.open() as remote_log:
        summary = RunSummary("copy_segments", "a-run", "plan", 1, {})
        path = f"runs/{folder_name('copy_segments', 'a-run')}/plan/summary.json"
        remote_log.context.work.write_report(path, [summary], RunSummary)
    return files


@contextmanager
def hanging(what: Iterable[str]) -> Iterator[threading.Event]:
    """Let calls of `what` hang until the end of the block; yield what is set once one does."""
    released, begun = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> Any:
        begun.set()
        released.wait()
        raise RemoteStorageError("it answers again, with an error")

    patches = [mock.patch(each, hang) for each in what]
    for patch in patches:
        patch.start()
    try:
        yield begun
    finally:
        for patch in patches:
            patch.stop()
        released.set()


@asynccontextmanager
async def mounted(files: RemoteLogFiles, seconds: float = 1.0) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """Start the whole application over `files`; yield it and a client that may see everything."""
    from airflow.models.dag import DagModel

    # Imported after the patches, it would keep their `open_by_hook` for ever.
    import tiered_storage_airflow.metrics_endpoint  # noqa: F401
    from tiered_storage_airflow import web_app as mounted_app
    from tiered_storage_airflow.read_service import service

    app = mounted_app.read_service()

    def opened(*_: object) -> RemoteLogManager:
        return files.open()

    with (
        mock.patch.object(service, "open_by_hook", opened),
        mock.patch.object(mounted_app, "_work_area", lambda _: opened().context.work),
        mock.patch.object(DagModel, "get_team_name", staticmethod(lambda _: None)),
    ):
        async with app.router.lifespan_context(app):
            app.state.read_service.seconds_to_answer = seconds
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://testserver", headers=login("anybody", "OP"), timeout=A_WHILE
            ) as client:
                yield app, client


def addresses(app: FastAPI, segment_id: str) -> list[tuple[str, str]]:
    """Return method and address of every route. A route with a new kind of parameter fails here: add it to `known`."""
    from fastapi.routing import APIRoute
    from starlette.routing import Mount

    known = {"topic": "orders", "partition": "0", "segment_id": segment_id}
    known |= {"dag_id": "copy_segments", "run_id:path": "a-run"}
    found = []
    routes = [("", route) for route in app.routes if not isinstance(route, Mount)]
    routes += [(each.path, route) for each in app.routes if isinstance(each, Mount) for route in each.routes]
    for prefix, route in routes:
        assert isinstance(route, APIRoute), f"{route}: only routes of FastAPI are expected"
        parts = route.path.split("/")
        named = [NAMES[part] if after == "{name}" else after for part, after in pairwise(parts)]
        path = "/".join(["", *(known[part[1:-1]] if part.startswith("{") else part for part in named)])
        required = [each.alias for each in route.dependant.query_params if each.field_info.is_required()]
        query = "?" + "&".join(f"{each}=1" for each in required) if required else ""
        found += [(method, f"{prefix}{path}{query}") for method in route.methods]
    return found


async def shared_threads_are_free(begun: threading.Event) -> None:
    """Return once all threads that Airflow's routes share, and all of the event loop's own, are at work at once.

    Only after `begun`, when something hangs.
    """
    async with asyncio.timeout(A_WHILE):
        while not begun.is_set():
            await asyncio.sleep(0.01)
    shared = threading.Barrier(int(anyio.to_thread.current_default_thread_limiter().total_tokens), timeout=A_WHILE)
    own = threading.Barrier(THREADS_OF_THE_LOOP, timeout=A_WHILE)
    async with asyncio.timeout(A_WHILE), asyncio.TaskGroup() as group:
        for _ in range(shared.parties):
            group.create_task(anyio.to_thread.run_sync(shared.wait, abandon_on_cancel=True))
        for _ in range(own.parties):
            group.create_task(asyncio.to_thread(own.wait))


def in_one_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(THREADS_OF_THE_LOOP) as executor:
            asyncio.get_running_loop().set_default_executor(executor)
            await work()

    asyncio.run(run())


@pytest.mark.parametrize("what", HANGING)
def test_every_route_answers_in_its_time_while_something_hangs(files: RemoteLogFiles, what: str) -> None:
    async def ask_all() -> None:
        async with mounted(files, A_WHILE) as (app, client):
            asked = addresses(app, segment_id)
            assert len(asked) > 20
            before = {each: (await client.request(*each)).status_code for each in asked}
            assert set(before.values()) == {200}, before
        async with mounted(files) as (app, client):
            if what != "opening":
                # A busy machine may need longer for the first answer than a request has.
                async with asyncio.timeout(A_WHILE):
                    while (await client.get("/v1/metrics")).status_code != 200:
                        await asyncio.sleep(0.01)
            with hanging(HANGING[what]) as begun:
                requests = [asyncio.create_task(client.request(*each)) for each in asked]
                await shared_threads_are_free(begun)
                async with asyncio.timeout(A_WHILE):
                    answers = dict(zip(asked, await asyncio.gather(*requests), strict=True))
        for (method, address), answer in answers.items():
            late = method == "GET" and address.endswith(WAITS_FOR[what])
            expected = {503, 504} if late else {200, 503, 504}
            assert answer.status_code in expected, (method, address, answer.status_code, answer.text)
            if answer.status_code == 504 and address.startswith("/v1"):
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["retry-after"]

    with files.open() as remote_log:
        segment_id = segments_of(remote_log)[0].segment_id.id
    in_one_loop(ask_all)


def test_every_route_asks_for_a_login(files: RemoteLogFiles) -> None:
    async def ask_all() -> None:
        async with mounted(files, A_WHILE) as (app, client):
            del client.headers["Authorization"]
            answers = {each: (await client.request(*each)).status_code for each in addresses(app, "A" * 22)}
        assert len(answers) > 20
        assert set(answers.values()) == {401}, answers

    in_one_loop(ask_all)


def test_however_many_reports_of_runs_hang_the_shared_threads_stay_free(files: RemoteLogFiles) -> None:
    async def ask() -> None:
        async with mounted(files) as (_, client):
            with hanging(HANGING["store"]) as begun:
                requests = [asyncio.create_task(client.get(REPORT)) for _ in range(200)]
                await shared_threads_are_free(begun)
                async with asyncio.timeout(A_WHILE):
                    answers = await asyncio.gather(*requests)
                again = await client.get(REPORT)
        statuses = {answer.status_code for answer in [*answers, again]}
        assert statuses == {504, 429}
        assert all("retry-after" in answer.headers and "try again" in answer.text for answer in answers)

    in_one_loop(ask)


def test_a_queue_stays_bounded_though_those_who_waited_gave_up() -> None:
    from tiered_storage_airflow.read_service.problem import ProblemError
    from tiered_storage_airflow.read_service.threads import BoundedThreads

    begun, released = threading.Event(), threading.Event()
    done: list[int] = []

    def hang() -> None:
        begun.set()
        released.wait()

    async def give_up_and_ask_again() -> None:
        threads = BoundedThreads("test", 1, 2)
        waiting: list[asyncio.Task[Any]] = [asyncio.create_task(threads.run(hang))]
        waiting += [asyncio.create_task(threads.run(lambda: done.append(1))) for _ in range(2)]
        while not begun.is_set():
            await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        waiting = [asyncio.create_task(threads.run(lambda: done.append(2))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError):
            await threads.run(lambda: done.append(3))
        released.set()
        async with asyncio.timeout(A_WHILE):
            await asyncio.gather(*waiting)
        threads.close()

    asyncio.run(give_up_and_ask_again())
    assert done == [2, 2]


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = """
import asyncio, contextlib, threading
from tiered_storage_airflow.read_service.threads import BoundedThreads

async def hang() -> None:
    threads = BoundedThreads("test", 1, 0)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(threads.run(threading.Event().wait), 0.1)
    threads.close()

asyncio.run(hang())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
