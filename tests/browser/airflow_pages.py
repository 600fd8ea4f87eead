"""Airflow's pages in a real browser: what a person clicks, and the pictures of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Locator, Page, expect, sync_playwright

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_WIDTH = 1280
_HEIGHT = 800
_PATIENCE_MS = 30_000
_SETTLED_MS = 1_500
_PRESSES = 4


def find_chromium() -> str:
    """Return the path of the browser. Raises FileNotFoundError, with the line to paste, where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise FileNotFoundError(
            "no chromium is on the PATH, which these pages need; paste: "
            "sudo apt-get update && sudo apt-get install -y chromium"
        )
    return found


@dataclass(frozen=True, slots=True)
class AirflowPages:
    """Airflow at `url`, with somebody logged in; pictures go into the folder `pictures` as PNG."""

    page: Page
    url: str
    pictures: Path

    def picture(self, name: str, *, width: int = _WIDTH, height: int = _HEIGHT) -> None:
        """Keep what the browser shows now, in a window of so many pixels."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.mouse.move(0, 0)
        self.page.wait_for_timeout(_SETTLED_MS)
        self.page.screenshot(path=self.pictures / f"{name}.png", animations="disabled")

    def open_dags(self) -> None:
        """Go to the list of DAGs, a line each."""
        self.page.goto(f"{self.url}/dags")
        self.page.get_by_role("button", name="Show table view").click()
        expect(self.page.get_by_role("link", name="copy_segments", exact=True)).to_be_visible()

    def open_runs(self, dag_id: str) -> None:
        """Go to the runs of a DAG."""
        self.page.goto(f"{self.url}/dags/{dag_id}/runs")
        self._show_grid()
        expect(self.page.get_by_text("Dag Run ID")).to_be_visible()

    def open_run(self, dag_id: str, run_id: str) -> None:
        """Go to one run of a DAG, the grid of the latest ones beside it."""
        self.page.goto(self._run_url(dag_id, run_id))
        self._show_grid()
        expect(self.page.get_by_text("Task Instances", exact=True).first).to_be_visible()

    def open_graph(self, dag_id: str, run_id: str) -> None:
        """Go to the graph of one run of a DAG."""
        self.open_run(dag_id, run_id)
        self.page.get_by_role("button", name="Show Graph").click()
        expect(self.page.get_by_test_id("rf__wrapper")).to_be_visible()

    def open_mapped(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Go to the list of a mapped task's instances."""
        self.page.goto(f"{self._run_url(dag_id, run_id)}/tasks/{task_id}/mapped")
        self._show_grid()
        expect(self.page.get_by_text("Map Index")).to_be_visible()

    def open_log(self, dag_id: str, run_id: str, task_id: str, words: str, map_index: int = -1) -> None:
        """Go to the log of a task, and wait until it shows `words`."""
        mapped = "" if map_index < 0 else f"/mapped/{map_index}"
        self.page.goto(f"{self._run_url(dag_id, run_id)}/tasks/{task_id}{mapped}")
        self._show_grid()
        expect(self.page.get_by_text(words).first).to_be_visible()

    def show_lines_of(self, source: str) -> None:
        """Leave only those lines of the log that is shown which come from the logger whose name ends with `source`."""
        self.page.get_by_role("combobox").filter(has_text="All Sources").click()
        self.page.get_by_role("option").filter(has_text=re.compile(rf"{re.escape(source)}$")).click()
        self.page.keyboard.press("Escape")

    def fold_errors(self, words: str) -> None:
        """Wrap the lines of the log that is shown, and close the traceback below each message with `words`."""
        if self.page.evaluate("localStorage.getItem('log_wrap')") != "true":
            self.page.keyboard.press("w")
        for message in self.page.locator("details[open] > summary").filter(has_text=words).all()[::-1]:
            message.click()

    def open_report(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Go to a task and from there, by its link, to the report of its run."""
        self.page.goto(f"{self._run_url(dag_id, run_id)}/tasks/{task_id}/details")
        link = self.page.get_by_role("link", name="Report", exact=True)
        expect(link).to_be_visible()
        target = link.get_attribute("href") or ""
        self.page.goto(target if target.startswith("http") else f"{self.url}{target}")
        expect(self.page.get_by_text("Files of the run")).to_be_visible()

    def fill_connection_form(self, connection_type: str, fields: Mapping[str, str]) -> None:
        """Open the form for a new connection of the type of that name, and fill its own fields in."""
        self.page.goto(f"{self.url}/connections")
        self.page.get_by_role("button", name="Add Connection").click()
        dialog = self.page.get_by_role("dialog")
        dialog.locator("input[name=connection_id]").fill("remote_storage_elsewhere")
        dialog.get_by_role("combobox").click()
        self.page.keyboard.type(connection_type)
        self.page.get_by_role("option", name=connection_type, exact=True).click()
        dialog.get_by_text("Extra Fields", exact=True).click()
        for name, value in fields.items():
            field = dialog.locator(f"[name=element_{name}]")
            field.fill(value)
            expect(field).to_have_value(value)

    def fill_trigger_form(self, dag_id: str, words: Mapping[str, str] = {}, switches: Collection[str] = ()) -> Locator:
        """Open the form for a single run, fill fields in and press switches; return the button that starts the run."""
        self._open_form(dag_id)
        for name, text in words.items():
            field = self.page.locator(f"[name=element_{name}]")
            field.fill(text)
            expect(field).to_have_value(text)
        for name in switches:
            self.page.locator(f"[id='switch:element_{name}']").click()
        self.page.get_by_text("Trigger a single run of this Dag").scroll_into_view_if_needed()
        return self.page.get_by_test_id("trigger-dag-submit")

    def fill_backfill_form(self, dag_id: str, first: datetime, last: datetime, behavior: str, runs: int) -> Locator:
        """Open the form for a backfill from `first` to `last` and fill it in; return the button that starts it.

        `behavior` is one of the form's: Missing Runs, Missing and Errored Runs, All Runs. Waits until the form says
        that it is going to start so many `runs`.
        """
        self._open_form(dag_id)
        self.page.get_by_text("Run this Dag for a range of dates").click()
        for number, moment in enumerate((first, last)):
            self._fill_moment(self.page.get_by_test_id("datetime-input").nth(number), moment)
        self.page.get_by_text(behavior, exact=True).click()
        expect(self.page.get_by_text(f"{runs} runs will be triggered")).to_be_visible()
        return self.page.get_by_role("button", name="Run Backfill")

    def name_run(self, run_id: str) -> None:
        """Give the run in the open form an id of its own."""
        self.page.get_by_role("button", name="Advanced Options").click()
        self.page.locator("input[name=dagRunId]").fill(run_id)

    def submit(self, button: Locator) -> None:
        """Press a form's button and leave the page once Airflow accepted it: an open form keeps sending requests.

        On SQLite Airflow refuses a form while another part of it writes; a person presses again, and so does this.
        """
        for _ in range(_PRESSES):
            button.click()
            with suppress(AssertionError):
                expect(button).to_be_hidden()
                break
        else:
            raise AssertionError(f"Airflow does not take the form: {self.page.get_by_role('alert').all_inner_texts()}")
        self.page.goto("about:blank")

    def _open_form(self, dag_id: str) -> None:
        self.page.goto(f"{self.url}/dags/{dag_id}")
        self.page.set_viewport_size({"width": _WIDTH, "height": 1200})
        self._show_grid()
        self.page.get_by_role("button", name="Trigger Dag").click()
        expect(self.page.get_by_text("Trigger a single run of this Dag")).to_be_visible()

    def _fill_moment(self, field: Locator, moment: datetime) -> None:
        field.click()
        date, time = (self.page.locator(f"input[placeholder='{each}']:visible") for each in ("YYYY/MM/DD", "HH:mm"))
        date.fill(f"{moment:%Y/%m/%d}")
        date.press("Enter")
        time.fill(f"{moment:%H:%M}")
        time.press("Enter")
        self.page.get_by_text("Date Range").click()
        expect(date).to_have_count(0)
        expect(field).to_contain_text(f"{moment:%H:%M}")

    def _show_grid(self) -> None:
        """Airflow remembers whether the graph or the grid was shown last."""
        grid = self.page.get_by_test_id("grid-view-button")
        expect(grid).to_be_visible()
        grid.click()

    def _run_url(self, dag_id: str, run_id: str) -> str:
        return f"{self.url}/dags/{dag_id}/runs/{quote(run_id, safe='')}"


@contextmanager
def logged_in(url: str, username: str, password: str, pictures: Path) -> Iterator[AirflowPages]:
    """Open a browser and log in by the form."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(_ARGUMENTS))
        try:
            context = browser.new_context(
                viewport={"width": _WIDTH, "height": _HEIGHT},
                color_scheme="light",
                locale="en-GB",
                timezone_id="UTC",
            )
            context.set_default_timeout(_PATIENCE_MS)
            expect.set_options(timeout=_PATIENCE_MS)
            page = context.new_page()
            page.goto(url)
            page.locator("input[name=username]").fill(username)
            page.locator("input[name=password]").fill(password)
            page.locator("button[type=submit]").click()
            page.wait_for_url(f"{url}/")
            yield AirflowPages(page, url, pictures)
        finally:
            browser.close()
