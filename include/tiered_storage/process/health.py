"""Whether this process can serve clients: /health and /ready beside its metrics.

    /health     200: the process lives, and its event loop runs            503: the loop hangs; start it again
    /ready      200: its ports are open, and all that it needs answers     503: send clients elsewhere

A service that has neither clients nor ports has the same pages, with a loop of its own.

A thread of its own checks every ten seconds what the process needs, so that an outage holds up no client. An answer
counts for a minute, so that one slow answer takes no gateway out of service.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metrics.exporter import Page
from tiered_storage.remote_log.storage.listable_storage import as_listable

_log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 10.0
COUNTS_SECONDS: Final = 60.0
"""For how long an answer counts."""
HANGS_SECONDS: Final = 30.0
"""A loop that has not run for so long hangs."""
Ask = Callable[[], object]


class Health:
    """The health of one process. Thread-safe."""

    def __init__(
        self,
        needs: Mapping[str, Ask],
        now: Callable[[], float] = time.monotonic,
        *,
        not_serving: tuple[str, str] = ("ports", "closed: the gateway is starting or stopping"),
        loop: str = "the event loop",
    ) -> None:
        """Ask each of `needs` by its name; it raises an error if it cannot be reached. `now` is in seconds.

        `not_serving` is the problem, and its name, that /ready reports before and after the process serves; `loop` is
        what /health reports as hung.
        """
        self._not_serving = not_serving
        self._loop = loop
        self._needs = needs
        self._now = now
        self._answered: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._beat = now()
        self._stop = threading.Event()
        self.is_serving = False
        """Whether the ports are open, and the process is not about to end."""

    def beat(self) -> None:
        """Note that the loop runs."""
        self._beat = self._now()

    def start(self) -> None:
        """Check every ten seconds, until `stop`."""
        threading.Thread(target=self._run, name="health", daemon=True).start()

    def stop(self) -> None:
        """Stop checking. A check that waits for an answer may still be running."""
        self._stop.set()

    def check(self) -> None:
        """Check once everything that the process needs."""
        for name, ask in self._needs.items():
            try:
                ask()
            except Exception as error:  # noqa: BLE001 - whatever it is, the process is not ready
                if self._stop.is_set():
                    return
                if name not in self._failures:
                    _log.warning("%s cannot be reached: %s", name, error)
                self._failures[name] = str(error)
            else:
                self._answered[name] = self._now()
                self._failures.pop(name, None)

    def health(self) -> Page:
        """Return the page /health."""
        seconds = self._now() - self._beat
        is_alive = seconds < HANGS_SECONDS or not self.is_serving
        return _page(is_alive, {"status": "alive" if is_alive else f"{self._loop} has hung for {seconds:.0f} seconds"})

    def ready(self) -> Page:
        """Return the page /ready, which names what is missing."""
        problems = {} if self.is_serving else dict([self._not_serving])
        now = self._now()
        for name in self._needs:
            answered = self._answered.get(name)
            if answered is None or now - answered > COUNTS_SECONDS:
                since = "yet" if answered is None else f"for {now - answered:.0f} seconds"
                problems[name] = self._failures.get(name, f"no answer {since}")
        return _page(not problems, {"status": "not ready" if problems else "ready", "problems": problems})

    def _run(self) -> None:
        while True:
            self.check()
            if self._stop.wait(EVERY_SECONDS):
                return


def needs_of(context: RemoteLogContext) -> dict[str, Ask]:
    """Return what asks for the metadata and the store, by their names."""
    needs: dict[str, Ask] = {"metadata": context.store.generation.read}
    storage = as_listable(context.storage)
    if storage is not None:
        needs["store"] = storage.read_identity
    return needs


def _page(is_good: bool, content: dict[str, Any]) -> Page:
    return Page(HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE, json.dumps(content) + "\n")
