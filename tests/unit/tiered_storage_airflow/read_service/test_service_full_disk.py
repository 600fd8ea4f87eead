"""The read service where the disk with metadata, caches and local logs has not a byte left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.read_service_site import ReadServiceSite
from support.small_disks import fill, small_disk

PARTITION = "/topics/orders/partitions/0"
ROOMY = 48 << 20


@pytest.fixture
def site_on_a_small_disk(logins: None, tmp_path: Path) -> Iterator[ReadServiceSite]:
    with small_disk(tmp_path / "disk", ROOMY) as disk, ReadServiceSite.open(disk) as site:
        # As whoever writes does while there is room.
        with site.files.open() as remote_log:
            remote_log.context.safety.stop("a reserve", "test")
            remote_log.context.safety.lift("test")
        yield site


@pytest.mark.parametrize("is_open_before", [True, False])
def test_everything_is_read_on_a_full_disk(site_on_a_small_disk: ReadServiceSite, is_open_before: bool) -> None:
    site = site_on_a_small_disk
    segment = f"{PARTITION}/segments/{site.segments()[0].segment_id.id}"
    if is_open_before:
        assert site.get("/topics").status_code == 200
    fill(site.files.root)

    for _ in range(2):
        for path in ("/topics", "/topics/orders/partitions", PARTITION, f"{PARTITION}/segments", segment):
            assert site.get(path).status_code == 200, path
        for path in (f"{segment}/data", f"{segment}/indexes/offset", f"{PARTITION}/offsets/max-timestamp"):
            assert site.get(path).status_code == 200, path
        records = site.get(f"{PARTITION}/records", params={"max_records": 100})
        assert len(records.text.splitlines()) == 35
    assert site.get("/health").json()["checks"]
