"""The files of a log directory: segment names, checkpoints, meta.properties, partition.metadata, `.lock`.

Each module reads and writes one of them. `log_directory` reads a whole directory; it never changes one.
"""
