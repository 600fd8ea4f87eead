"""The metadata topic on its cluster: found or created, read and written.

`options` are the settings by Kafka's names, and `topic_setup` creates the topic or checks it. `metadata_log` reads it
from one offset to another, `metadata_writer` writes to it; neither knows what a record says.
"""

__all__ = ["metadata_log", "metadata_writer", "options", "topic_setup"]
