from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from httpx import Response

from support.command_line import mentions
from support.read_service_site import ReadServiceSite
from support.remote_logs import NOW, held_by, topic_id
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadataUpdate, SegmentState

Look = Callable[..., Response]
ORDERS = "/topics/orders/partitions/0"
VOID = {"meta", "link", "input", "br"}


LIFE = f"topic_id={topic_id('orders')}"
NO_RUN = "no run that copied"


class WellFormed(HTMLParser):
    """Holds every tag against the one that ends it, and collects what an element says of itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in {"href", "src", "action"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def shown(answer: Response, status: int = 200) -> WellFormed:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    found = WellFormed(answer.text)
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"]
    assert all(link.startswith(("/", "?", "#")) for link in found.links), found.links
    return found


def every_page(site: ReadServiceSite) -> list[str]:
    segment = site.segments()[0].segment_id.id
    return ["/", "/topics/orders", ORDERS, f"{ORDERS}/records", f"{ORDERS}/segments/{segment}", "/assets/style.css"]


def test_pages_lead_down_to_a_segment_and_its_records(own_site: ReadServiceSite, look: Look) -> None:
    topics = shown(look("/"))
    assert "/topics/orders" in topics.links
    partitions = shown(look("/topics/orders"))
    assert f"{ORDERS}?{LIFE}" in partitions.links
    partition = shown(look(f"{ORDERS}?{LIFE}"))
    segment = own_site.segments()[0].segment_id.id
    assert f"{ORDERS}/segments/{segment}?{LIFE}" in partition.links
    of_segment = look(f"{ORDERS}/segments/{segment}")
    shown(of_segment)
    assert f"{segment}.log" in of_segment.text
    records = look(f"{ORDERS}/records", params={"offset": 18})
    assert f"{ORDERS}/records?offset=35&{LIFE}" not in shown(records).links
    assert "value 18" in records.text
    assert "value 34" in records.text
    assert "value 17" not in records.text


def test_a_partition_shows_what_lies_where(look: Look) -> None:
    text = look(ORDERS).text
    for expected in (
        "remote only: offsets 0 to 19",
        "remote and local: offsets 20 to 29",
        "active segment: offsets 30 to 34",
    ):
        assert expected in text
    assert "5 offsets" in text
    assert "2023-11-14 22:13:29 UTC" in text
    for name in ("Copies", "Deletions"):
        assert f"{name}: none." in text


def test_by_time_every_place_is_shown_from_the_first_record_to_the_last(own_site: ReadServiceSite, look: Look) -> None:
    own_site.files.append(4)
    titles = re.findall(r"<title>([^:]*): ([0-9 :-]*) UTC to ([0-9 :-]*) UTC<", look(ORDERS).text)
    assert [(kind, begin[-5:], end[-5:]) for kind, begin, end in titles] == [
        ("remote only", "13:20", "13:39"),
        ("remote and local", "13:39", "13:49"),
        ("local, not copied yet", "13:49", "14:10"),
        ("local, active segment", "14:10", "14:14"),
    ]


def test_a_partition_whose_local_tier_is_hidden_is_shown_as_far_as_it_is_seen(
    own_site: ReadServiceSite, look: Look
) -> None:
    from tiered_storage.kafka_log.files.directory_lock import DirectoryLock

    with DirectoryLock.acquire(own_site.files.log_directory):
        shown(look(ORDERS))
        text = look(ORDERS).text
        peek = look(f"{ORDERS}/records", params={"offset": 28}).text
        answers = {offset: look(f"{ORDERS}/records", params={"offset": offset}) for offset in (30, 31)}
    assert "value 29" in peek
    assert "(LogDirectoryLocked)" in peek
    assert {offset: answer.status_code for offset, answer in answers.items()} == {30: 503, 31: 503}
    assert "(LogDirectoryLocked)" in text
    assert "remote only: offsets 0 to 29" in text
    assert "2023-11-14 22:13:49 UTC" in text


def test_each_life_of_a_topic_has_pages_of_its_own(own_site: ReadServiceSite, look: Look) -> None:
    first = own_site.segments()[0]
    earlier = replace(first.topic_id_partition, topic_id="A" * 21 + "Q")
    begun = replace(
        first, segment_id=RemoteLogSegmentId(earlier, "B" * 21 + "Q"), custom_metadata=None, fencing_number=1,
        state=SegmentState.COPY_SEGMENT_STARTED,
    )  # fmt: skip
    own_site.changed(
        lambda log: log.context.segments.add_remote_log_segment_metadata(begun, held_by(log, "any", earlier))
    )
    assert f"{ORDERS}?topic_id={earlier.topic_id}" in shown(look("/topics/orders")).links
    of_the_earlier_one = look(f"{ORDERS}?topic_id={earlier.topic_id}")
    assert f"/segments/{first.segment_id.id}" not in of_the_earlier_one.text
    page = shown(look(f"{ORDERS}/segments/{'B' * 21}Q?topic_id={earlier.topic_id}"))
    assert all(f"topic_id={earlier.topic_id}" in link for link in page.links if "/partitions/" in link)


def test_looking_for_a_run_takes_no_thread_of_others_and_comes_to_an_end(
    own_site: ReadServiceSite, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage_airflow.page import segment_page

    released = threading.Event()
    monkeypatch.setattr(segment_page, "SECONDS", 0.05)
    monkeypatch.setattr(segment_page, "_search", lambda *_: released.wait(30) and None)
    path = f"{ORDERS}/segments/{own_site.segments()[0].segment_id.id}"
    try:
        for _ in range(12):
            assert NO_RUN in look(path).text
        assert look(ORDERS).status_code == 200
    finally:
        released.set()


def test_copies_that_stand_still_and_failed_deletions_are_shown(own_site: ReadServiceSite, look: Look) -> None:
    first = own_site.segments()[0]

    def change(log: RemoteLogManager) -> None:
        lease = held_by(log, "somebody")
        step = RemoteLogSegmentMetadataUpdate(first.segment_id, SegmentState.DELETE_SEGMENT_STARTED, NOW)
        log.context.segments.update_remote_log_segment_metadata(step, lease)
        log.context.store.safety.note_failures({first.segment_id: "the store <refused> it"}, NOW)
        begun = RemoteLogSegmentId(first.topic_id_partition, "A" * 21 + "Q")
        metadata = replace(
            first, segment_id=begun, start_offset=30, end_offset=34, state=SegmentState.COPY_SEGMENT_STARTED,
            custom_metadata=None, fencing_number=lease.fencing_number, event_timestamp=NOW,
        )  # fmt: skip
        log.context.segments.add_remote_log_segment_metadata(metadata, lease)

    own_site.changed(change)
    answer = look(ORDERS)
    shown(answer)
    assert "stuck" in answer.text
    assert "the store &lt;refused&gt; it" in answer.text


def test_the_run_that_copied_a_segment_is_found_in_the_work_area(own_site: ReadServiceSite, look: Look) -> None:
    segment = own_site.segments()[0].segment_id.id
    path = f"{ORDERS}/segments/{segment}"
    assert NO_RUN in look(path).text
    folder = own_site.files.root / "state" / "work" / "runs" / "copy_segments_manual" / "1"
    folder.mkdir(parents=True)
    line = f'{{"metadata":{{"id":"{segment}"}},"lease":{{"owner":"copy_segments/manual__1"}}}}\n'
    (folder / "tasks-00000.jsonl").write_text("broken\n" + line)
    assert "/remote-log/dags/copy_segments/runs/manual__1" in shown(look(path)).links


def test_every_page_asks_for_a_login_and_for_rights(own_site: ReadServiceSite, look: Look) -> None:
    for path in every_page(own_site):
        assert look(path, "").status_code == 401
    for path in every_page(own_site)[1:-1]:
        assert look(path, "unauthorized").status_code == 404
        assert look(path.replace("orders", "payments")).status_code == 404
    assert "payments" not in look("/").text
    assert "orders" not in look("/", "unauthorized").text
    shown(look(f"{ORDERS}/records", "watcher"), 403)
    seen = look(ORDERS, "watcher")
    assert f"{ORDERS}/records" not in shown(seen).links
    assert "/data" not in look(every_page(own_site)[4], "watcher").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/%3Cscript%3E", 404),
        ("/topics/orders/partitions/99", 404),
        ("/topics/orders/partitions/x", 422),
        (f"{ORDERS}?start=-1", 422),
        (f"{ORDERS}/records?offset=99", 416),
        (f"{ORDERS}/segments/x", 422),
        (f"{ORDERS}/segments/{'A' * 22}", 404),
        ("/assets/..%2fapp.py", 404),
        ("/assets/app.py", 404),
        ("/nothing", 404),
    ],
)
def test_pages_that_cannot_be_shown_say_why(look: Look, path: str, status: int) -> None:
    answer = look(path)
    shown(answer, status)
    assert "<script>" not in answer.text.replace("<script src=", "")
    assert "Traceback" not in answer.text


def test_records_are_shown_as_text_and_never_as_html(own_site: ReadServiceSite, look: Look) -> None:
    from tiered_storage_airflow.page.base import page
    from tiered_storage_airflow.page.records_page import Shown, ShownRecord, shown

    assert shown(None) is None
    assert shown(b"") == Shown("")
    assert shown(b"\xff\x00") == Shown("ff 00")
    assert shown(b"a\nb\x1b[0m") == Shown("a·b·[0m")
    assert shown(b"x" * 5000) == Shown("x" * 300, 5000)
    assert shown("ä".encode() * 5000) == Shown("ä" * 300, 10_000)

    record = ShownRecord(7, 0, None, shown(b"<script>" + b"x" * 5000), [("<b>", shown(b"<i>"))])
    form = {"action": "/", "topic_id": "", "offset": 0}
    drawn = page("records.html", "/page", "Records", [], alarms=[], records_form=form, records=[record], more=None)
    assert "<em>null</em>" in drawn
    assert "<code>&lt;script&gt;xxx" in drawn
    assert "</code> … (5,008 bytes)" in drawn
    assert "&lt;b&gt;: <code>&lt;i&gt;</code>" in drawn


def test_assets_are_our_own_and_load_nothing(look: Look) -> None:
    style = look("/assets/style.css")
    assert style.headers["content-type"].startswith("text/css")
    assert not re.search(r"url\(|@import|https?:", style.text)
    assert look("/assets/theme.js").headers["content-type"].startswith("text/javascript")


def test_metrics_tell_pages_from_routes(own_site: ReadServiceSite, look: Look) -> None:
    look("/topics/orders")
    metrics = own_site.get("/metrics").text
    assert 'remote_log_requests_total{route="/page/topics/{topic}",status="200"} 1.0' in metrics
    assert 'remote_log_requests_total{route="/topics/{topic}"' not in metrics


UNAUTHORIZED_LINES = "<pre>users:\n  unauthorized:\n    describe: [&#39;*&#39;]\n</pre>"


def test_a_user_without_topics_sees_which_line_to_add(look: Look, own_site: ReadServiceSite) -> None:
    page = look("/", "unauthorized").text
    assert f"{own_site.rights} (read.service.rights.file)" in page
    assert mentions(page, "unauthorized", "VIEWER") and "<table" not in page
    assert UNAUTHORIZED_LINES in page
    assert "<pre>roles:\n  VIEWER:\n    describe: [&#39;*&#39;]\n</pre>" in page
    assert "orders" not in page
    own_site.rights.write_text("users: {unauthorized: {describe: ['*']}}")
    assert "orders" in look("/", "unauthorized").text


def test_a_broken_rights_file_is_reported_without_its_content(look: Look, own_site: ReadServiceSite) -> None:
    own_site.rights.write_text("users: {reader: {read: payments}}")
    page = look("/").text
    assert f"{own_site.rights} (read.service.rights.file) " in page
    assert "payments" not in page
    own_site.rights.unlink()
    assert "is missing or invalid" in look("/").text


def test_a_user_whose_rights_match_no_topic_sees_no_rows(look: Look, own_site: ReadServiceSite) -> None:
    own_site.rights.write_text("users: {reader: {read: [nothing]}}")
    page = look("/").text
    assert mentions(page, "no existing topic")
    assert "<pre>" not in page


def test_without_a_file_the_setting_is_named(logins: None, tmp_path: Path) -> None:
    from tiered_storage_airflow.page.topic_pages import Rights, topics_page

    page = topics_page("/page", [], Rights(None, True, "<b>&: x", frozenset(), False))
    assert "set read.service.rights.file" in page
    assert "&lt;b&gt;&amp;: x" in page
    assert "<b>" not in page
    [shown] = re.findall("<pre>(.*?)</pre>", page, re.DOTALL)
    assert yaml.safe_load(html.unescape(shown)) == {"users": {"<b>&: x": {"describe": ["*"]}}}
