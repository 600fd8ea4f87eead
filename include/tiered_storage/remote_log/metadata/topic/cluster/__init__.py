"""The metadata topic on its cluster: found or created, read and written.

`options` are the settings by Kafka's names, and `topic_setup` creates the topic or checks it. `metadata_log` reads it
from one offset to another, `record_blocks` many records at once, `metadata_writer` writes to it, and `lost_records`
notices what it lost; none of them knows what a record says.
"""

__all__ = ["lost_records", "metadata_log", "metadata_writer", "options", "record_blocks", "topic_setup"]
