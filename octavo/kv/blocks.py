"""The pool of KV blocks: reference counts, and one list of those that nobody references.

::

    head <-> [never used or forgotten ...] <-> [cached: oldest ... newest] <-> head
             taken first                        then the least recently used

The list is doubly linked through two arrays, so that a block can leave the middle (a cached prefix
is wanted again) in constant time. The head is a sentinel with the index ``num_blocks``.
"""

from __future__ import annotations

from octavo.core.types import BlockId


class BlockPool:
    """Hands out block ids. Knows nothing of tokens, hashes or requests."""

    __slots__ = (
        "_head",
        "_next",
        "_previous",
        "changed_s",
        "journal",
        "now_s",
        "num_blocks",
        "num_free",
        "num_shared",
        "ref_counts",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.now_s = 0.0
        """The time, as far as the pool is concerned."""
        self.changed_s = [0.0] * num_blocks
        """When each block was taken, or given back by its last holder; 0 for one never used."""
        self.journal: set[BlockId] | None = None
        """Blocks whose references have changed since it was begun; None while nobody watches."""
        self.num_shared = 0
        """Blocks with several references."""
        self.num_free = num_blocks
        """Blocks with no reference, cached ones included."""
        self.ref_counts = [0] * num_blocks
        self._head = num_blocks
        self._next: list[BlockId] = [*range(1, num_blocks + 1), 0]
        self._previous: list[BlockId] = [num_blocks, *range(num_blocks)]

    def alloc(self) -> BlockId | None:
        """Takes the first unreferenced block and references it once; None if there is none."""
        if not self.num_free:
            return None
        head, links = self._head, self._next
        block = links[head]
        after = links[block]
        links[head] = after
        self._previous[after] = head
        self.num_free -= 1
        self.ref_counts[block] = 1
        self._note(block)
        return block

    def retain(self, block: BlockId) -> None:
        """Adds a reference; an unreferenced block leaves the list."""
        if self.ref_counts[block] == 0:
            before, after = self._previous[block], self._next[block]
            self._next[before] = after
            self._previous[after] = before
            self.num_free -= 1
            self._note(block)
        elif self.journal is not None:
            self.journal.add(block)
        self.ref_counts[block] += 1
        self.num_shared += self.ref_counts[block] == 2

    def release(self, block: BlockId, *, keep: bool) -> bool:
        """Drops a reference; True if it was the last.

        Args:
            keep: the block's content is worth keeping: it joins the far end of the list, to be
                taken last. Otherwise it is taken next.
        """
        counts = self.ref_counts
        assert counts[block] > 0, f"block {block} released once too often"
        counts[block] -= 1
        if counts[block]:
            self.num_shared -= counts[block] == 1
            if self.journal is not None:
                self.journal.add(block)
            return False
        self._note(block)
        head, nexts, previous = self._head, self._next, self._previous
        before = previous[head] if keep else head
        after = nexts[before]
        nexts[before] = block
        previous[block] = before
        nexts[block] = after
        previous[after] = block
        self.num_free += 1
        return True

    def move_to_front(self, block: BlockId) -> None:
        """An unreferenced block has lost its content: it is to be taken next."""
        assert self.ref_counts[block] == 0, f"block {block} is referenced"
        self.retain(block)
        self.release(block, keep=False)

    def free_blocks(self) -> list[BlockId]:
        """Unreferenced blocks in the order in which they would be taken. Linear: for checks."""
        found: list[BlockId] = []
        block = self._next[self._head]
        while block != self._head and len(found) <= self.num_blocks:
            found.append(block)
            block = self._next[block]
        return found

    def check(self) -> None:
        """Verifies the list and the counts.

        Raises:
            AssertionError: what is wrong.
        """
        free = self.free_blocks()
        if len(free) != self.num_free:
            raise AssertionError(f"the free list has {len(free)} blocks, num_free {self.num_free}")
        if len(set(free)) != len(free):
            raise AssertionError("a block is in the free list twice")
        for block in [*free, self._head]:
            if self._previous[self._next[block]] != block:
                raise AssertionError(f"links around block {block} disagree")
        unreferenced = {block for block, count in enumerate(self.ref_counts) if count == 0}
        if unreferenced != set(free):
            raise AssertionError(
                f"blocks {sorted(unreferenced ^ set(free))[:8]} are either unreferenced or in the "
                "free list, not both"
            )
        if any(count < 0 for count in self.ref_counts):
            raise AssertionError("a reference count is negative")

    def _note(self, block: BlockId) -> None:
        """The block has got its first holder, or lost its last."""
        self.changed_s[block] = self.now_s
        if self.journal is not None:
            self.journal.add(block)
