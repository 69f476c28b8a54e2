"""Suffix matching: what followed the same tokens in past answers, not only in this request.

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024.
Agents and batch jobs ask much the same again and again, and their answers repeat one another. A run
of last tokens is looked up in the request's own text and in the finished answers of its tenant; the
longer the run that is found, the more of what followed it is proposed, token by token the one that
followed most often.

The paper keeps suffix trees. Here an index of short runs finds the places, and each is followed
backwards to see how long the match is: the answer is the same, and it takes one entry a token.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.request import Request
from octavo.core.types import RequestId, TokenId

_RUN = 3
"""Tokens of a run in the index: shorter matches say too little."""
_MAX_PLACES = 16
"""Latest places of a run that are looked at."""
_MAX_TENANTS = 256


class Place(NamedTuple):
    """Where a run ends: ``text[end]`` is the token after it."""

    text: Sequence[TokenId]
    end: int


class RunIndex:
    """Places of all short runs in some texts, the latest ones of each."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[tuple[TokenId, ...], deque[Place]] = {}

    def add(self, text: Sequence[TokenId], start: int, stop: int) -> None:
        """The runs of a text that end at ``start`` to ``stop - 1``; it may grow later."""
        for end in range(max(start, _RUN), stop):
            run = tuple(text[end - _RUN : end])
            self._places.setdefault(run, deque(maxlen=_MAX_PLACES)).append(Place(text, end))

    def remove(self, text: Sequence[TokenId]) -> None:
        """Forgets all places in a text."""
        for end in range(_RUN, len(text)):
            run = tuple(text[end - _RUN : end])
            left = [place for place in self._places.get(run, ()) if place.text is not text]
            if left:
                self._places[run] = deque(left, _MAX_PLACES)
            else:
                self._places.pop(run, None)

    def find(self, tail: Sequence[TokenId]) -> Sequence[Place]:
        """Places that follow the last few tokens of ``tail``."""
        return self._places.get(tuple(tail[-_RUN:]), ())


class _Answers:
    """Finished outputs of one tenant, the oldest forgotten first."""

    __slots__ = ("_texts", "index")

    def __init__(self) -> None:
        self.index = RunIndex()
        self._texts: deque[tuple[TokenId, ...]] = deque()

    def add(self, text: tuple[TokenId, ...], limit: int) -> None:
        self._texts.append(text)
        self.index.add(text, 0, len(text))
        while len(self._texts) > limit:
            self.index.remove(self._texts.popleft())


class _Own:
    """One running request's tokens, and an index of them."""

    __slots__ = ("index", "output_token_ids", "salt", "tokens")

    def __init__(self, request: Request) -> None:
        self.salt = request.cache_salt
        self.output_token_ids = request.output_token_ids
        self.tokens: list[TokenId] = []
        self.index = RunIndex()
        self.extend(request.prompt_token_ids)

    def extend(self, tokens: Sequence[TokenId]) -> None:
        known = len(self.tokens)
        self.tokens += tokens
        # Runs that end before the last token: one that ends with it has nothing after it yet.
        self.index.add(self.tokens, known, len(self.tokens))


class SuffixProposer:
    """Drafts for any number of requests, from what they and earlier ones of the same tenant said.

    Args:
        max_depth: tokens of a match beyond which it is not followed back.
        max_requests: finished answers that are remembered for each tenant (cache salt).
        factor: tokens proposed for each token of the match.
        min_probability: a draft ends before its tokens together are less likely than this, by how
            often they followed.
    """

    def __init__(
        self, *, max_depth: int, max_requests: int, factor: float, min_probability: float
    ) -> None:
        self._max_depth, self._max_requests = max_depth, max_requests
        self._factor, self._min_probability = factor, min_probability
        self._own: dict[RequestId, _Own] = {}
        self._answers: OrderedDict[str, _Answers] = OrderedDict()

    def propose(self, request: Request, count: int) -> tuple[TokenId, ...]:
        """At most ``count`` tokens that may follow all known ones."""
        own = self._own.get(request.request_id)
        if own is None:
            own = self._own[request.request_id] = _Own(request)
        own.extend(request.output_token_ids[len(own.tokens) - request.num_prompt_tokens :])
        places = list(own.index.find(own.tokens))
        past = self._answers.get(own.salt)
        if past is not None:
            self._answers.move_to_end(own.salt)
            places += past.index.find(own.tokens)
        length, longest = self._longest_matches(own.tokens, places)
        return self._follow(longest, min(count, int(self._factor * length)))

    def forget(self, request_id: RequestId) -> None:
        """The request has ended: what it said is remembered for others."""
        own = self._own.pop(request_id, None)
        if own is None or self._max_requests == 0 or len(own.output_token_ids) <= _RUN:
            return
        past = self._answers.setdefault(own.salt, _Answers())
        past.add(tuple(own.output_token_ids), self._max_requests)
        self._answers.move_to_end(own.salt)
        if len(self._answers) > _MAX_TENANTS:
            self._answers.popitem(last=False)

    def _longest_matches(
        self, tokens: Sequence[TokenId], places: Sequence[Place]
    ) -> tuple[int, list[Place]]:
        """The places before which most of the last tokens stand, and how many those are."""
        longest: list[Place] = []
        best = _RUN
        for place in places:
            length = _RUN
            limit = min(self._max_depth, place.end, len(tokens))
            while length < limit and place.text[place.end - 1 - length] == tokens[-1 - length]:
                length += 1
            if length > best:
                best, longest = length, []
            if length == best:
                longest.append(place)
        return best, longest

    def _follow(self, places: list[Place], count: int) -> tuple[TokenId, ...]:
        draft: list[TokenId] = []
        probability = 1.0
        while len(draft) < count:
            depth = len(draft)
            nexts = [
                place.text[place.end + depth]
                for place in places
                if place.end + depth < len(place.text)
            ]
            if not nexts:
                break
            token, votes = Counter(reversed(nexts)).most_common(1)[0]  # of equals the latest
            probability *= votes / len(nexts)
            if probability < self._min_probability:
                break
            draft.append(token)
            places = [
                place
                for place in places
                if place.end + depth < len(place.text) and place.text[place.end + depth] == token
            ]
        return tuple(draft)
