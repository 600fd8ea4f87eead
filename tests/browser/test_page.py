"""The page in a real browser: by keyboard, on a narrow screen, in light and dark, with nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from browser.airflow_pages import find_chromium
from support import airflow_home
from support.read_service_site import ReadServiceSite, prepare_logins, served, token

assert airflow_home.HOME.is_dir()
pytestmark = pytest.mark.nightly
PARTITION = "/topics/orders/partitions/0"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the pages are."""
    prepare_logins()
    with ReadServiceSite.open(tmp_path_factory.mktemp("site")) as site, served(site) as url:
        yield f"{url}/remote-log/page"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Browser, address: str, path: str = "/", name: str = "reader", **options: Any) -> Iterator[Page]:
    """Open a page as a user; nothing may come from elsewhere, and no rule of the page may be broken."""
    context = browser.new_context(**options)
    context.add_cookies([{"name": "_token", "value": token(name), "url": address}])
    page = context.new_page()
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address + path)
    yield page
    server = address.removesuffix("/remote-log/page")
    assert [url for url in requested if not url.startswith(server)] == []
    assert [each for each in complaints if "favicon" not in each and "404" not in each] == []
    context.close()


def test_the_keyboard_alone_leads_down_to_a_record(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="To the content")).to_be_focused()
        page.get_by_role("link", name="orders").focus()
        page.keyboard.press("Enter")
        page.get_by_role("link", name="0", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("orders-0")
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.getAttribute('name')") == "offset":
                break
        page.keyboard.type("18")
        page.keyboard.press("Enter")
        expect(page.get_by_role("cell", name="value 18")).to_be_visible()
        expect(page.get_by_role("cell", name="value 17")).to_have_count(0)


def test_the_parts_of_a_strip_say_what_they_are_and_lead_to_their_segments(browser: Browser, address: str) -> None:
    with opened(browser, address, PARTITION) as page:
        strip = page.get_by_role("group", name="By offset")
        for label in ("remote only: offsets 0 to 19", "remote and local: offsets 20 to 29", "offsets 30 to 34"):
            expect(strip.get_by_role("link", name=label)).to_be_visible()
        strip.get_by_role("link", name="remote and local").click()
        expect(page.get_by_role("heading", name="Remote segments from offset 20 on")).to_be_visible()
        page.get_by_role("link", name="20 to 29", exact=True).click()
        expect(page.get_by_role("heading", name="Objects")).to_be_visible()
        page.get_by_role("link", name="remote-log-index").click()
        assert '"first_offset"' in page.content()


@pytest.mark.parametrize("path", ["/", "/topics/orders", PARTITION, f"{PARTITION}/records"])
def test_a_narrow_screen_is_wide_enough(browser: Browser, address: str, path: str) -> None:
    with opened(browser, address, path, viewport={"width": 340, "height": 640}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 340


def test_the_colour_scheme_follows_airflow_or_else_the_system(browser: Browser, address: str) -> None:
    def background(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with opened(browser, address, PARTITION, color_scheme="light") as page:
        light = background(page)
        page.evaluate("localStorage.setItem('theme', 'dark')")
        page.reload()
        dark = background(page)
    with opened(browser, address, PARTITION, color_scheme="dark") as page:
        assert background(page) == dark
        page.evaluate("localStorage.setItem('theme', 'light')")
        page.reload()
        assert background(page) == light
    assert light == "rgb(255, 255, 255)"
    assert dark != light


def test_topics_without_a_right_to_see_them_are_not_found(browser: Browser, address: str) -> None:
    with opened(browser, address, name="unauthorized") as page:
        expect(page.get_by_text("There is no topic that you may see.")).to_be_visible()
    with opened(browser, address, PARTITION, name="watcher") as page:
        expect(page.get_by_text("not read its records")).to_be_visible()
    with opened(browser, address, PARTITION, name="unauthorized") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("404: NotFound")


def test_pictures_of_it_can_be_taken(browser: Browser, address: str, tmp_path: Path) -> None:
    with opened(browser, address, PARTITION, viewport={"width": 1280, "height": 900}) as page:
        page.screenshot(path=tmp_path / "partition.png", animations="disabled")
    assert 5_000 < (tmp_path / "partition.png").stat().st_size < 200_000
