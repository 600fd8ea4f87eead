"""Total retention, and every other deletion of remote data.

`deletions` is the manager's entry. Each step, from a plan to the last object, asks `permission/` first.

    local limits        local/plan, local/cluster_plan ──► local/enforcement ──► local segments are deleted

    total retention,    expiry_planning, expiry ──► expiry_marking ─┐
    delete-records                                                  ├──► DELETE_SEGMENT_STARTED ◄── undeletion reverts
    delete-topic        topic_deletion ─────────────────────────────┤               │
    unfinished copies   orphan_check ───────────────────────────────┘               ▼
                                                                     object_deletion, segment_deleter
    shown in advance    past_retention, pending_deletions                           │
                                                                                    ▼
                                                                     DELETE_SEGMENT_FINISHED
"""

__all__ = [
    "deletions",
    "expiry",
    "expiry_planning",
    "orphan_check",
    "past_retention",
    "pending_deletions",
    "topic_deletion",
]
