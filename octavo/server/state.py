"""What every endpoint needs: the engine, the model's names, templates and limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from fastapi import Request

from octavo.core.config import ServerConfig
from octavo.core.errors import InvalidParameter
from octavo.core.types import RequestId, TokenId
from octavo.front.async_engine import AsyncEngine
from octavo.server.access.control import Access
from octavo.server.access.limits import Account
from octavo.server.access.tenant import TenantEngine
from octavo.server.errors import UnknownModel
from octavo.server.parsing.formats import AnswerFormat, answer_format
from octavo.server.record import RecordedEngine, RequestRecord, Sink
from octavo.tokenizer.chat_template import ChatTemplate


@dataclass(slots=True, kw_only=True)
class ServerState:
    """One server; kept in ``app.state.server``."""

    engine: AsyncEngine
    config: ServerConfig
    model_names: tuple[str, ...]
    """Names that clients may use; the first is the one that answers carry by default."""
    generation_defaults: dict[str, float | int]
    """Sampling parameters that the model recommends."""
    chat_template: ChatTemplate
    access: Access
    sinks: tuple[Sink, ...] = ()
    """Keepers of records of every request."""
    record: RequestRecord | None = None
    """That of the request that this is for, if records are kept."""
    owners: dict[RequestId, str] = field(default_factory=dict)
    """Whose requests are in flight: names of API keys by request id."""
    started: int = field(default_factory=lambda: int(time.time()))

    def answer_format(self, template: ChatTemplate | None = None) -> AnswerFormat:
        """How the model writes answers to a conversation in this template, or in its own."""
        source = (template or self.chat_template).source
        return answer_format(source, self.config.tool_call_parser, self.config.reasoning_parser)

    @property
    def max_model_len(self) -> int:
        """Longest prompt and output together, in tokens."""
        return self.engine.info.max_model_len

    def check_model(self, name: str | None) -> str:
        """The name to answer with.

        Raises:
            UnknownModel: this server does not serve that model.
        """
        if name is None:
            name = self.model_names[0]
        if name not in self.model_names:
            raise UnknownModel(
                f"model {name!r} does not exist here: use {' or '.join(self.model_names)}",
                param="model",
            )
        if self.record is not None:
            self.record.model = name
        return name

    def check_token_ids(self, token_ids: Sequence[TokenId], param: str) -> None:
        """Refuses ids that the model does not have.

        Raises:
            InvalidParameter: names the first of them.
        """
        vocab = self.engine.info.spec.vocab_size
        if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab):
            return
        wrong = next(token for token in token_ids if not 0 <= token < vocab)
        raise InvalidParameter(
            f"{param} has token id {wrong}: this model's are 0 to {vocab - 1}", param=param
        )


def state_of(request: Request) -> ServerState:
    """The server that a request came to, as the tenant who sent it sees it.

    Endpoints take the engine from here and from nowhere else: what they ask of it is then recorded,
    and salted and charged by the tenant's rules.
    """
    state: ServerState = request.app.state.server
    found = request.scope.get("state", {})
    record: RequestRecord | None = found.get("record")
    if record is not None:
        recorded = cast(AsyncEngine, RecordedEngine(state.engine, record))
        state = replace(state, engine=recorded, record=record)
    account: Account | None = found.get("account")
    if account is None:
        return state
    engine = TenantEngine(
        state.engine, account, state.owners, isolates_caches=state.access.isolates_caches
    )
    return replace(state, engine=cast(AsyncEngine, engine))
