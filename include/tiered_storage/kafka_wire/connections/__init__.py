"""One broker: how to reach it, how to log in, and the frames that are exchanged with it.

`client_settings` says where and how, and `connection` is an open connection. `frames` and `apis` make and read messages
by kio, and `error_codes` has what a broker may answer instead.
"""

__all__ = [
    "apis",
    "client_properties",
    "client_settings",
    "connection",
    "error_codes",
    "frames",
    "sasl",
    "transport",
]
