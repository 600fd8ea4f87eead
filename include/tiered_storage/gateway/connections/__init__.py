"""The connections of a gateway's clients: what each side of them is sent, and in which order.

`listening` opens a port and knows which connections are open, `client_connection` is one client with its own connection
to a broker, with its `client_login` and its `owed_answers`. Other rooms know what a request asks for.
"""

__all__ = ["client_connection", "client_login", "listening", "owed_answers"]
