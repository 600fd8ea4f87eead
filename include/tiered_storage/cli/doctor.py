"""The commands that show how things are: doctor checks the installation, metrics shows how far the remote log is."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import ConfigOption, JsonOption, opened
from tiered_storage.clock import wall_clock
from tiered_storage.doctor.check import Status
from tiered_storage.doctor.examination import examine
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metrics.exporter import LOOPBACK, MetricsExporter, serve
from tiered_storage.remote_log.metrics.partition_metrics import RemoteLogMetrics, TopicMetrics
from tiered_storage.remote_log.metrics.snapshot import Snapshots
from tiered_storage.remote_log.metrics.stored import keep_metrics
from tiered_storage.remote_log.model import Finding

_COLUMNS = ("verdict", "check", "message", "advice")
_METRICS = (
    "topic", "partitions", "lag segments", "lag bytes", "lag seconds", "tail bytes", "remote bytes", "stuck copies",
    "failed deletions", "missing offsets", "violations",
)  # fmt: skip

PortOption = Annotated[
    int | None,
    typer.Option(
        "--serve", help=f"Serve them to Prometheus at http://{LOOPBACK}:PORT/metrics until ended.", min=1, max=65535
    ),
]
EveryOption = Annotated[float, typer.Option("--every", help="With --serve: how many seconds lie between looks.", min=1)]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Keep them in the work area, for Airflow's page and for the next look.")
]


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check settings, paths, rights, store, metadata and clock: before the first run, and when something fails. Changes
    nothing.

    It writes an object to the store and to the work area, and deletes it again. Exit code 1: something is wrong.
    """
    output = Output(as_json)
    checks = list(examine(config, wall_clock, os.environ))
    rows = [(check.status.value, check.name, check.message, check.advice or None) for check in checks]
    if as_json:
        output.rows("Doctor", _COLUMNS, rows)
    else:
        messages = [f"{check.message}; {check.advice}" if check.advice else check.message for check in checks]
        shown = [(check.status.value, check.name, each) for check, each in zip(checks, messages, strict=True)]
        output.rows("Doctor", _COLUMNS[:-1], shown)
    count = Counter(check.status for check in checks)
    output.say(f"{count[Status.WRONG]} wrong, {count[Status.NOTE]} to note, {count[Status.OK]} as it must be")
    if count[Status.WRONG]:
        raise typer.Exit(1)


def metrics(
    port: PortOption = None,
    every: EveryOption = 60.0,
    keep: KeepOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show by topic how far copying lags, what is stuck or failed, and whether the offsets of the tiers fit together.

    Exit code 1: somebody must act.
    """
    output = Output(as_json)
    with opened(config, output) as remote_log:
        if port is not None:
            _serve(remote_log, port, every, output, keep=keep)
            return
        found = _taken(remote_log, Snapshots(remote_log.context, keeps_samples=keep), keep=keep)
    output.rows("Metrics", _METRICS, [_row(each) for each in found.topics])
    troubles = [Finding("", trouble) for each in found.topics for trouble in each.troubles]
    output.end([*([Finding("", found.problem)] if found.problem else []), *troubles])


def _serve(remote_log: RemoteLogManager, port: int, every: float, output: Output, *, keep: bool) -> None:
    snapshots = Snapshots(remote_log.context, keeps_samples=keep)
    exporter = MetricsExporter(lambda: _taken(remote_log, snapshots, keep=keep), every, output.say)
    end = serve(port, exporter, setting="--serve")
    output.say(f"serving http://{LOOPBACK}:{port}/metrics")
    try:
        exporter.run(threading.Event())
    except KeyboardInterrupt:
        output.say("ended")
    finally:
        end()


def _taken(remote_log: RemoteLogManager, snapshots: Snapshots, *, keep: bool) -> RemoteLogMetrics:
    found = snapshots.take()
    if keep:
        keep_metrics(remote_log.context.work, found)
    return found


def _row(topic: TopicMetrics) -> tuple[object, ...]:
    lag, segments = topic.lag, topic.segments
    unknown = (None, None, None)
    return (
        topic.topic,
        topic.partitions,
        *(unknown if lag is None else (lag.segments, lag.size, None if lag.ms is None else lag.ms // 1000)),
        topic.tail_size,
        segments.remote_size,
        segments.stuck,
        segments.failed_deletions,
        topic.missing,
        sum(topic.violating.values()),
    )
