"""Object stores: bytes under names, and nothing about segments.

`object_client` is the border. Each store implements it in a module of its own; `opening` finds it by the scheme of a
URL, `options` says how to reach it, and `aws_credentials` who signs requests to S3.
"""

__all__ = ["aws_credentials", "object_client", "opening", "options"]
