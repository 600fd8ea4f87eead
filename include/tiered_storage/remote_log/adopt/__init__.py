"""Adoption: copy what Kafka itself tiered into a remote log of our own, so that a site can leave its plugin.

`tier_logs` shows Kafka's remote tier as a SegmentSource, and `tier_segment` opens its segments, so that the ordinary
copy reads them like those of a local log. `adoption` plans what is still lacking and copies it in rounds.
"""

__all__ = ["adoption"]
