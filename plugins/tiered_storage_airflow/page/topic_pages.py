"""The pages above the partitions: all topics that somebody may see, and the partitions of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tiered_storage.remote_log.read.partition_view import PartitionView
from tiered_storage.settings.read_rights import Right
from tiered_storage_airflow.page import html
from tiered_storage_airflow.page.html import of_partition, of_topic
from tiered_storage_airflow.page.partition_page import offsets_strip
from tiered_storage_airflow.read_service.routes.schemas import PartitionAnswer, TopicAnswer

_NUMBERS = frozenset({1, 2, 3, 4, 5, 6})


@dataclass(frozen=True, slots=True)
class Rights:
    """Where rights come from, and whether `user`, who has `roles`, has any: what to tell who sees no topic.

    `file` is None where the settings name none; it `is_broken` where nobody has a right because it cannot be read.
    """

    file: Path | None
    is_broken: bool
    user: str
    roles: frozenset[str]
    has_any: bool


def topics_page(root: str, topics: Sequence[TopicAnswer], rights: Rights) -> str:
    """Return the page of all topics that somebody may see; where there is none, of why, and of what to do."""
    rows = [
        (
            html.link(of_topic(root, each.topic), each.topic),
            html.number(len(each.partitions)),
            "read" if each.may_read else "see",
            html.escape(each.topic_id),
        )
        for each in topics
    ]
    if not rows:
        return html.page(root, "Remote Log", [], _why_none(rights))
    shown = html.table("Topics", ("topic", "partitions", "you may", "topic id"), rows, frozenset({1}))
    return html.page(root, "Remote Log", [], shown)


def _why_none(rights: Rights) -> str:
    told = "<p>There is no topic that you may see.</p>"
    if rights.has_any:
        why = "Your rights fit no topic that is there: tiered-storage topics list shows all, on the command line."
        return f"{told}<p>{html.escape(why)}</p>"
    if rights.file is None:
        why = "No file gives rights: set read.service.rights.file to one with these lines, and restart the API server."
    elif rights.is_broken:
        why = (
            f"Nobody has any right, as {rights.file} (read.service.rights.file) is missing or broken: the API server's "
            "log and tiered-storage doctor say why. One of these would do."
        )
    else:
        why = f"{rights.file} (read.service.rights.file) gives you no right: add one of these, which count at once."
    named = f"You are logged in as {rights.user}, with {_listed('role', sorted(rights.roles))}. "
    lines = {"users": {rights.user: {Right.DESCRIBE.value: ["*"]}}}
    if rights.roles:
        lines["roles"] = {role: {Right.DESCRIBE.value: ["*"]} for role in sorted(rights.roles)}
    shown = "".join(
        f"<pre>{html.escape(yaml.safe_dump({kind: grants}, default_flow_style=None))}</pre>"
        for kind, grants in lines.items()
    )
    either = "The first is for you alone, the second for all who have the role. " if rights.roles else ""
    more = "With read in place of describe they show records too. docs/read-service.md has more."
    return f"{told}<p>{html.escape(named + why)}</p>{shown}<p>{either}{more}</p>"


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return f"no {what}"
    return f"the {what} {names[0]}" if len(names) == 1 else f"the {what}s {', '.join(names)}"


def topic_page(
    root: str, topic: str, partitions: Sequence[tuple[PartitionAnswer, PartitionView]], following: int | None
) -> str:
    """Return the page of some partitions of a topic; `following` is the number that comes next."""
    rows = [
        (
            html.link(of_partition(root, view.partition), str(answer.partition)),
            html.number(answer.log_start_offset),
            html.number(answer.earliest_local_offset),
            html.number(answer.latest_tiered_offset),
            html.number(answer.log_end_offset),
            html.number(answer.lag_offsets),
            html.size(answer.remote_bytes),
            _troubles(answer),
        )
        for answer, view in partitions
    ]
    columns = ("partition", "log start", "first local", "last remote", "log end", "not copied", "remote", "trouble")
    strips = "".join(f"<h2>Partition {answer.partition}</h2>{offsets_strip(root, view)}" for answer, view in partitions)
    more = "" if following is None else f"<p>{html.link(f'?start={following}', 'The next ones')}</p>"
    content = html.table("Partitions", columns, rows, _NUMBERS) + more + html.legend() + strips
    return html.page(root, topic, [], content)


def _troubles(answer: PartitionAnswer) -> str:
    told = {
        f"{answer.unfinished_deletions:,} deletions have not ended": answer.unfinished_deletions,
        f"{answer.unfinished_copies:,} copies have not ended": answer.unfinished_copies,
        f"being deleted: {answer.delete_state}": answer.delete_state,
        f"the local tier: {answer.local_problem}": answer.local_problem,
    }
    return html.escape("; ".join(text for text, is_so in told.items() if is_so))
