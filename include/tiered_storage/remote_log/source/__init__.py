"""Local logs: which segments exist, how far they are stable, and their bytes.

`segment_source` is the border, with SegmentSource and LocalTrim. `log_directory_source` and `log_directory_trim`
implement it for a directory that stands alone.
"""

__all__ = ["log_directory_segment", "log_directory_source", "log_directory_trim", "segment_source"]
