"""The command for the keys of encrypted segments."""

from __future__ import annotations

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    PartitionsOption,
    TopicsOption,
    known_selection,
    lease_owner,
    opened,
)
from tiered_storage.remote_log.repair.key_rotation import KeyRotator


def rotate_keys(
    topics: TopicsOption = ".*",
    partitions: PartitionsOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wrap the data keys of encrypted segments again, by the active key of the key ring. Segment data are not touched.

    Keep the earlier keys in the key ring until this command shows no segment of theirs: a copy that began before the
    rotation may finish after it. Repeat the command if it was interrupted, or if another run held a partition.
    """
    output = Output(as_json)
    with opened(config, output) as remote_log:
        selection = known_selection(remote_log, topics, partitions)
        report = KeyRotator(remote_log, lease_owner("rotate-keys")).rotate(selection, dry_run=dry_run)
    done = f"{report.due} due (dry run)" if dry_run else f"{report.rotated} rotated"
    rows = [(key, count, key == report.active) for key, count in sorted((+report.keys).items())]
    output.rows(
        f"Keys of encrypted segments, {done}",
        ("key", "segments", "active"),
        rows,
        active=report.active,
        due=report.due,
        rotated=report.rotated,
        failures=[str(each) for each in report.failures],
        left=[str(each) for each in report.left],
    )
    output.findings("Left, as another run holds the partition", report.left)
    output.end([*report.failures, *report.left])
