"""A follower of one partition: its log directory begins where the remote log ends or the leader's disk begins.

`start` decides where that is and takes leader epochs and producers from the store; `partition_follower` fetches from
the leader, and truncates where another leader disagrees. `followed_directory` has the files, `index_files` the remote
log index beside them, `moving` takes all of it to another directory, and `follower` and `followers` are what programs
use, for one partition or several.
"""

__all__ = ["follower", "followers", "moving"]
