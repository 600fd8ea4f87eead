"""The typed settings: one declaration gives a property its name, type, limits and documentation.

`settings` joins the groups of settings, one module each, and loads them; `topics` has the settings of one topic;
`own_managers` hands options over to classes of the user's own; `read_rights` reads who may read which topic.
`reference` writes docs/configuration.md, and `properties` reads and checks values.
"""

__all__ = ["own_managers", "read_rights", "reference", "settings", "topics"]
