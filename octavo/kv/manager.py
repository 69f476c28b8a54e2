"""Block tables of requests, over the pool and the prefix index.

The life of a block::

    unused --reserve--> in use --commit (full)--> in use, published
      ^                   |                           |
      |                 free                        free
      |                   v                           v
      +-------------- unused                    cached (findable) --match--> in use, published
                         ^                            |
                         +---------- evicted ---------+   least recently used first, tail first

A block's content may change only while exactly one request references it and it is not published;
anything else is copied first (`BlockDelta.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.plan import BlockCopy
from octavo.core.request import Request
from octavo.core.types import BlockId, RequestId
from octavo.kv.blocks import BlockPool
from octavo.kv.hashing import BlockHash, block_hash, root_hash
from octavo.kv.prefix import PrefixIndex
from octavo.metrics.stats import CacheStats


class PrefixHit(NamedTuple):
    """The cached beginning of a request; its blocks are referenced by the request now."""

    num_tokens: int
    block_ids: tuple[BlockId, ...]


class BlockDelta(NamedTuple):
    """What a reservation changed in a request's block table."""

    new_block_ids: tuple[BlockId, ...] = ()
    copies: tuple[BlockCopy, ...] = ()


_NO_CHANGE = BlockDelta()


class _Table:
    """One request's blocks, and the hashes of the full ones that were published or matched."""

    __slots__ = ("blocks", "hashes", "num_published")

    def __init__(self, root: BlockHash) -> None:
        self.blocks: list[BlockId] = []
        self.hashes: list[BlockHash] = [root]  # hashes[i] is the parent of block i
        self.num_published = 0
        """Leading full blocks that `commit` has dealt with."""


class BlockManager:
    """Allocates blocks to requests on demand and shares those with equal prefixes."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._caching = enable_prefix_caching
        self._pool = BlockPool(num_blocks)
        self._index = PrefixIndex()
        self._tables: dict[RequestId, _Table] = {}
        self._num_cached = 0
        """Published blocks that nobody references."""

    @property
    def num_available_blocks(self) -> int:
        """Blocks that could be reserved now, cached ones included."""
        return self._pool.num_free

    def block_ids(self, request_id: RequestId) -> tuple[BlockId, ...]:
        """The block table of a request; empty for one that holds nothing."""
        table = self._tables.get(request_id)
        return tuple(table.blocks) if table else ()

    def match(self, request: Request) -> PrefixHit:
        """Gives a request that holds nothing the longest cached prefix of its known tokens.

        Full blocks only, and never all tokens: the last one is always computed, since its logits
        are wanted. The blocks are referenced at once, so that nothing can evict them.
        """
        assert request.request_id not in self._tables, f"{request.request_id} holds blocks already"
        table = _Table(root_hash(request.cache_salt))
        self._tables[request.request_id] = table
        if not self._caching or request.params.prompt_logprobs is not None:
            return PrefixHit(0, ())
        tokens, size = request.token_ids(), self.block_size
        for begin in range(0, (len(tokens) - 1) // size * size, size):
            key = block_hash(table.hashes[-1], tokens[begin : begin + size])
            block = self._index.lookup(key)
            if block is None:
                break
            self._retain(block)
            table.blocks.append(block)
            table.hashes.append(key)
        table.num_published = len(table.blocks)
        return PrefixHit(table.num_published * size, tuple(table.blocks))

    def reserve(self, request: Request, num_tokens: int) -> BlockDelta | None:
        """Makes room for ``num_tokens`` tokens after the computed ones.

        Returns:
            The change of the block table, or None if there are too few blocks; then nothing has
            changed.
        """
        table = self._tables[request.request_id]
        first = request.num_computed_tokens // self.block_size
        last = (request.num_computed_tokens + num_tokens - 1) // self.block_size
        blocks = table.blocks
        num_new = last + 1 - len(blocks)
        shared = [
            index
            for index in range(first, min(last + 1, len(blocks)))
            if self._pool.ref_counts[blocks[index]] > 1 or blocks[index] in self._index
        ]
        if num_new <= 0 and not shared:
            return _NO_CHANGE
        if max(num_new, 0) + len(shared) > self._pool.num_free:
            return None
        copies = tuple(self._copy_on_write(request.request_id, table, index) for index in shared)
        new = tuple(self._take() for _ in range(num_new))
        blocks.extend(new)
        return BlockDelta(new, copies)

    def commit(self, request: Request) -> None:
        """Publishes the blocks that the request's computed tokens have filled.

        Call it after ``num_computed_tokens`` has grown; costs nothing between block boundaries.
        """
        table = self._tables[request.request_id]
        full = request.num_computed_tokens // self.block_size
        if not self._caching or full <= table.num_published:
            return
        size = self.block_size
        for index in range(table.num_published, full):
            tokens = _slice(request, index * size, (index + 1) * size)
            key = block_hash(table.hashes[index], tokens)
            del table.hashes[index + 1 :]
            table.hashes.append(key)
            self._index.publish(key, table.blocks[index])
        table.num_published = full

    def trim(self, request: Request) -> None:
        """Gives back blocks beyond the computed tokens: those of rejected drafts."""
        table = self._tables[request.request_id]
        needed = -(-request.num_computed_tokens // self.block_size)
        while len(table.blocks) > needed:
            self._release(table.blocks.pop())

    def free(self, request_id: RequestId) -> None:
        """Gives back all blocks of a request. Published ones stay findable until evicted."""
        table = self._tables.pop(request_id)
        # The tail goes first, so that it is evicted before the head that it builds upon.
        for block in reversed(table.blocks):
            self._release(block)

    def fork(self, parent: Request, child: Request) -> None:
        """Lets ``child``, which holds nothing, share the blocks of the parent's computed tokens.

        Sets the child's computed tokens: all those that both have in common, save the child's last
        known token. Its first write into a shared block copies that block.
        """
        assert child.request_id not in self._tables, f"{child.request_id} holds blocks already"
        source = self._tables[parent.request_id]
        common = min(parent.num_computed_tokens, child.num_known_tokens - 1)
        table = _Table(source.hashes[0])
        table.blocks = source.blocks[: -(-common // self.block_size)]
        table.num_published = min(source.num_published, common // self.block_size)
        table.hashes = source.hashes[: table.num_published + 1]
        for block in table.blocks:
            self._pool.retain(block)
        self._tables[child.request_id] = table
        child.num_computed_tokens = common

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix. Blocks in use stay, but nobody new will share them."""
        for block in self._index.blocks():
            if self._pool.ref_counts[block] == 0:
                self._pool.move_to_front(block)
            self._index.forget(block)
        self._num_cached = 0

    def stats(self) -> CacheStats:
        """Where the blocks are."""
        free = self._pool.num_free
        return CacheStats(
            num_total_blocks=self.num_blocks,
            num_free_blocks=free - self._num_cached,
            num_cached_blocks=self._num_cached,
            num_used_blocks=self.num_blocks - free,
        )

    def check_invariants(self) -> None:
        """Verifies that no block is lost, and none is used by someone who does not count.

        Raises:
            AssertionError: what is wrong.
        """
        self._pool.check()
        self._index.check()
        held = [0] * self.num_blocks
        for request_id, table in self._tables.items():
            if len(set(table.blocks)) != len(table.blocks):
                raise AssertionError(f"the block table of {request_id} names a block twice")
            if table.num_published > len(table.blocks):
                raise AssertionError(f"{request_id} published more blocks than it holds")
            for block in table.blocks:
                held[block] += 1
        for block, count in enumerate(self._pool.ref_counts):
            if count != held[block]:
                raise AssertionError(
                    f"block {block} has reference count {count}, but {held[block]} tables name it"
                )
        cached = sum(self._pool.ref_counts[block] == 0 for block in self._index.blocks())
        if cached != self._num_cached:
            raise AssertionError(f"{cached} blocks are cached, but {self._num_cached} are counted")

    def _copy_on_write(self, request_id: RequestId, table: _Table, index: int) -> BlockCopy:
        source = table.blocks[index]
        target = self._take()
        table.blocks[index] = target
        table.num_published = min(table.num_published, index)
        del table.hashes[table.num_published + 1 :]
        self._release(source)
        return BlockCopy(request_id, index, source, target)

    def _take(self) -> BlockId:
        block = self._pool.alloc()
        assert block is not None, "reserve checked that there are enough blocks"
        if block in self._index:
            self._index.forget(block)
            self._num_cached -= 1
        return block

    def _retain(self, block: BlockId) -> None:
        if self._pool.ref_counts[block] == 0:
            self._num_cached -= 1
        self._pool.retain(block)

    def _release(self, block: BlockId) -> None:
        published = block in self._index
        if self._pool.release(block, keep=published) and published:
            self._num_cached += 1


def _slice(request: Request, begin: int, end: int) -> Sequence[int]:
    """Known tokens ``begin`` to ``end``, without copying the rest."""
    prompt = request.prompt_token_ids
    if end <= len(prompt):
        return prompt[begin:end]
    offset = len(prompt)
    output = request.output_token_ids
    return [*prompt[begin:], *output[max(0, begin - offset) : end - offset]]
