from __future__ import annotations

import resource
from resource import RLIM_INFINITY

import pytest

from tiered_storage.gateway.workers import allow_open_files


@pytest.mark.parametrize(
    ("limits", "changed", "is_enough"),
    [
        ((1_024, 20_000), [(2_200, 20_000)], True),
        ((1_024, RLIM_INFINITY), [(2_200, RLIM_INFINITY)], True),
        ((1_024, 1_500), [(1_500, 1_500)], False),
        ((1_024, 1_024), [], False),
        ((20_000, 20_000), [], True),
        ((RLIM_INFINITY, RLIM_INFINITY), [], True),
    ],
)
def test_a_process_may_open_what_its_connections_need(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    changed: list[tuple[int, int]],
    is_enough: bool,
) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: seen.append(to))

    allow_open_files(1_000, 2)

    assert seen == changed
    assert (not caplog.records) == is_enough
    assert is_enough or "gateway.max.connections" in caplog.text
