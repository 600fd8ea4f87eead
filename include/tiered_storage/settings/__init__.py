"""The typed settings: one declaration gives a property its name, type, limits and documentation.

`settings` has the settings of an installation, `topic_properties` those of one topic. `sources` reads them from the
file, the environment and a run's parameters; `reference` writes docs/configuration.md.
"""
