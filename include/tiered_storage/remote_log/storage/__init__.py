"""Object stores.

`remote_storage_manager` is the border (KIP-405's RemoteStorageManager), `object_client` the smaller one below it.
`segment_objects` implements the first over the second; `opening` finds both by URL or class name.
"""
