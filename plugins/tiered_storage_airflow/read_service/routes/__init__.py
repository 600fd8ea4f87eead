"""The HTTP routes of the read service.

`api` builds the application from the routes in `data`, `metadata`, `offsets` and `service`. `schemas` defines the
answers, and `exception_handlers` turns each error into a problem document. The room above knows nothing of this one.
"""

__all__ = ["api", "exception_handlers", "index_content", "metadata", "schemas"]
