"""What a segment's bytes go through on their way to the store: zstd, then AES-256-GCM, chunk by chunk.

`encoding` says which of both a segment has and how its chunks lie in the object; `chain` encodes and decodes them with
`zstd` and `aes_gcm`. `key_ring` has the keys that wrap each segment's own key, in files or in AWS KMS.
"""

__all__ = ["aes_gcm", "aws_kms", "chain", "encoding", "key_ring", "zstd"]
