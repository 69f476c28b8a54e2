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

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from octavo.core.plan import BlockCopy
from octavo.core.request import Request
from octavo.core.types import BlockId, RequestId
from octavo.kv.blocks import BlockPool
from octavo.kv.hashing import BlockHash, block_hash, root_hash
from octavo.kv.prefix import PrefixIndex
from octavo.metrics.stats import CacheStats


class PrefixHit(NamedTuple):
    """The cached beginning of a request. Nobody holds its blocks until they are reserved."""

    num_tokens: int
    block_ids: tuple[BlockId, ...]


class BlockDelta(NamedTuple):
    """What a reservation changed in a request's block table."""

    new_block_ids: tuple[BlockId, ...] = ()
    copies: tuple[BlockCopy, ...] = ()


class Journal:
    """What one reader has still to be told of blocks. Equal to itself alone."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: set[BlockId] = set()


NO_HIT = PrefixHit(0, ())
_NO_CHANGE = BlockDelta()


class _Table:
    """One request's blocks, and the hashes of the full ones that were published or matched."""

    __slots__ = ("blocks", "hashes", "num_published")

    def __init__(self, hashes: list[BlockHash]) -> None:
        self.blocks: list[BlockId] = []
        self.hashes = hashes  # hashes[i] is the parent of block i
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
        self._journals: list[Journal] = []
        self._num_cached = 0
        """Published blocks that nobody references."""
        self._last_hashed: tuple[Request, list[BlockHash]] | None = None
        """The last request that was matched and its hashes, since the head of the line asks
        again and again."""

    @property
    def num_available_blocks(self) -> int:
        """Blocks that could be reserved now, cached ones included."""
        return self._pool.num_free

    @property
    def ref_counts(self) -> Sequence[int]:
        """How many requests name each block. To be read only."""
        return self._pool.ref_counts

    @property
    def published(self) -> Mapping[BlockId, BlockHash]:
        """Blocks that can be found by prefix, and their hashes. To be read only."""
        return self._index.hash_of

    @property
    def changed_s(self) -> Sequence[float]:
        """When each block was taken, or given back by its last holder; 0 for one that was never
        used. To be read only."""
        return self._pool.changed_s

    @property
    def num_shared_blocks(self) -> int:
        """Blocks that several requests hold."""
        return self._pool.num_shared

    def set_time(self, now_s: float) -> None:
        """What happens from now on happens at this time."""
        self._pool.now_s = now_s

    def begin_journal(self) -> Journal:
        """From now on, note which blocks change hands or become findable, for one more reader."""
        journal = Journal()
        self._journals.append(journal)
        if self._pool.journal is None:
            self._pool.journal = set()
        return journal

    def take_journal(self, journal: Journal) -> set[BlockId]:
        """The blocks noted since this journal was begun or last taken."""
        noted = self._pool.journal
        assert noted is not None, "no journal has been begun"
        for reader in self._journals:
            reader.blocks |= noted
        noted.clear()
        found, journal.blocks = journal.blocks, set()
        return found

    def end_journal(self, journal: Journal) -> None:
        """Nothing is noted for this reader any more, and nothing at all without another."""
        self._journals.remove(journal)
        if not self._journals:
            self._pool.journal = None

    def is_looked_up(self, request: Request) -> bool:
        """Whether `match` looks for a prefix of this request at all."""
        return self._caching and not request.needs_whole_prompt

    def block_ids(self, request_id: RequestId) -> tuple[BlockId, ...]:
        """The block table of a request; empty for one that holds nothing."""
        table = self._tables.get(request_id)
        return tuple(table.blocks) if table else ()

    def match(self, request: Request) -> PrefixHit:
        """Finds the longest cached prefix of a request that holds nothing.

        Full blocks only, and never all known tokens: the last one is always computed, since its
        logits are wanted; nor anything for a request that needs its whole prompt computed. Changes
        nothing: hand the hit to `reserve` at once, before anything can evict its blocks. A request
        that has to wait may ask again every step: its tokens are hashed once.
        """
        assert request.request_id not in self._tables, f"{request.request_id} holds blocks already"
        if not self.is_looked_up(request):
            return NO_HIT
        hashes, size = self._hashes(request), self.block_size
        blocks: list[BlockId] = []
        for index in range((request.num_known_tokens - 1) // size):
            if index + 1 == len(hashes):
                tokens = _slice(request, index * size, (index + 1) * size)
                hashes.append(block_hash(hashes[index], tokens))
            block = self._index.lookup(hashes[index + 1])
            if block is None:
                break
            blocks.append(block)
        return PrefixHit(len(blocks) * size, tuple(blocks))

    def reserve(
        self, request: Request, num_tokens: int, hit: PrefixHit = NO_HIT
    ) -> BlockDelta | None:
        """Makes room for ``num_tokens`` tokens after the computed ones.

        Args:
            hit: with the first reservation of a request, what `match` found for it; its tokens
                count as computed.

        Returns:
            The change of the block table, or None if there are too few blocks; then nothing has
            changed.
        """
        table = self._tables.get(request.request_id)
        if table is None:
            return self._begin(request, num_tokens, hit)
        blocks, computed = table.blocks, request.num_computed_tokens
        num_new = max(0, -(-(computed + num_tokens) // self.block_size) - len(blocks))
        # Blocks are shared for what is computed in them: only the first one written can be.
        first = computed // self.block_size
        is_shared = first < len(blocks) and (
            self._pool.ref_counts[blocks[first]] > 1 or blocks[first] in self._index.hash_of
        )
        if not num_new and not is_shared:
            return _NO_CHANGE
        if num_new + is_shared > self._pool.num_free:
            return None
        copies = (self._copy_on_write(request.request_id, table, first),) if is_shared else ()
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
            table.hashes.append(key)
            self._index.publish(key, table.blocks[index])
        if self._pool.journal is not None:
            self._pool.journal.update(table.blocks[table.num_published : full])
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
        num_published = min(source.num_published, common // self.block_size)
        table = _Table(source.hashes[: num_published + 1])
        table.blocks = source.blocks[: -(-common // self.block_size)]
        table.num_published = num_published
        for block in table.blocks:
            self._pool.retain(block)
        self._tables[child.request_id] = table
        child.num_computed_tokens = common

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix. Blocks in use stay, but nobody new will share them."""
        for block in list(self._index.hash_of):
            if self._pool.ref_counts[block] == 0:
                self._pool.move_to_front(block)
            self._index.forget(block)
            if self._pool.journal is not None:
                self._pool.journal.add(block)
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
            num_hashed = len(table.hashes) - 1
            if not table.num_published == num_hashed <= len(table.blocks):
                raise AssertionError(
                    f"{request_id} published {table.num_published} blocks, hashed {num_hashed}, "
                    f"and holds {len(table.blocks)}"
                )
            for block, key in zip(table.blocks, table.hashes[1:], strict=False):
                if self._index.hash_of.get(block) not in (key, None):
                    raise AssertionError(f"block {block} of {request_id} is published as another")
            for block in table.blocks:
                held[block] += 1
        for block, count in enumerate(self._pool.ref_counts):
            if count != held[block]:
                raise AssertionError(
                    f"block {block} has reference count {count}, but {held[block]} tables name it"
                )
        shared = sum(count > 1 for count in held)
        if shared != self.num_shared_blocks:
            raise AssertionError(
                f"{shared} blocks are shared, but {self.num_shared_blocks} are counted"
            )
        cached = sum(self._pool.ref_counts[block] == 0 for block in self._index.hash_of)
        if cached != self._num_cached:
            raise AssertionError(f"{cached} blocks are cached, but {self._num_cached} are counted")
        order = [block in self._index.hash_of for block in self._pool.free_blocks()]
        if order != sorted(order):
            raise AssertionError("a cached block would be taken before one that holds nothing")

    def _begin(self, request: Request, num_tokens: int, hit: PrefixHit) -> BlockDelta | None:
        """The first reservation of a request: a table of the blocks of the hit, and new ones."""
        assert request.num_computed_tokens == hit.num_tokens, "only what was matched is computed"
        counts, num_hits = self._pool.ref_counts, len(hit.block_ids)
        num_new = -(-(hit.num_tokens + num_tokens) // self.block_size) - num_hits
        num_revived = sum(counts[block] == 0 for block in hit.block_ids)
        if num_new + num_revived > self._pool.num_free:
            return None
        table = _Table(self._hashes(request)[: num_hits + 1])
        for block, key in zip(hit.block_ids, table.hashes[1:], strict=True):
            assert self._index.hash_of.get(block) == key, f"block {block} of the hit is gone"
            self._pool.retain(block)
        self._num_cached -= num_revived
        new = tuple(self._take() for _ in range(num_new))
        table.blocks = [*hit.block_ids, *new]
        table.num_published = num_hits
        self._tables[request.request_id] = table
        return BlockDelta(new)

    def _hashes(self, request: Request) -> list[BlockHash]:
        """The chain of hashes of a request's leading blocks, as far as `match` has come."""
        if self._last_hashed is None or self._last_hashed[0] is not request:
            self._last_hashed = (request, [root_hash(request.cache_salt)])
        return self._last_hashed[1]

    def _copy_on_write(self, request_id: RequestId, table: _Table, index: int) -> BlockCopy:
        assert table.num_published <= index, "a block that is full of computed tokens is written"
        source = table.blocks[index]
        target = self._take()
        table.blocks[index] = target
        self._release(source)
        return BlockCopy(request_id, index, source, target)

    def _take(self) -> BlockId:
        block = self._pool.alloc()
        assert block is not None, "reserve checked that there are enough blocks"
        if block in self._index.hash_of:
            self._index.forget(block)
            self._num_cached -= 1
        return block

    def _release(self, block: BlockId) -> None:
        published = block in self._index.hash_of
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
