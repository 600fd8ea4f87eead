"""The pages above the partitions: all topics that somebody may see, and the partitions of one."""

from __future__ import annotations

from collections.abc import Sequence

from tiered_storage.remote_log.reading.partition_view import PartitionView
from tiered_storage_airflow.page import html
from tiered_storage_airflow.page.addresses import of_partition, of_topic
from tiered_storage_airflow.page.partition_page import offsets_strip
from tiered_storage_airflow.read_service.answers import PartitionAnswer, TopicAnswer

_NUMBERS = frozenset({1, 2, 3, 4, 5, 6})


def topics_page(root: str, topics: Sequence[TopicAnswer]) -> str:
    """Return the page of all topics."""
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
        told = "<p>There is no topic that you may see. Rights are given in a file: docs/read-service.md tells how.</p>"
        return html.page(root, "Remote Log", [], told)
    shown = html.table("Topics", ("topic", "partitions", "you may", "topic id"), rows, frozenset({1}))
    return html.page(root, "Remote Log", [], shown)


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
