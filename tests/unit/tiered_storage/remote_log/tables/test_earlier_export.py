from __future__ import annotations

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.tables.earlier_export import ensure_no_fewer
from tiered_storage.remote_log.tables.layout import FORMAT_VERSION, ExportedFile, ExportManifest

HOUR_MS = 3_600_000


def manifest(rows: int, disorder_ms: int | None = HOUR_MS, *, committed_only: bool = False) -> ExportManifest:
    """An export of 5 rows of partition 0, and of `rows` of partition 1, in a file or two."""
    sizes = [(0, 5), (1, rows - rows // 2), (1, rows // 2)]
    files = tuple(
        ExportedFile(f"{partition}-{number}", partition, size, 100, 0, 0, size)
        for number, (partition, size) in enumerate(sizes)
        if size
    )
    return ExportManifest(FORMAT_VERSION, 0, HOUR_MS, "zstd", committed_only, disorder_ms, files)


@pytest.mark.parametrize("disorder_ms", [HOUR_MS, 2 * HOUR_MS, 0, None], ids=["same", "more", "none", "any"])
@pytest.mark.parametrize("committed_before", [False, True], ids=["were_all", "were_committed"])
@pytest.mark.parametrize("rows", [9, 1, 0])
def test_fewer_rows_are_refused_whatever_else_is_asked_for(
    rows: int, disorder_ms: int | None, *, committed_before: bool
) -> None:
    earlier = manifest(10, committed_only=committed_before)
    with pytest.raises(ConfigurationError, match=f"here has 10 records of partition 1, and this export found {rows}:"):
        ensure_no_fewer(earlier, manifest(rows, disorder_ms), "here")
    ensure_no_fewer(earlier, manifest(10, disorder_ms), "here")
    ensure_no_fewer(earlier, manifest(11, disorder_ms), "here")


def test_what_was_aborted_may_go() -> None:
    """Where it is the wish of who exports: how many records were aborted no manifest tells."""
    ensure_no_fewer(manifest(10), manifest(8, committed_only=True), "here")
    with pytest.raises(ConfigurationError, match="this export found 8"):
        ensure_no_fewer(manifest(10, committed_only=True), manifest(8, committed_only=True), "here")


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [(HOUR_MS, 0, True), (None, HOUR_MS, True), (0, HOUR_MS, False), (HOUR_MS, None, False), (None, None, False)],
)
def test_less_disorder_is_told_as_a_reason(before: int | None, now: int | None, *, told: bool) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ensure_no_fewer(manifest(10, before), manifest(9, now), "here")
    assert ("was exported with more disorder within a batch" in str(raised.value)) == told
