"""The connections of a gateway's clients: what each side of them is sent, and in which order.

`listening` opens a port and knows which connections are open, `client_connection` is one client with its own connection
to a broker, which `owed_answers` keeps in order. What a request asks for is known to others.
"""

__all__ = ["client_connection", "listening", "owed_answers"]
