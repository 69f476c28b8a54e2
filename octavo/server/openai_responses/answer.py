"""An answer of the Responses API as it grows, and the events that tell of it."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.front.outputs import DecodedLogprob
from octavo.server import dialect
from octavo.server.openai.chat import logprobs_json
from octavo.server.openai.responses import TokenLogprob
from octavo.server.openai_responses.bodies import (
    FunctionCallItem,
    IncompleteDetails,
    Item,
    MessageItem,
    OutputText,
    Part,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponsesEvent,
    ResponsesUsage,
    Status,
)
from octavo.server.parsing import events as parsed

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class Answer:
    """Grows with the pieces that it is fed.

    Args:
        response: without any output yet.
    """

    def __init__(self, response: Response) -> None:
        self.response = response
        self._num_events = 0
        self._open: Item | None = None
        self._logprobs: list[TokenLogprob] = []
        """Those whose text has not been told of yet."""

    def feed(self, piece: dialect.Piece) -> list[ResponsesEvent]:
        """The events of a piece of the answer, the first and last of the stream included."""
        found: list[ResponsesEvent] = []
        if not self._num_events:
            found += [self._life("response.created"), self._life("response.in_progress")]
        self._logprobs += _logprobs(piece.logprobs)
        for event in piece.events:
            found += self._feed(event)
        if isinstance(self._open, ReasoningItem | FunctionCallItem):
            self._logprobs.clear()  # only those of text are told
        if piece.ending is not None:
            found += self._ended(piece)
        return found

    def failed(self, message: str) -> ResponsesEvent:
        """The event that ends a stream whose answer cannot be finished."""
        self.response.status = "failed"
        self.response.error = ResponseError("server_error", message)
        return self._life("response.failed")

    def _ended(self, piece: dialect.Piece) -> list[ResponsesEvent]:
        assert piece.ending is not None  # noqa: S101 - the caller has looked
        response = self.response
        is_complete = piece.ending.finish_reason == "stop"
        found = self._closed("completed" if is_complete else "incomplete")
        response.usage = ResponsesUsage.of(piece.usage)
        response.status = "completed" if is_complete else "incomplete"
        if is_complete:
            response.completed_at = int(time.time())
        elif piece.ending.finish_reason == "length":
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        return [*found, self._life(f"response.{response.status}")]

    def _feed(self, event: parsed.Event) -> list[ResponsesEvent]:
        if isinstance(event, parsed.ToolCallStart):
            call = FunctionCallItem(dialect.new_id("fc"), "in_progress", event.id, event.name, "")
            return self._opened(call)
        if isinstance(event, parsed.ToolCallArguments):
            return self._more_arguments(event.fragment)
        found = []
        if isinstance(event, parsed.Text):
            if not isinstance(self._open, MessageItem):
                found = self._opened(MessageItem(dialect.new_id("msg"), "in_progress", []))
        elif not isinstance(self._open, ReasoningItem):
            found = self._opened(ReasoningItem(dialect.new_id("rs"), "in_progress", []))
        return [*found, self._more_text(event.text)]

    def _more_text(self, text: str) -> ResponsesEvent:
        part = self._part()
        part.text += text
        more: dict[str, Any] = {"delta": text}
        if isinstance(part, OutputText):
            more["logprobs"], self._logprobs = self._logprobs, []
            part.logprobs += more["logprobs"]
        return self._of_part("delta", **more)

    def _more_arguments(self, fragment: str) -> list[ResponsesEvent]:
        call = self._open
        assert isinstance(call, FunctionCallItem)  # noqa: S101 - a call begins with its name
        call.arguments += fragment
        return [
            self._of_item("response.function_call_arguments.delta", item_id=call.id, delta=fragment)
        ]

    def _opened(self, item: Item) -> list[ResponsesEvent]:
        if not isinstance(item, MessageItem):
            self._logprobs.clear()  # of the marks before it
        found = self._closed("completed")
        self._open = item
        self.response.output.append(item)
        found.append(self._of_item("response.output_item.added", item=copy.deepcopy(item)))
        if isinstance(item, FunctionCallItem):
            return found
        part: Part
        if isinstance(item, MessageItem):
            part = OutputText("", [])
            item.content.append(part)
        else:
            part = ReasoningText("")
            item.content.append(part)
        return [*found, self._of_parts("added", copy.deepcopy(part))]

    def _closed(self, status: Status) -> list[ResponsesEvent]:
        item = self._open
        if item is None:
            return []
        self._open, found = None, []
        if isinstance(item, FunctionCallItem):
            whole = {"item_id": item.id, "name": item.name, "arguments": item.arguments}
            found.append(self._of_item("response.function_call_arguments.done", **whole))
        else:
            part = item.content[0]
            more: dict[str, Any] = {"text": part.text}
            if isinstance(part, OutputText):
                part.logprobs += self._logprobs
                self._logprobs = []
                more["logprobs"] = part.logprobs
            self._open = item
            found += [self._of_part("done", **more), self._of_parts("done", part)]
            self._open = None
        item.status = status
        found.append(self._of_item("response.output_item.done", item=item))
        return found

    def _part(self) -> Part:
        assert isinstance(self._open, MessageItem | ReasoningItem)  # noqa: S101 - has been opened
        return self._open.content[0]

    def _life(self, kind: str) -> ResponsesEvent:
        response = msgspec.structs.replace(self.response, output=list(self.response.output))
        return self._numbered(kind, response=response)

    def _of_part(self, what: str, **fields: Any) -> ResponsesEvent:
        """An event of the text of the open item."""
        assert self._open is not None  # noqa: S101 - as above
        kind = _PARTS[self._open.__struct_config__.tag]  # type: ignore[index]
        more = {"item_id": self._open.id, "content_index": 0, **fields}
        return self._of_item(f"response.{kind}.{what}", **more)

    def _of_parts(self, what: str, part: Part) -> ResponsesEvent:
        """An event of the list of parts of the open item."""
        assert self._open is not None  # noqa: S101 - as above
        fields = {"item_id": self._open.id, "content_index": 0, "part": part}
        return self._of_item(f"response.content_part.{what}", **fields)

    def _of_item(self, kind: str, **fields: Any) -> ResponsesEvent:
        return self._numbered(kind, output_index=len(self.response.output) - 1, **fields)

    def _numbered(self, kind: str, **fields: Any) -> ResponsesEvent:
        self._num_events += 1
        return ResponsesEvent(type=kind, sequence_number=self._num_events - 1, **fields)


def _logprobs(entries: Sequence[DecodedLogprob]) -> list[TokenLogprob]:
    return logprobs_json(entries).content if entries else []
