"""A run by form or REST on an unsafe site fails, reports why and what to do, and loses nothing.

The command line has tests of its own for each; here only that its errors reach the run.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dags.airflow_runs import AirflowHome
from support.small_disks import bind_mount
from support.tiered_site import TIERED, TieredSite
from tiered_storage.clock import machine_boot_time, wall_clock
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

DELETABLE = {
    **TIERED,
    "local.deletion.allowed": True,
    "remote.deletion.allowed": True,
    "local.retention.ms": 0,
    "retention.bytes": 1500,
}
YEAR_MS = 365 * 24 * 3_600_000

Unsafe = Callable[[TieredSite], AbstractContextManager[None]]


@contextmanager
def with_a_clock_that_jumped(site: TieredSite) -> Iterator[None]:
    """Record a last run whose clock was a year behind, with no restart since."""
    settings = load_settings(site.config, environ={})
    with RemoteLogManager.open(
        settings, lambda: wall_clock() - YEAR_MS, store_options(settings), boot_clock=machine_boot_time
    ) as remote_log:
        remote_log.deletions.clocks.trust()
    yield


@contextmanager
def linked(site: TieredSite) -> Iterator[None]:
    site.logs.joinpath("orders-0").symlink_to(moved(site))
    yield


@contextmanager
def mounted(site: TieredSite) -> Iterator[None]:
    other, here = moved(site), site.logs / "orders-0"
    with bind_mount(other, here):
        yield


def moved(site: TieredSite) -> Path:
    other = site.root / "disk-2" / "orders-0"
    other.parent.mkdir()
    return (site.logs / "orders-0").rename(other)


@contextmanager
def forked(site: TieredSite) -> Iterator[None]:
    """Let the first local segment hold another record than the one that was copied, under a right checksum."""
    path = site.logs / "orders-0" / f"{0:020}.log"
    batch = bytearray(path.read_bytes())
    batch[-20] ^= 1
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    path.write_bytes(batch)
    yield


@contextmanager
def tiered_by_kafka(site: TieredSite) -> Iterator[None]:
    for path in (site.logs / "orders-0").glob(f"{0:020}.*"):
        path.unlink()
    write_offset_checkpoint(site.logs / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 0})
    yield


@contextmanager
def twice(site: TieredSite) -> Iterator[None]:
    again = shutil.copytree(site.logs, site.root / "again")
    site.configure({"orders": DELETABLE}, log_dirs=[str(site.logs), str(again)])
    yield


@contextmanager
def without_metadata(site: TieredSite) -> Iterator[None]:
    for path in site.state.glob("remote_log_metadata.db*"):
        path.unlink()
    yield
    assert not list(site.state.glob("remote_log_metadata.db"))


MISSING = ["remote_log_metadata.db", "rebuild-metadata"]


@pytest.mark.parametrize(
    ("unsafe", "is_copied", "dag_id", "expected"),
    [
        pytest.param(with_a_clock_that_jumped, True, "enforce_local_retention", ["clock", "trust-clock"], id="clock"),
        pytest.param(with_a_clock_that_jumped, True, "expire_remote_segments", ["clock", "trust-clock"], id="clock-2"),
        pytest.param(linked, True, "enforce_local_retention", ["orders-0 is a symbolic link", "log.dirs"], id="link"),
        pytest.param(mounted, True, "enforce_local_retention", ["orders-0 is a mount point", "log.dirs"], id="mount"),
        pytest.param(forked, True, "enforce_local_retention", ["orders-0", "fork"], id="fork"),
        pytest.param(forked, True, "expire_remote_segments", ["orders-0", "fork"], id="fork-2"),
        pytest.param(tiered_by_kafka, False, "copy_segments", ["Kafka itself tiers orders-0"], id="kafka"),
        pytest.param(without_metadata, True, "copy_segments", MISSING, id="missing"),
        pytest.param(without_metadata, True, "enforce_local_retention", MISSING, id="missing-2"),
        pytest.param(without_metadata, True, "expire_remote_segments", MISSING, id="missing-3"),
        pytest.param(without_metadata, True, "audit_remote_log", MISSING, id="missing-4"),
        pytest.param(without_metadata, True, "repair_remote_log", MISSING, id="missing-5"),
        pytest.param(twice, False, "copy_segments", ["orders-0", "the same partition"], id="twice"),
        pytest.param(twice, True, "enforce_local_retention", ["the same partition"], id="twice-2"),
    ],
)
def test_a_run_by_form_on_an_unsafe_site_fails_with_the_reason_and_loses_nothing(
    airflow: AirflowHome, site: TieredSite, unsafe: Unsafe, is_copied: bool, dag_id: str, expected: list[str]
) -> None:
    site.write_logs({"orders-0": 3})
    site.configure({"orders": DELETABLE})
    if is_copied:
        site.copy()
    with unsafe(site):
        before = everything(site)
        ended = airflow.run(dag_id)
        assert (ended.state, [text for text in expected if text not in ended.messages]) == ("failed", []), (
            ended.messages
        )
        assert everything(site) == before


def everything(site: TieredSite) -> dict[Path, bytes]:
    """Return the content of every log and every object of a segment."""
    found = [*(site.logs / "orders-0").glob("*.log"), *site.root.glob("state/**/orders-*/0/*")]
    return {path: path.read_bytes() for path in found if path.is_file()}
