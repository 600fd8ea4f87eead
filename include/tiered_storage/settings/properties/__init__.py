"""How a property is declared, read and checked, whatever it means.

`model` declares properties as fields with a Kafka name, limits and documentation, `types` are their types. `sources`
reads the file, the environment and a run's parameters, and `reading` makes a model of them, or one error with all that
is wrong.
"""

__all__ = ["model", "reading", "sources", "types"]
