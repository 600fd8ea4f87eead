"""The HTTP routes of the read service, which itself knows nothing of them.

`api` builds the application from the routes in `data`, `metadata`, `offsets` and `service`. `schemas` defines the
answers, and `exception_handlers` turns each error into a problem document.
"""

__all__ = ["api", "exception_handlers", "index_content", "metadata", "schemas"]
