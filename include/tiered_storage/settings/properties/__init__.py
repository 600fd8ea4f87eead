"""How a property is declared, read and checked.

`model` declares properties as fields with a Kafka name, limits and documentation; `types` has their types. `sources`
reads the file, the environment and a run's parameters; `reading` makes a model of them, or one error with every
problem.
"""

__all__ = ["model", "reading", "sources", "types"]
