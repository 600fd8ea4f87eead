"""The server half of the Kafka protocol: frames from clients, and what a program between clients and brokers changes.

`frame_protocol` and `send_queue` move frames over a connection of asyncio, `request_header` and `fetch_request` read
requests, `broker_addresses` replaces addresses in answers. Record bytes are never decoded.
"""

__all__ = ["broker_addresses", "fetch_request", "frame_protocol", "request_header", "send_queue"]
