"""Repairs what an audit found, if nothing has to be guessed.

`plan` decides, `repair` and `uncommitted_segments` carry it out. `redundancy` proves that a damaged segment is not
needed.
"""

__all__ = ["plan", "redundancy", "repairs"]
