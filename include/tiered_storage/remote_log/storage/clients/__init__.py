"""Object stores: bytes under names, and nothing about segments.

`object_client` is the border. Each store implements it in a module of its own; `opening` finds it by the scheme of a
URL, and `options` says how to reach it.
"""

__all__ = ["object_client", "opening", "options"]
