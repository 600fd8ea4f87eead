"""What is looked at before a topic is enabled, and watched afterwards: how long its brokers keep records, which topics
are still there, what else has nearly its name, and what tiering it would copy, save and cost.
"""

__all__ = ["absent_topics", "advice", "near_names", "retention_margin", "topic_watch"]
