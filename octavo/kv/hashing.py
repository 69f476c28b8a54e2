"""Chained hashes of full blocks: equal hash means equal content *and* equal everything before it.

SHA-256 rather than a fast hash, so that nobody can craft a prompt that collides with another
tenant's blocks. The extra keys (cache salt, adapter) enter the first link of the chain.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence

from octavo.core.types import TokenId

BlockHash = bytes


def root_hash(*extra_keys: str) -> BlockHash:
    """Start of a chain. Different keys give chains that never meet."""
    digest = hashlib.sha256(b"octavo-kv-1")
    for key in extra_keys:
        raw = key.encode("utf-8", "surrogatepass")
        # Length first, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(struct.pack("<Q", len(raw)) + raw)
    return digest.digest()


def block_hash(parent: BlockHash, token_ids: Sequence[TokenId]) -> BlockHash:
    """Hash of a full block that follows ``parent``."""
    # Hashes live and die with the process, so the machine's own byte order will do.
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()
