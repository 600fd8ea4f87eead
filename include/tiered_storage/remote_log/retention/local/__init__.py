"""Local retention: closed local segments that are past their limit and safe in the remote tier are deleted.

`plan` finds them, `cluster_plan` those of a running cluster, `planning` those of all partitions, and `enforcement`
deletes them. `expired_segments` decides on those that nothing remote holds.
"""

__all__ = ["cluster_plan", "enforcement", "plan", "planning"]
