"""A small client of Airflow's public REST API, version 2, for the demo and `make up`.

Airflow's own client takes 0.7 s of CPU to import, this one 0.2 s; and it neither logs in nor reads what plugins serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError, wait_until

FINISHED_STATES = frozenset({"success", "failed"})
_PAGE = 100
_GET_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG as Airflow last parsed it; `file` is relative to the DAGs folder."""

    dag_id: str
    file: str
    is_paused: bool
    last_parsed: datetime | None


@dataclass(frozen=True, slots=True)
class ImportFailure:
    """A DAG file that Airflow could not import; `reason` is the last line of its traceback."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class DagRun:
    """A run of a DAG; `state` is queued, running, success or failed."""

    dag_id: str
    run_id: str
    run_type: str
    state: str
    run_after: datetime
    started: datetime | None
    ended: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished."""
        return self.state in FINISHED_STATES


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """A task in a run; `map_index` is -1 if it is not mapped, `state` is None before it was scheduled."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    started: datetime | None
    ended: datetime | None

    @property
    def name(self) -> str:
        """The task's id, with its map index if it has one."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class AirflowApi:
    """Airflow at `url`, used as `username`. Every method raises EmbeddedAirflowError if Airflow refuses or does not
    answer.

    Use it in a `with` statement; it holds connections.
    """

    def __init__(self, url: str, username: str, password: str, *, transport: httpx.BaseTransport | None = None) -> None:
        # Never use a proxy of the environment for a loopback address.
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False, transport=transport)
        body = {"username": username, "password": password}
        try:
            token = self._send("POST", "/auth/token", json=body)["access_token"]
        except BaseException:
            self.close()
            raise
        self._http.headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def content(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Return the bytes of a plugin's response at `path`."""
        try:
            response = self._http.get(path, params=query)
        except httpx.TransportError as error:
            raise EmbeddedAirflowError(f"GET {path}: Airflow does not answer: {error!r}") from error
        if not response.is_success:
            answer = response.text[:500]
            raise EmbeddedAirflowError(f"GET {response.url}: Airflow answered {response.status_code}: {answer}")
        return response.content

    def dags(self) -> list[Dag]:
        """Return the DAGs that Airflow knows and whose files still exist."""
        return [
            Dag(row["dag_id"], row["relative_fileloc"] or "", row["is_paused"], _moment(row["last_parsed_time"]))
            for row in self._rows("/api/v2/dags", "dags")
        ]

    def import_failures(self) -> list[ImportFailure]:
        """Return the DAG files that could not be imported."""
        return [
            ImportFailure(row["filename"], row["stack_trace"].strip().rpartition("\n")[2])
            for row in self._rows("/api/v2/importErrors", "import_errors")
        ]

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG, so that its schedule begins and its runs start."""
        self._send("PATCH", f"/api/v2/dags/{dag_id}", params={"update_mask": "is_paused"}, json={"is_paused": False})

    def trigger(
        self, dag_id: str, conf: Mapping[str, object] | None = None, run_after: datetime | None = None
    ) -> DagRun:
        """Queue a manual run without a logical date; `conf` overrides the DAG's params.

        Of several queued runs of a DAG the one with the earliest `run_after` (with a time zone; else now) starts first.
        """
        body: dict[str, object] = {"logical_date": None, "conf": dict(conf or {})}
        if run_after is not None:
            body["run_after"] = run_after.isoformat()
        return _dag_run(self._send("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body))

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """Return a run as it is now."""
        return _dag_run(self._get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"))

    def runs(self, dag_id: str, since: datetime) -> list[DagRun]:
        """Return the runs that were due at `since` (with a time zone) or later, earliest first."""
        query = {"run_after_gte": since.isoformat(), "order_by": "run_after"}
        return [_dag_run(row) for row in self._rows(f"/api/v2/dags/{dag_id}/dagRuns", "dag_runs", query)]

    def asset_triggered_runs(self, dag_id: str, since: datetime) -> list[DagRun]:
        """Return the runs that asset events have started at `since` (with a time zone) or later, earliest first."""
        query = {"run_type": "asset_triggered", "run_after_gte": since.isoformat(), "order_by": "run_after"}
        return [_dag_run(row) for row in self._rows(f"/api/v2/dags/{dag_id}/dagRuns", "dag_runs", query)]

    def running_backfills(self, dag_id: str) -> int:
        """Return how many backfills of a DAG have not ended; while there is one Airflow refuses another.

        It ends up to half a minute after the last of its runs.
        """
        rows = self._rows("/api/v2/backfills", "backfills", {"dag_id": dag_id})
        return sum(row["completed_at"] is None for row in rows)

    def wait_for_run(
        self, run: DagRun, seconds: float, on_progress: Callable[[DagRun, list[TaskInstance]], None] | None = None
    ) -> DagRun:
        """Wait until `run` has finished, well or badly, and return it as it is then.

        `on_progress` is called with the run and its tasks about once a second. Raises EmbeddedAirflowError if the
        run takes longer than `seconds`.
        """
        latest = run

        def finished() -> bool:
            nonlocal latest
            latest = self.run(run.dag_id, run.run_id)
            if on_progress is not None:
                on_progress(latest, self.task_instances(latest))
            return latest.is_finished

        if not wait_until(finished, seconds, interval=1):
            tasks = ", ".join(f"{task.name} is {task.state}" for task in self.task_instances(run))
            raise EmbeddedAirflowError(
                f"{run.dag_id}: run {run.run_id} is {latest.state} after {seconds:.0f} s ({tasks or 'no task yet'})"
            )
        return latest

    def wait_for_asset_triggered_run(self, dag_id: str, since: datetime, seconds: float) -> DagRun:
        """Wait until an asset event has started a run at `since` or later; return the earliest such run.

        Raises EmbeddedAirflowError if none comes within `seconds`: the DAG is paused, or no event was emitted.
        """
        runs: list[DagRun] = []

        def started() -> bool:
            runs[:] = self.asset_triggered_runs(dag_id, since)
            return bool(runs)

        if not wait_until(started, seconds, interval=1):
            raise EmbeddedAirflowError(
                f"{dag_id}: no asset event has started a run in {seconds:.0f} s: see that the DAG is not paused, "
                f"and that the task which emits the event ran"
            )
        return runs[0]

    def task_instances(self, run: DagRun) -> list[TaskInstance]:
        """Return the tasks of a run, mapped ones one by one."""
        return [
            _task(row) for row in self._rows(f"{_run_path(run.dag_id, run.run_id)}/taskInstances", "task_instances")
        ]

    def task_log(self, task: TaskInstance) -> str:
        """Return the log of a task's latest try, a line an event."""
        path = f"{_run_path(task.dag_id, task.run_id)}/taskInstances/{task.task_id}/logs/{task.try_number}"
        query = {"map_index": str(task.map_index), "full_content": "true"}
        return "\n".join(_log_line(event) for event in self._get(path, query)["content"])

    def failures(self, run: DagRun, lines: int = 30) -> str:
        """Return the names and the last `lines` of the logs of the tasks that failed in `run`; empty if none did."""
        failed = [task for task in self.task_instances(run) if task.state == "failed"]
        return "\n".join(f"{task.name} failed:\n{_last(self.task_log(task), lines)}" for task in failed)

    def _rows(self, path: str, name: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            page = self._get(path, {**(query or {}), "limit": str(_PAGE), "offset": str(offset)})[name]
            yield from page
            if len(page) < _PAGE:
                return
            offset += _PAGE

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        # Retry reads: Airflow on SQLite sometimes answers 500 while another process writes.
        again = Retrying(
            stop=stop_after_attempt(_GET_ATTEMPTS),
            wait=wait_exponential(multiplier=0.2),
            retry=retry_if_exception_type(_PassingError),
            reraise=True,
        )
        return again(self._send, "GET", path, params=query)

    def _send(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, json: object = None
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        try:
            response = self._http.request(method, path, params=params, json=json, headers=headers)
        except httpx.TransportError as error:
            raise _PassingError(f"{method} {self._http.base_url}{path}: Airflow does not answer: {error!r}") from error
        if response.is_success:
            answer: dict[str, Any] = response.json()
            return answer
        refusal = _PassingError if response.is_server_error else EmbeddedAirflowError
        raise refusal(f"{method} {response.url}: Airflow answered {response.status_code}: {response.text[:500]}")


class _PassingError(EmbeddedAirflowError):
    """Airflow did not answer, or failed in itself: the same request may succeed later."""

    retriable = True


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _dag_run(row: Mapping[str, Any]) -> DagRun:
    return DagRun(
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        run_type=row["run_type"],
        state=row["state"],
        run_after=datetime.fromisoformat(row["run_after"]),
        started=_moment(row["start_date"]),
        ended=_moment(row["end_date"]),
    )


def _task(row: Mapping[str, Any]) -> TaskInstance:
    return TaskInstance(
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        task_id=row["task_id"],
        map_index=row["map_index"],
        state=row["state"],
        try_number=row["try_number"],
        started=_moment(row["start_date"]),
        ended=_moment(row["end_date"]),
    )


def _log_line(event: Mapping[str, Any] | str) -> str:
    """Return a log event as text: it is a line, or an object with `event` and, after an error, `error_detail`."""
    if isinstance(event, str):
        return event
    raised = [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in event.get("error_detail") or []]
    return "\n".join([" ".join(filter(None, (event.get("timestamp"), str(event.get("event", ""))))), *raised])


def _last(text: str, lines: int) -> str:
    return "\n".join(text.splitlines()[-lines:])
