"""A command that counts remote segments, as an example of a module of commands."""

from __future__ import annotations

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import ConfigOption, JsonOption, opened


def count_segments(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Count the remote segments of each partition."""
    output = Output(as_json)
    with opened(config, output, only_looks=True) as remote_log:
        rows = [
            (str(partition), sum(remote_log.context.segments.count_remote_log_segments(partition).values()))
            for partition in remote_log.context.segments.list_partitions()
        ]
    output.rows("Remote segments", ("partition", "segments"), rows)
