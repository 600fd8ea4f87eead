"""Limits of bytes that count instead of waiting."""

from __future__ import annotations

from collections import Counter

import pytest

from tiered_storage.remote_log.jobs.throttle import QuotaLimit


def counted_limits(monkeypatch: pytest.MonkeyPatch) -> Counter[QuotaLimit]:
    """Let no QuotaLimit wait from now on; return how many bytes passed each one that has a limit."""
    passed: Counter[QuotaLimit] = Counter()

    def spend(limit: QuotaLimit, size: int) -> None:
        if limit.bytes_per_second > 0:
            passed[limit] += size

    monkeypatch.setattr(QuotaLimit, "spend", spend)
    return passed
