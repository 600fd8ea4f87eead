from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.remote_logs import partition_of
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.tables.layout import FORMAT_VERSION, ExportedFile, ExportManifest, MissingOffsets
from tiered_storage.remote_log.tables.overwrite_guard import OverwriteGuard, missing_among
from tiered_storage.remote_log.tables.planning import NAMED_AT_MOST, TablePartition, TablePlan
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage.remote_log.tables.reading import BrokenBytes

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


EVERYTHING = TablePlan(TableQuery("orders"), "", "", ())


def check_rows(earlier: ExportManifest, later: ExportManifest) -> None:
    OverwriteGuard(earlier, EVERYTHING).ensure_no_fewer(later, (), (), "here")


@pytest.mark.parametrize("disorder_ms", [HOUR_MS, 2 * HOUR_MS, 0, None], ids=["same", "more", "none", "any"])
@pytest.mark.parametrize("committed_before", [False, True], ids=["were_all", "were_committed"])
@pytest.mark.parametrize("rows", [9, 1, 0])
def test_an_export_with_fewer_rows_is_refused_whatever_its_options(
    rows: int, disorder_ms: int | None, *, committed_before: bool
) -> None:
    earlier = manifest(10, committed_only=committed_before)
    with pytest.raises(ConfigurationError, match=f"^here .*10 .*partition 1 .*{rows} now"):
        check_rows(earlier, manifest(rows, disorder_ms))
    check_rows(earlier, manifest(10, disorder_ms))
    check_rows(earlier, manifest(11, disorder_ms))


def test_aborted_records_may_be_left_out_on_request() -> None:
    """No manifest has the number of aborted records."""
    check_rows(manifest(10), manifest(8, committed_only=True))
    with pytest.raises(ConfigurationError, match="8 now"):
        check_rows(manifest(10, committed_only=True), manifest(8, committed_only=True))


END = 30
spans = st.lists(st.tuples(st.integers(0, END - 1), st.integers(0, 8)), max_size=4).map(
    lambda found: [(first, min(first + more, END - 1)) for first, more in found]
)


def a_plan(number: int, lacking: Sequence[tuple[int, int]], log_end: int = END, decided_end: int = END) -> TablePlan:
    partition = TablePartition(partition_of(number=number), (), (), 0, log_end, decided_end, -1, tuple(lacking))
    return TablePlan(TableQuery("orders"), "", "", (partition,))


def letters(number: int, found: Sequence[tuple[int, int]]) -> list[BrokenBytes]:
    return [BrokenBytes(number, "an object", 0, 1, first, last, "broken") for first, last in found]


def an_export(
    number: int, files: Sequence[tuple[int, int]], missing: Sequence[tuple[int, int]] = (), **changes: Any
) -> ExportManifest:
    exported = tuple(ExportedFile(f"{first}", number, 1, 1, 0, first, last) for first, last in files)
    lacked = tuple(MissingOffsets(number, *each) for each in missing)
    return replace(manifest(0), files=exported, missing=lacked, **changes)


def check(
    earlier: ExportManifest, plan: TablePlan, broken: Sequence[BrokenBytes] = (), letters: Sequence[BrokenBytes] = ()
) -> None:
    """Check an export of as many rows, which could not read what `plan` and `broken` name."""
    OverwriteGuard(earlier, plan).ensure_no_fewer(earlier, broken, letters, "here")


def offsets(found: Sequence[tuple[int, int]]) -> set[int]:
    return {offset for first, last in found for offset in range(first, last + 1)}


@given(spans, spans, spans, spans, spans)
def test_an_export_is_refused_if_it_newly_lacks_records_of_an_earlier_file(
    files: list[tuple[int, int]],
    missing: list[tuple[int, int]],
    broken_before: list[tuple[int, int]],
    lacking: list[tuple[int, int]],
    broken: list[tuple[int, int]],
) -> None:
    def was_missing(found: tuple[int, int]) -> bool:
        return any(first <= found[0] and found[1] <= last for first, last in missing) or found in broken_before

    lost = offsets([each for each in (*lacking, *broken) if not was_missing(each)]) & offsets(files)
    earlier, plan = an_export(3, files, missing), a_plan(3, lacking)
    shown: set[int] = set()
    try:
        check(earlier, plan, letters(3, broken), letters(3, broken_before))
    except ConfigurationError as error:
        shown = offsets(
            [(int(first), int(last)) for first, last in re.findall(r"offsets (\d+) to (\d+) of", str(error))]
        )
    assert shown == lost
    check(earlier, a_plan(2, lacking), letters(2, broken))
    kept = missing_among(earlier, plan)
    check(replace(earlier, missing=kept), plan)
    assert {(each.first_offset, each.last_offset) for each in kept} <= set(lacking)
    assert missing_among(earlier, a_plan(2, lacking)) == ()


@pytest.mark.parametrize(
    ("committed_before", "log_end", "decided_end", "refused"),
    [
        (True, 20, 20, False),
        (True, 19, 19, True),
        (True, 20, 19, True),
        (False, 20, 19, False),  # to want committed records only is a wish
        (False, 19, 19, True),
    ],
)
def test_an_export_that_ends_before_the_earlier_files_is_refused(
    log_end: int, decided_end: int, *, committed_before: bool, refused: bool
) -> None:
    earlier = an_export(3, [(10, 19)], committed_only=committed_before)
    plan = a_plan(3, (), log_end, decided_end)
    if not refused:
        check(earlier, plan)
        return
    with pytest.raises(ConfigurationError, match="19 to 19 of partition 3"):
        check(earlier, plan)


def test_an_error_names_a_bounded_number_of_lost_ranges() -> None:
    earlier = an_export(0, [(0, 1_000)])
    with pytest.raises(ConfigurationError) as raised:
        check(earlier, a_plan(0, [(each, each) for each in range(0, 1_000, 2)], 2_000, 2_000))
    assert str(raised.value).count(" of partition ") == NAMED_AT_MOST


def an_undecidable_plan(gap: tuple[int, int], begin: int, broken: Sequence[tuple[int, int]] = ()) -> TablePlan:
    """What is left of a transaction that began at `begin`, and whose end may have been in `gap`."""
    plan = a_plan(3, [*broken, gap])
    return replace(plan, partitions=(replace(plan.partitions[0], undecidable=((begin, gap[1]),)),))


def test_no_record_of_a_transaction_is_lost_whose_end_was_missing_before() -> None:
    """The manifest keeps the gap after its records for that, though no file has any of it."""
    plan = an_undecidable_plan((20, 24), 12)
    bare = an_export(3, [(10, 14)])
    assert missing_among(bare, plan) == (MissingOffsets(3, 20, 24),)
    assert missing_among(an_export(3, [(5, 11)]), plan) == ()
    earlier = replace(bare, missing=missing_among(bare, plan))
    check(earlier, plan)
    with pytest.raises(ConfigurationError, match=r"12 to 14 of partition 3 \(.*transaction"):
        check(bare, plan)
    # The gap has grown since: what ended in what it took is lost now.
    with pytest.raises(ConfigurationError, match="13 to 14 of partition 3"):
        check(earlier, an_undecidable_plan((18, 24), 13))
    # Others have records between those of the transaction.
    with pytest.raises(ConfigurationError, match=r"13 to 13 .* 3 \(an object"):
        check(earlier, plan, letters(3, [(13, 13)]))
    with pytest.raises(ConfigurationError, match=r"13 to 13 of partition 3 \(missing"):
        check(earlier, an_undecidable_plan((20, 24), 12, [(13, 13)]))
