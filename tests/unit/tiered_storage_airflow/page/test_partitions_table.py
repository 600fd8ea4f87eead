"""The table of all partitions: sorted, filtered and in pages on the server, also of 10,000 partitions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from httpx import Response

from support.command_line import mentions
from support.read_service_site import ReadServiceSite
from tiered_storage.remote_log.metrics.partition_metrics import CopyLag, RemoteLogMetrics
from tiered_storage.remote_log.metrics.snapshot import take_metrics
from tiered_storage.remote_log.metrics.stored import LagPoint, keep_metrics
from tiered_storage_airflow.page.partitions_table import (
    ROWS,
    SortedBy,
    Wanted,
    chosen_partitions,
    partitions_page,
)
from tiered_storage_airflow.page.topic_pages import TopicLagShown
from tiered_storage_airflow.rendering import number, size, span
from unit.built_metrics import TAKEN_AT, many, partition_metrics

Look = Callable[..., Response]
MANY = 10_000
METRICS = many(MANY)


def everything(_: str) -> bool:
    return True


def lags(metrics: RemoteLogMetrics, wanted: Wanted) -> list[int]:
    return [each.lag.size for each in chosen_partitions(metrics, wanted, everything) if each.lag]


def rows_of(page: str) -> list[str]:
    return re.findall(r"<tr><td[^>]*>(?:<a[^>]*>)?([^<]*)", page)


def marked_cell(page: str) -> str:
    """Return what the first row has under the heading that the table is sorted by."""
    headings = re.findall(r"<th [^>]*>(?:<a[^>]*>)?([^<]*)", page)
    [marked] = (at for at, heading in enumerate(headings) if heading[-1] in "▾▴")
    first = page.partition("<tbody>")[2].partition("</tr>")[0]
    cells: list[str] = re.findall(r"<td[^>]*>(?:<a[^>]*>)?([^<]*)", first)
    return cells[marked]


def keep(site: ReadServiceSite, metrics: RemoteLogMetrics | None = None) -> None:
    site.changed(lambda log: keep_metrics(log.context.work, metrics or take_metrics(log.context)))


def test_ten_thousand_partitions_come_in_pages_that_lead_to_one_another() -> None:
    first = partitions_page("/root", METRICS, Wanted(sort=SortedBy.SEGMENTS), everything)
    last = partitions_page("/root", METRICS, Wanted(sort=SortedBy.SEGMENTS, start=MANY - ROWS), everything)
    assert rows_of(first) == [f"topic-{at % 10}-{at // 10}" for at in range(MANY - 1, MANY - 1 - ROWS, -1)]
    assert rows_of(last)[-1] == "topic-0-0"
    assert f"1 to {ROWS} of 10,000." in first
    assert f"start={ROWS}" in first
    assert "The next ones" in first
    assert "The previous ones" not in first
    assert "9,951 to 10,000 of 10,000." in last
    assert "The next ones" not in last
    assert f"start={MANY - 2 * ROWS}" in last
    assert len(first) < 40_000


def test_a_page_after_the_end_is_empty_and_leads_back() -> None:
    page = partitions_page("/root", METRICS, Wanted(start=MANY + 500), everything)
    assert rows_of(page) == []
    assert "The previous ones" in page


LEAST_AND_MOST = {
    SortedBy.PARTITION: ("topic-0-0", "topic-9-999"),
    SortedBy.SEGMENTS: (number(0), number(MANY - 1)),
    SortedBy.LAG: (size(0), size((MANY - 1) * 1000)),
    SortedBy.AGE: (span(0), span((MANY - 1) * 60_000)),
    SortedBy.TAIL: (size(0), size((MANY - 1) * 2000)),
    SortedBy.REMOTE: (size(0), size((MANY - 1) * 10)),
    SortedBy.TROUBLE: ("", "1 stuck copies; 2 failed deletions"),
}


@pytest.mark.parametrize("column", list(SortedBy))
@pytest.mark.parametrize("descending", [True, False])
def test_each_column_sorts_all_partitions_by_what_it_shows_both_ways(column: SortedBy, descending: bool) -> None:
    *others, one, two = METRICS.partitions
    stuck = replace(one, segments=replace(one.segments, stuck=3))
    worst = replace(two, segments=replace(two.segments, stuck=1, failed_deletions=2))
    metrics = replace(METRICS, partitions=(*others, stuck, worst))

    found = chosen_partitions(metrics, Wanted(sort=column, descending=descending), everything)
    assert len({each.partition for each in found}) == MANY
    page = partitions_page("/root", metrics, Wanted(sort=column, descending=descending), everything)
    assert marked_cell(page) == LEAST_AND_MOST[column][descending]
    turned = chosen_partitions(metrics, Wanted(sort=column, descending=not descending), everything)
    if column is not SortedBy.TROUBLE:
        assert [each.partition for each in found] == [each.partition for each in reversed(turned)]


def test_the_largest_lag_is_first_unless_asked_otherwise() -> None:
    assert lags(METRICS, Wanted()) == [1000 * at for at in reversed(range(MANY))]
    assert lags(METRICS, Wanted(descending=False))[0] == 0


def test_a_topic_is_found_by_a_part_of_its_name_in_any_case() -> None:
    found = chosen_partitions(METRICS, Wanted(topic="PIC-3"), everything)
    assert len(found) == MANY / 10
    assert {each.partition.topic for each in found} == {"topic-3"}


def test_only_partitions_in_trouble_are_shown_if_asked_for() -> None:
    stuck = replace(METRICS.partitions[0], segments=replace(METRICS.partitions[0].segments, stuck=1))
    metrics = replace(METRICS, partitions=(stuck, *METRICS.partitions[1:]))
    assert chosen_partitions(metrics, Wanted(only_trouble=True), everything) == [stuck]
    assert "1 stuck copies" in partitions_page("/root", metrics, Wanted(only_trouble=True), everything)


def test_a_topic_that_the_visitor_may_not_see_is_neither_shown_nor_counted() -> None:
    page = partitions_page("/root", METRICS, Wanted(), lambda topic: topic != "topic-9")
    assert "topic-9" not in page
    assert "of 9,000." in page


def test_unknown_values_are_empty_or_named_as_unknown() -> None:
    unseen, unknown = partition_metrics("orders", 0, remote=1), partition_metrics("orders", 1, CopyLag(1, 7, None))
    page = partitions_page("/root", RemoteLogMetrics(TAKEN_AT, 1, (unseen, unknown), "held"), Wanted(), everything)
    not_read = replace(partition_metrics("orders", 2), is_lag_unknown=True, tail_size=None)
    assert (
        partitions_page("/root", RemoteLogMetrics(TAKEN_AT, 1, (not_read,)), Wanted(), everything).count("not known")
        == 4
    )
    assert "not known" in page
    assert '<p class="alarm" role="alert">held</p>' in page
    assert rows_of(page) == ["orders-1", "orders-0"]


def test_headings_sort_and_the_present_one_turns_the_order_around() -> None:
    page = partitions_page("/root", METRICS, Wanted(topic="pic", start=50), everything)
    links = re.findall(r'<a href="(\?[^"]*)">([^<]*)</a></th>', page)
    queries = {text: link.replace("&amp;", "&") for link, text in links}
    assert queries["its size ▾"] == "?topic=pic&sort=lag&descending=false&only_trouble=false&start=0"
    assert queries["partition"] == "?topic=pic&sort=partition&descending=false&only_trouble=false&start=0"
    assert queries["remote"] == "?topic=pic&sort=remote&descending=true&only_trouble=false&start=0"


def test_without_metrics_the_page_says_how_to_get_some(look: Look) -> None:
    answer = look("/partitions")
    assert answer.status_code == 200
    assert "watch_remote_log" in answer.text


def test_the_page_shows_the_kept_metrics_of_the_topics_that_the_user_may_see(
    own_site: ReadServiceSite, look: Look
) -> None:
    own_site.files.append(4)
    keep(own_site)
    page = look("/partitions").text
    assert rows_of(page) == ["orders-0"]
    assert "payments" not in page
    assert "1 to 1 of 1." in page
    assert rows_of(look("/partitions", params={"topic": "nothing"}).text) == []
    assert "/partitions" in look("/").text


def test_ten_thousand_kept_partitions_are_served(own_site: ReadServiceSite, look: Look) -> None:
    metrics = many(MANY, topics=1)
    orders = tuple(replace(each, partition=replace(each.partition, topic="orders")) for each in metrics.partitions)
    keep(own_site, replace(metrics, partitions=orders))
    page = look("/partitions", params={"sort": "partition", "descending": "false", "start": "5000"}).text
    assert rows_of(page) == [f"orders-{number}" for number in range(5_000, 5_000 + ROWS)]
    assert "5,001 to 5,050 of 10,000." in page


def test_an_invalid_query_is_refused(look: Look) -> None:
    assert look("/partitions", params={"sort": "nothing"}).status_code == 422
    assert look("/partitions", params={"start": "-1"}).status_code == 422


def test_a_topics_page_shows_its_lag_over_the_last_day(own_site: ReadServiceSite, look: Look) -> None:
    assert "over the last day" not in look("/topics/orders").text
    # The site's local log was trimmed by hand, without the checkpoint that a trim writes.
    (own_site.files.log_directory / "log-start-offset-checkpoint").write_text("0\n1\norders 0 20\n")
    keep(own_site)
    own_site.files.clock.now += 300_000
    own_site.files.append(4)
    keep(own_site)
    own_site.service.close()
    page = look("/topics/orders").text
    assert "not copied, over the last day" in page
    bars = re.findall(r'<rect class="bar"[^>]*><title>([^<]*)</title>', page)
    assert [bar.partition(": ")[2].partition(", ")[2] for bar in bars] == ["0 segments", "2 segments"]
    assert "closed and not copied" in page


def test_a_topics_page_draws_a_lag_that_was_not_known_as_unknown() -> None:
    unread = replace(partition_metrics("orders", 0), is_lag_unknown=True, tail_size=None)
    lagging = partition_metrics("orders", 0, CopyLag(1, 50, 0))
    metrics = RemoteLogMetrics(TAKEN_AT, 1, (unread,))
    history = [LagPoint.of(replace(metrics, partitions=(each,))) for each in (unread, lagging)]
    for points, heights in ((history, [120, 120]), (history[:1], [120])):
        shown = TopicLagShown.of("orders", metrics, points)
        assert shown.over_time is not None
        drawn = [(bar.is_known, "not known" in bar.title, bar.height) for bar in shown.over_time.bars]
        assert drawn == [(known, not known, height) for known, height in zip((False, True), heights, strict=False)]
        assert dict(shown.now or ())["closed and not copied"] == "not known"


def test_a_topics_page_names_what_is_wrong(own_site: ReadServiceSite, look: Look) -> None:
    checkpoint = own_site.files.log_directory / "replication-offset-checkpoint"
    checkpoint.write_text("0\n2\norders 0 25\npayments 0 15\n")
    keep(own_site)
    assert mentions(look("/topics/orders").text, "orders-0: ", "Ly &gt;= Ry")


def test_metrics_that_cannot_be_read_leave_the_rest_of_a_topics_page(own_site: ReadServiceSite, look: Look) -> None:
    keep(own_site)
    [path] = own_site.files.root.rglob("latest.jsonl")
    path.write_bytes(b"nonsense\n")
    page = look("/topics/orders").text
    assert "Metrics cannot be read" in page
    assert "remote only: offsets 0 to 19" in page
