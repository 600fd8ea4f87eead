"""Which transforms a segment's objects have."""

from __future__ import annotations

from dataclasses import dataclass

ZSTD = "zstd"
AES_GCM = "aes-256-gcm"


@dataclass(frozen=True, slots=True)
class Encoding:
    """What to do with the chunks of a segment.

    With `compression`, each chunk is compressed by zstd if that makes it smaller; with `skips_compressed`, chunks whose
    batches are mostly compressed already stay as they are. With `encryption`, chunks and indexes are encrypted.
    """

    compression: bool = False
    encryption: bool = False
    skips_compressed: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the objects hold the bytes as Kafka wrote them."""
        return not (self.compression or self.encryption)

    @property
    def codec(self) -> str:
        """Its name in a manifest: "none", "zstd", "aes-256-gcm" or "zstd+aes-256-gcm"."""
        parts = [name for name, used in ((ZSTD, self.compression), (AES_GCM, self.encryption)) if used]
        return "+".join(parts) or "none"


PLAIN = Encoding()
ENCODINGS = {
    each.codec: each for each in (PLAIN, Encoding(True), Encoding(encryption=True), Encoding(True, encryption=True))
}
"""Every encoding by the name of its codec."""
