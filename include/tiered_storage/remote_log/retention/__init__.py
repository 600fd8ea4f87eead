"""Total retention, and every other deletion of remote data.

`deletions` is the manager's entry. Each step, from a plan to the last object, asks `permission/` first.

    local limits        local/plan, local/cluster_plan ──► local/enforcement ──► local segments are deleted

    total retention,    expiry_planning, expiry ──► expiry_marking ─┐
    delete-records                                                  ├──► DELETE_SEGMENT_STARTED ◄── undeletion reverts
    delete-topic        topic_deletion ─────────────────────────────┤               │
    unfinished copies   orphan_check ───────────────────────────────┘               ▼
                                                                     due_segments ──► object_deletion
    shown in advance    past_retention, due_segments                                │
                                                                                    ▼
                                                                     DELETE_SEGMENT_FINISHED, or failed_deletions_topic
"""

__all__ = [
    "deletions",
    "due_segments",
    "expiry",
    "expiry_planning",
    "object_deletion",
    "orphan_check",
    "past_retention",
    "topic_deletion",
]
