"""A lease that a dead run holds for years stops no other partition, and every run says how a person ends it."""

from __future__ import annotations

from pathlib import Path

from dags.airflow_runs import AirflowHome
from support.command_line import mentions, run
from support.tiered_site import TIERED, TieredSite, partition

DELETABLE = {**TIERED, "remote.deletion.allowed": True, "retention.bytes": 1500}
YEAR_MS = 365 * 24 * 3_600_000


def test_a_stuck_lease_is_named_by_every_run_until_a_person_ends_it(airflow: AirflowHome, site: TieredSite) -> None:
    """A run whose clock was years ahead died: its partition is left to it, and other partitions are not."""
    site.write_logs({"orders-0": 3})
    site.configure({"orders": DELETABLE})
    site.copy()
    with site.open() as remote_log:
        remote_log.context.leases.acquire(partition("orders-0"), "a run that died", 5 * YEAR_MS)
    site.append_segment("orders-0")
    before = everything(site)

    for dag_id, left in (
        ("copy_segments", "is left to the run that holds it"),
        ("expire_remote_segments", "is not marked"),
    ):
        held = airflow.run(dag_id)
        assert mentions(held.log, f"orders-0 {left}: ", "a run that died", "'tiered-storage leases end'")
        assert everything(site) == before
    assert run("leases", "end", "orders", 0, "--yes", "--config", site.config).exit_code == 0

    assert airflow.run("expire_remote_segments").state == "success"
    assert site.finished("orders-0") == []


def everything(site: TieredSite) -> dict[Path, bytes]:
    """Return the content of every log and every object of a segment."""
    found = [*(site.logs / "orders-0").glob("*.log"), *site.root.glob("state/**/orders-*/0/*")]
    return {path: path.read_bytes() for path in found if path.is_file()}
