"""How a property is declared, read and checked.

`model` declares properties as fields with a Kafka name, limits and documentation; `types` has their types. `sources`
reads the file, the environment and a run's parameters, and `cluster_files` finds the files of several clusters;
`reading` makes a model of what was read, or one error with every problem.
"""

__all__ = ["cluster_files", "model", "reading", "sources", "types"]
