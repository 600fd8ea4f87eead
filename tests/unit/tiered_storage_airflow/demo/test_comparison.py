"""The demo's comparison must be able to fail: each way in which a product can lose or change a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.tiered_site import RECORDS, TIERED, TieredSite
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo.comparison import Compared, compare
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition, records_in

SEGMENTS = 4
COUNT = SEGMENTS * RECORDS


@pytest.fixture
def site(tmp_path: Path) -> TieredSite:
    site = TieredSite(tmp_path)
    site.write_logs({"orders-0": SEGMENTS - 1})
    site.configure({"orders": TIERED}, log_end_is_stable=True)
    return site


@pytest.fixture
def written(site: TieredSite) -> list[Record]:
    return list(records_in(site.logs / "orders-0"))


def compared(site: TieredSite, expected: list[Record], start: int = 0) -> Compared:
    with site.open() as remote_log:
        return compare(remote_log, ExpectedPartition("orders", 0, 0, partial(iter, expected)), start)


def remove_local(site: TieredSite, segments: int) -> None:
    """Remove the oldest local segments, as nothing that we do would."""
    for segment in list_segments(site.logs / "orders-0")[:segments]:
        segment.log_path.unlink()


def test_both_tiers_return_equal_records(site: TieredSite, written: list[Record]) -> None:
    site.copy()
    remove_local(site, 2)

    assert compared(site, written) == Compared(0, COUNT)


def change_one(written: list[Record]) -> list[Record]:
    return [*written[:15], replace(written[15], value=b"another"), *written[16:]]


def change_headers(written: list[Record]) -> list[Record]:
    return [*written[:15], replace(written[15], headers=(("trace", None),)), *written[16:]]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (change_one, "written was offset 15 .*another.*, read was offset 15"),
        (change_headers, "1 headers, read was offset 15 .* 0 headers"),
        (lambda written: [*written, replace(written[-1], offset=COUNT)], f"offset {COUNT} .*, read was nothing"),
        (lambda written: [*written[:15], *written[16:]], "written was offset 16 .*, read was offset 15"),
        (lambda written: written[:-1], f"written was nothing, read was offset {COUNT - 1}"),
    ],
    ids=["changed", "changed headers", "missing at the end", "extra", "extra at the end"],
)
def test_a_record_that_differs_fails(
    site: TieredSite, written: list[Record], harm: Callable[[list[Record]], list[Record]], words: str
) -> None:
    site.copy()

    with pytest.raises(DemoError, match=f"orders-0: .*{words}"):
        compared(site, harm(written))


def test_records_that_were_lost_at_the_start_fail(site: TieredSite, written: list[Record]) -> None:
    remove_local(site, 1)

    with pytest.raises(DemoError, match=rf"orders-0.*offset {RECORDS}.*\b0\b"):
        compared(site, written)


def test_the_comparison_fails_if_records_did_not_expire(site: TieredSite, written: list[Record]) -> None:
    site.copy()

    with pytest.raises(DemoError, match=rf"offset 0\b.*{RECORDS}"):
        compared(site, written, RECORDS)


def test_records_below_the_start_are_not_asked_for(site: TieredSite, written: list[Record]) -> None:
    remove_local(site, 1)

    assert compared(site, written, RECORDS) == Compared(RECORDS, COUNT - RECORDS)
