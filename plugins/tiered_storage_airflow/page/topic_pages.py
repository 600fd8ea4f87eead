"""The pages above the partitions: all topics that the user may see, and the partitions of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from tiered_storage.remote_log.metrics.partition_metrics import RemoteLogMetrics, TopicMetrics
from tiered_storage.remote_log.metrics.stored import LagPoint, TopicLag
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.settings.read_rights import Right
from tiered_storage_airflow.page.base import LEGEND, link, of_partition, of_topic, page
from tiered_storage_airflow.page.partition_page import offsets_strip
from tiered_storage_airflow.page.picture import Bar, Bars, bars
from tiered_storage_airflow.read_service.routes.schemas import PartitionAnswer, TopicAnswer
from tiered_storage_airflow.rendering import moment, number, size, span


@dataclass(frozen=True, slots=True)
class Rights:
    """Where rights come from, and whether `user`, who has `roles`, has any, to explain an empty list of topics.

    `file` is None if the settings name none; if it `is_broken`, nobody has a right.
    """

    file: Path | None
    is_broken: bool
    user: str
    roles: frozenset[str]
    has_any: bool


def topics_page(
    root: str, topics: Sequence[TopicAnswer], rights: Rights, others: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the page of all topics that the user may see; if there are none, explain why, and what to do.

    `others` are the names of the other clusters, with the addresses of their pages.
    """
    rows = [
        (link(of_topic(root, each.topic), each.topic), number(len(each.partitions)), _allowed(each), each.topic_id)
        for each in topics
    ]
    why, grants = ("", []) if rows else (_why_none(rights), _grants(rights))
    return page("topics.html", root, "Remote Log", [], rows=rows, why=why, grants=grants, others=others)


def _allowed(topic: TopicAnswer) -> str:
    return "read" if topic.may_read else "see"


def _why_none(rights: Rights) -> str:
    if rights.has_any:
        return (
            "Your rights match no existing topic: 'tiered-storage topics list' lists all of them, on the command line."
        )
    if rights.file is None:
        why = "No file grants rights: set read.service.rights.file to one with these lines, and restart the API server."
    elif rights.is_broken:
        why = (
            f"Nobody has any right, because {rights.file} (read.service.rights.file) is missing or invalid: the API "
            "server's log and 'tiered-storage doctor' have the reason. One of these would be enough."
        )
    else:
        why = f"{rights.file} (read.service.rights.file) gives you no right: add one of these (it counts at once)."
    return f"You are logged in as {rights.user}, with {_listed('role', sorted(rights.roles))}. {why}"


def _grants(rights: Rights) -> list[str]:
    """Return lines for the file of rights, each of which would show the user all topics."""
    if rights.has_any:
        return []
    sees_all = {Right.DESCRIBE.value: ["*"]}
    grants = [{"users": {rights.user: sees_all}}]
    if rights.roles:
        grants.append({"roles": {role: {Right.DESCRIBE.value: ["*"]} for role in sorted(rights.roles)}})
    return [yaml.safe_dump(grant, default_flow_style=None) for grant in grants]


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return f"no {what}"
    return f"the {what} {names[0]}" if len(names) == 1 else f"the {what}s {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class TopicLagShown:
    """How far copying of a topic lags: now in words, over the last day as bars, and what is wrong; None: not known."""

    now: Sequence[tuple[str, str]] | None
    over_time: Bars | None
    alarms: Sequence[str]

    @classmethod
    def of(cls, topic: str, metrics: RemoteLogMetrics | None, history: Sequence[LagPoint]) -> Self:
        """Choose what is shown of the kept `metrics` and of the points of the last day."""
        if metrics is None:
            return cls(None, None, ())
        found = TopicMetrics.of(topic, (each for each in metrics.partitions if each.partition.topic == topic))
        return cls(list(_lag_now(found, metrics.taken_at)), _lag_bars(topic, history), found.troubles)


def _lag_now(topic: TopicMetrics, taken_at: int) -> Iterator[tuple[str, str]]:
    if topic.lag is not None:
        yield "closed and not copied", f"{size(topic.lag.size)}, {topic.lag.segments:,} segments"
        yield "the oldest of it", "no record" if not topic.lag.segments else _age(topic.lag.ms)
    elif topic.is_copied:
        yield "closed and not copied", "not known"
    if topic.is_copied:
        yield "not copied at all", "not known" if topic.tail_size is None else size(topic.tail_size)
    yield "remote", f"{size(topic.segments.remote_size)}, {topic.segments.remote:,} segments"
    yield "as of", moment(taken_at)


def _age(milliseconds: int | None) -> str:
    return "not known" if milliseconds is None else f"{span(milliseconds)} old"


def _lag_bars(topic: str, history: Sequence[LagPoint]) -> Bars | None:
    """Return a bar for each point."""
    if not history:
        return None
    drawn = [_lag_bar(moment(point.at), point.lag_of(topic)) for point in history]
    return bars("Closed and not copied, over the last day", drawn, (moment(history[0].at), moment(history[-1].at)))


def _lag_bar(at: str, lag: TopicLag | None) -> Bar:
    if lag is None:
        return Bar(0, f"{at}: not known", is_known=False)
    return Bar(lag.size, f"{at}: {size(lag.size)}, {lag.segments:,} segments")


def topic_page(
    root: str,
    topic: str,
    partitions: Sequence[tuple[PartitionAnswer, PartitionSnapshot]],
    following: int | None,
    lag: TopicLagShown,
) -> str:
    """Return the page of some partitions of a topic; `following` is the number that comes next."""
    rows = [
        (
            link(of_partition(root, snapshot.partition), str(answer.partition)),
            number(answer.log_start_offset),
            number(answer.earliest_local_offset),
            number(answer.latest_tiered_offset),
            number(answer.log_end_offset),
            number(answer.lag_offsets),
            size(answer.remote_bytes),
            _troubles(answer),
        )
        for answer, snapshot in partitions
    ]
    columns = ("partition", "log start", "first local", "last remote", "log end", "not copied", "remote", "trouble")
    strips = [(answer.partition, offsets_strip(root, snapshot)) for answer, snapshot in partitions]
    return page(
        "topic.html",
        root,
        topic,
        [],
        lag=lag,
        columns=columns,
        rows=rows,
        strips=strips,
        legend=LEGEND,
        following=following,
    )


def _troubles(answer: PartitionAnswer) -> str:
    found = {
        f"{answer.unfinished_deletions:,} unfinished deletions": answer.unfinished_deletions,
        f"{answer.unfinished_copies:,} unfinished copies": answer.unfinished_copies,
        f"being deleted: {answer.delete_state}": answer.delete_state,
        f"the local tier: {answer.local_problem}": answer.local_problem,
    }
    return "; ".join(text for text, is_so in found.items() if is_so)
