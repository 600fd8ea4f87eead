"""Our own page in Airflow's menu: a partition's tiers, down to a segment; light, dark and narrow."""

from __future__ import annotations

from playwright.sync_api import FrameLocator, Page, expect

from browser.stage import COPY, Stage
from tiered_storage.kafka_log.files.log_segment import list_segments

NARROW = 390
_PARTITION = "/remote-log/page/topics/orders/partitions/0"


def remote_log_page(stage: Stage) -> None:
    """Go from Airflow's menu down to a segment of orders-0, whose first segments are not local any more."""
    for segment in list_segments(stage.log_directory / "orders-0")[:3]:
        for path in segment.log_path.parent.glob(f"{segment.log_path.stem}.*"):
            path.unlink()
    page = stage.pages.page
    page.goto(f"{stage.pages.url}/plugin/remote_log")
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="orders", exact=True).click()
    frame.get_by_role("link", name="0", exact=True).click()
    _expect_heading(frame, "orders-0")
    expect(frame.get_by_role("group", name="By time").get_by_role("link").first).to_be_visible()
    stage.pages.picture("remote-log-page", height=1000)
    frame.locator("#segments ~ .scroll").get_by_role("link").first.click()
    expect(frame.get_by_text("Copied by")).to_be_visible()
    expect(
        frame.get_by_role("link", name="by_hand").or_(frame.get_by_role("link", name="backfill")).first
    ).to_be_visible()
    stage.pages.picture("remote-log-segment", height=1100)
    page.goto(stage.pages.url + _PARTITION)
    _expect_heading(page, "orders-0")
    stage.pages.picture("remote-log-page-narrow", width=NARROW, height=1000)
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    stage.pages.picture("remote-log-page-dark", height=1000)
    page.evaluate("localStorage.setItem('theme', 'light')")


def remote_log_page_alone(stage: Stage) -> None:
    """The same after a single run that copies everything."""
    stage.api.unpause(COPY)
    stage.run_by_form(COPY, stage.pages.fill_trigger_form(COPY), "by_hand")
    remote_log_page(stage)


def _expect_heading(shown: FrameLocator | Page, text: str) -> None:
    expect(shown.get_by_role("heading", level=1)).to_have_text(text)
