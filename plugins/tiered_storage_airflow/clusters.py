"""Several clusters in one Airflow: each DAG once for each cluster, with the defaults of all DAGs.

The first cluster's settings file is TIERED_STORAGE_CONFIG, or include/tiered_storage.yaml; each other cluster has a
file beside it (tiered_storage.west.yaml). `copy_segments` serves the first, and `copy_segments__west` serves west.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset

from tiered_storage.settings.properties.cluster_files import (
    LONGEST_NAME,
    first_cluster_file,
    other_clusters,
    read_dag_settings,
)

SEPARATOR = "__"
BEFORE_QUEUE = "."
"""Separates a DAG's name from a queue's; neither a DAG of ours nor a cluster may contain it."""
INVALID = "invalid-settings"
"""The tag of DAGs whose cluster's settings file has invalid own.pools or copy.queues."""

DEFAULT_ARGS: dict[str, Any] = {
    "remote_storage_conn_id": "remote_storage_default",
    "remote_log_metadata_conn_id": "remote_log_metadata_default",
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(minutes=30),
}
"""For default_args: the connections to the store and the metadata; three retries, each after a longer pause; and a
time limit of half an hour for most tasks.

A cluster's own connection, such as remote_storage_default__west, goes before the one named here.

A retry of any task is safe: it takes over the leases of the first try, looks again and does what is left. A copy
discards what the first try left, and copies again under new segment ids. Errors that no retry can repair fail the task
for good (AirflowFailException).
"""

RUN_TIMEOUT = timedelta(hours=18)
LONG_RUN_TIMEOUT = timedelta(days=2)
"""For dagrun_timeout: how long a run may take, and one with a task that may read for hours.

Both exceed the time that all tries of all tasks may take one after the other, with their pauses; all mapped commits of
a run count as one task, since each takes seconds. So the timeout never ends work that is within its task's limits. It
ends a run whose task waits for ever, such as for a queue without a worker or for a pool that does not exist:
max_active_runs would keep every later run from beginning. A run that was ended loses nothing: the next one plans its
work again once the leases have expired (lease.duration.ms).
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster whose topics the DAGs tier; the first one has no name."""

    name: str | None
    has_own_pools: bool = False
    copy_queues: tuple[str, ...] = ()
    """The queues of the hosts that see its brokers' disks (copy.queues)."""
    problems: tuple[str, ...] = ()
    """What is invalid in own.pools and copy.queues of its settings file, or why the file cannot be read. For the first
    cluster, also why other clusters have no DAGs.
    """
    has_canary: bool = False
    """Whether its gateway is checked (gateway.canary.topic)."""

    def named(self, name: str) -> str:
        """Return `name` with the cluster's name after it; of the first cluster, `name` itself."""
        return name if self.name is None else f"{name}{SEPARATOR}{self.name}"

    def pool(self, name: str) -> str:
        """Return the pool for the cluster's tasks: one that all clusters share, or its own (own.pools)."""
        return self.named(name) if self.has_own_pools else name

    @property
    def remote_log(self) -> Asset:
        """The asset that a committed copy updates; `enforce_local_retention` runs on it."""
        path = "" if self.name is None else f"/{self.name}"
        return Asset(name=self.named("remote_log"), uri=f"x-remote-log://segments{path}", group="tiered-storage")


def clusters() -> list[Cluster]:
    """Return every cluster that has a settings file, the first one always and before the others.

    Raises nothing: every DAG file asks, and an import error would stop all clusters.
    """
    first = read_dag_settings(first_cluster_file(os.environ), os.environ)
    problems = list(first.problems)
    try:
        files = other_clusters(os.environ)
    except OSError as error:
        files = {}
        problems.append(f"{error.filename}: cannot be listed: {error.strerror}: other clusters have no DAGs")
    others = {}
    for name, file in files.items():
        if len(name) <= LONGEST_NAME:
            others[name] = read_dag_settings(file, {})
        else:
            problems.append(f"{file}: the cluster has no DAGs: shorten its name to at most {LONGEST_NAME} letters")
    return [
        Cluster(None, copy_queues=first.copy_queues, problems=tuple(problems), has_canary=first.has_canary),
        *(
            Cluster(name, each.has_own_pools, each.copy_queues, each.problems, each.has_canary)
            for name, each in others.items()
        ),
    ]


def dag_of_each_cluster(
    dag_id: str,
    *,
    schedule: Any,
    default_args: Mapping[str, Any],
    tags: Sequence[str],
    doc_md: str | None,
    in_copy_queues: bool = False,
    is_wanted: Callable[[Cluster], bool] = lambda _: True,
    **arguments: Any,
) -> Callable[[Callable[[Cluster], None]], Callable[[], list[DAG]]]:
    """Make a function with the tasks of one Cluster into one that builds every DAG: `dag_id`, `{dag_id}__west`, ...

    All arguments are those of a DAG. A `schedule` that is a function gets the cluster. The pool in `default_args` may
    be the cluster's own, and each of the DAG's operators gets the cluster's name. With `in_copy_queues` there is one
    more DAG for each of the cluster's copy_queues, all of whose tasks run in that queue. A cluster for which
    `is_wanted` returns false has no such DAG. If own.pools or copy.queues are invalid, the DAG's doc and the log name
    the problem, and the DAG has the tag INVALID.
    """

    def of_function(tasks: Callable[[Cluster], None]) -> Callable[[], list[DAG]]:
        def build(cluster: Cluster, queue: str | None = None) -> DAG:
            defaults = {**default_args, "cluster": cluster.name}
            name = cluster.named(dag_id)
            if queue is not None:
                defaults["queue"] = queue
                name += f"{BEFORE_QUEUE}{queue}"
            if "pool" in defaults:
                defaults["pool"] = cluster.pool(defaults["pool"])
            chosen = schedule(cluster) if callable(schedule) else schedule
            shown = {
                **arguments,
                "tags": [*tags, INVALID] if cluster.problems else tags,
                "doc_md": _doc(doc_md, cluster),
            }
            # Leaving the block registers the DAG with the file that is being parsed.
            with DAG(name, schedule=chosen, default_args=defaults, **shown) as made:
                tasks(cluster)
            return made

        def build_all() -> list[DAG]:
            served = [each for each in clusters() if is_wanted(each)]
            for problem in (problem for each in served for problem in each.problems):
                _log.warning("%s: %s", dag_id, problem)
            queues = [(each, queue) for each in served for queue in each.copy_queues] if in_copy_queues else []
            return [*map(build, served), *(build(each, queue) for each, queue in queues)]

        return build_all

    return of_function


def _doc(doc_md: str | None, cluster: Cluster) -> str | None:
    """Return the DAG's doc, preceded by the problems of the cluster's settings file."""
    if not cluster.problems:
        return doc_md
    return (
        f"**{'; '.join(cluster.problems)}.** Correct it: until then it is ignored, so this DAG may be in the pools "
        "of all clusters, and DAGs of queues or clusters may be missing. Tasks with invalid settings fail with all "
        "that is wrong.\n\n"
        f"{doc_md or ''}"
    )
