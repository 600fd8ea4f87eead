"""The typed settings: one declaration gives a property its name, type, limits and documentation.

`settings` joins the settings of an installation, which are declared in one module a group, and loads them; `topics` has
those of one topic, `read_rights` who may read which. `reference` writes docs/configuration.md. How properties are read
and checked is in `properties`.
"""

__all__ = ["read_rights", "reference", "settings", "topics"]
