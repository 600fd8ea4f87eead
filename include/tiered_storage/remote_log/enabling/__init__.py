"""Check topics before they are enabled, and in every run afterwards.

`retention_margin` computes how long an outage may last before brokers delete what was not copied, `advice` what
tiering a topic would copy, save and cost. `topic_watch` collects what a copy run sees of all topics, and
`broker_limits` which limits hold; `absent_topics` finds topics that are gone.
"""

__all__ = ["absent_topics", "advice", "broker_limits", "retention_margin", "topic_watch"]
