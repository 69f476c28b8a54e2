"""Which block holds which prefix: a two-way index between hashes and blocks."""

from __future__ import annotations

from octavo.core.types import BlockId
from octavo.kv.hashing import BlockHash


class PrefixIndex:
    """Finds published blocks by hash. The first block published for a hash keeps it."""

    __slots__ = ("_block_of", "hash_of")

    def __init__(self) -> None:
        self._block_of: dict[BlockHash, BlockId] = {}
        self.hash_of: dict[BlockId, BlockHash] = {}
        """Published blocks and their hashes. To be read only."""

    def __len__(self) -> int:
        return len(self._block_of)

    def lookup(self, key: BlockHash) -> BlockId | None:
        """The block that holds this content, if it is still there."""
        return self._block_of.get(key)

    def publish(self, key: BlockHash, block: BlockId) -> bool:
        """Makes a full block findable; False if another block already has this hash."""
        if key in self._block_of:
            return False
        assert block not in self.hash_of, f"block {block} is published already"
        self._block_of[key] = block
        self.hash_of[block] = key
        return True

    def forget(self, block: BlockId) -> None:
        """The block's content is about to change. Nothing happens if it was not published."""
        key = self.hash_of.pop(block, None)
        if key is not None:
            del self._block_of[key]

    def check(self) -> None:
        """Verifies that both directions agree.

        Raises:
            AssertionError: what is wrong.
        """
        if {block: key for key, block in self._block_of.items()} != self.hash_of:
            raise AssertionError("hash-to-block and block-to-hash disagree")
