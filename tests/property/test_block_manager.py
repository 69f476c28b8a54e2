"""Any sequence of operations on `BlockManager` loses no block, and shares only equal content."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.params import SamplingParams
from octavo.core.request import Request
from octavo.kv.manager import BlockManager

TOKENS = 3  # a small alphabet, so that prefixes are often equal


class Blocks(RuleBasedStateMachine):
    """Keeps a model of every slot's content beside the manager."""

    @initialize(
        num_blocks=st.integers(2, 14), size=st.sampled_from([1, 2, 4]), caching=st.booleans()
    )
    def start(self, num_blocks, size, caching):
        self.size = size
        self.blocks = BlockManager(num_blocks, size, enable_prefix_caching=caching)
        self.live: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.slots: dict[int, tuple[str, int, int]] = {}  # slot -> salt, position, token
        self.count = 0
        self.rng = random.Random(0)

    def pick(self, number):
        names = sorted(self.live)
        return self.live[names[number % len(names)]]

    def new(self, length, salt):
        self.count += 1
        tokens = tuple(self.rng.randrange(TOKENS) for _ in range(length))
        return Request(
            request_id=f"r{self.count}",
            prompt_token_ids=tokens,
            params=SamplingParams(),
            seed=0,
            cache_salt=salt,
        )

    def slot(self, request, position):
        return (
            self.blocks.block_ids(request.request_id)[position // self.size] * self.size
            + position % self.size
        )

    def check_context(self, request):
        tokens = request.token_ids()
        for position in range(request.num_computed_tokens):
            expected = (request.cache_salt, position, tokens[position])
            assert self.slots[self.slot(request, position)] == expected

    @rule(length=st.integers(1, 20), salt=st.sampled_from(["", "x"]))
    def arrive(self, length, salt):
        self.waiting.append(self.new(length, salt))

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 50))
    def match(self, number):
        request = self.waiting[number % len(self.waiting)]
        length = request.num_known_tokens
        hit = self.blocks.match(request)
        assert hit.num_tokens < length and hit.num_tokens % self.size == 0
        available = self.blocks.num_available_blocks
        request.num_computed_tokens = hit.num_tokens
        amount = self.rng.randint(1, request.num_remaining_tokens)
        if self.blocks.reserve(request, amount, hit) is None:
            assert self.blocks.num_available_blocks == available
            assert self.blocks.block_ids(request.request_id) == ()
            request.num_computed_tokens = 0
            return
        self.waiting.remove(request)
        self.live[request.request_id] = request
        self.check_context(request)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 50), amount=st.integers(1, 9))
    def compute(self, number, amount):
        request = self.pick(number)
        if request.num_remaining_tokens == 0:
            request.output_token_ids.append(self.rng.randrange(TOKENS))
        amount = min(amount, request.num_remaining_tokens)
        available = self.blocks.num_available_blocks
        before = self.blocks.block_ids(request.request_id)
        delta = self.blocks.reserve(request, amount)
        if delta is None:
            assert self.blocks.block_ids(request.request_id) == before
            assert self.blocks.num_available_blocks == available
            return
        for copy in delta.copies:
            for offset in range(self.size):
                content = self.slots.get(copy.source * self.size + offset)
                if content is not None:
                    self.slots[copy.target * self.size + offset] = content
        tokens = request.token_ids()
        for position in range(request.num_computed_tokens, request.num_computed_tokens + amount):
            self.slots[self.slot(request, position)] = (
                request.cache_salt,
                position,
                tokens[position],
            )
        request.num_computed_tokens += amount
        self.blocks.commit(request)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 50), extra=st.integers(1, 9))
    def reserve_and_give_back(self, number, extra):
        request = self.pick(number)
        delta = self.blocks.reserve(request, extra)
        if delta is not None:
            for copy in delta.copies:
                for offset in range(self.size):
                    content = self.slots.get(copy.source * self.size + offset)
                    if content is not None:
                        self.slots[copy.target * self.size + offset] = content
            self.blocks.trim(request)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 50))
    def free(self, number):
        request = self.pick(number)
        self.blocks.free(request.request_id)
        del self.live[request.request_id]

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 50))
    def preempt(self, number):
        request = self.pick(number)
        self.blocks.free(request.request_id)
        request.num_computed_tokens = 0
        self.waiting.append(self.live.pop(request.request_id))

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 50))
    def fork(self, number):
        parent = self.pick(number)
        child = self.new(1, parent.cache_salt)
        child.prompt_token_ids = tuple(parent.token_ids())
        self.blocks.fork(parent, child)
        assert child.num_computed_tokens < child.num_known_tokens
        self.live[child.request_id] = child

    @rule()
    def reset(self):
        self.blocks.reset_prefix_cache()

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "blocks"):
            self.blocks.check_invariants()
            stats = self.blocks.stats()
            total = stats.num_free_blocks + stats.num_cached_blocks + stats.num_used_blocks
            assert total == stats.num_total_blocks

    @invariant()
    def everyone_reads_what_they_wrote(self):
        for request in getattr(self, "live", {}).values():
            self.check_context(request)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
