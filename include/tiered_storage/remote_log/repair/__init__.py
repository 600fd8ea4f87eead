"""Repairs what an audit found, if nothing has to be guessed.

`plan` decides, `repair` and `uncommitted_segments` carry it out. `redundancy` proves that a damaged segment is not
needed, and `key_rotation` wraps the keys of encrypted segments again.
"""

__all__ = ["key_rotation", "plan", "redundancy", "repairs"]
