"""From the items of a request to the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.core.errors import InvalidParameter
from octavo.server import dialect
from octavo.server.openai import schemas as chat
from octavo.server.openai_responses.schemas import (
    FunctionCallOutputItem,
    InputFunctionCallItem,
    InputMessageItem,
    InputReasoningItem,
    InputTextPart,
    OutputTextPart,
    ResponsesRequest,
)


def messages_of(body: ResponsesRequest) -> list[chat.Message]:
    """The conversation of a request.

    Raises:
        InvalidParameter: it makes no sense.
    """
    found = [] if body.instructions is None else [_message("system", content=body.instructions)]
    if isinstance(body.input, str):
        return [*found, _message("user", content=body.input)]
    reader = _Reader(found)
    for number, item in enumerate(body.input):
        reader.read(item, f"input[{number}]")
    reader.check_thoughts()
    return found


class _Reader:
    """Joins items that one message of a chat holds: what the model thought, said and called."""

    def __init__(self, found: list[chat.Message]) -> None:
        self._found = found
        self._thoughts: str | None = None
        """Those that belong to the next thing that the model said or called."""
        self._thought_at = ""
        self._is_open = False
        """Whether a call belongs to the last message."""

    def read(self, item: Any, where: str) -> None:
        """Takes in the next item."""
        match item:
            case InputReasoningItem():
                parts = item.content or item.summary or ()
                self._thoughts = (self._thoughts or "") + "".join(part.text for part in parts)
                self._thought_at = where
                self._is_open = False
            case InputMessageItem(role="assistant"):
                self._say(content=_text(item.content))
            case InputFunctionCallItem():
                call = dialect.tool_call(item.name, item.arguments, item.call_id)
                if not self._is_open:
                    self._say(content=None, tool_calls=[])
                last = self._found[-1]
                last.tool_calls = [*(last.tool_calls or ()), call]
            case InputMessageItem():
                self._hear(item.role, content=_text(item.content))
            case FunctionCallOutputItem():
                self._hear("tool", content=_text(item.output), tool_call_id=item.call_id)

    def check_thoughts(self) -> None:
        """Refuses thoughts that belong to nothing."""
        if self._thoughts is not None:
            raise InvalidParameter(
                f"{self._thought_at} is reasoning that no message or call of the model follows: "
                "leave it out, or send what the model said after it",
                param=self._thought_at,
            )

    def _say(self, **fields: Any) -> None:
        self._found.append(_message("assistant", reasoning_content=self._thoughts, **fields))
        self._thoughts, self._is_open = None, True

    def _hear(self, role: str, **fields: Any) -> None:
        self.check_thoughts()
        self._found.append(_message(role, **fields))
        self._is_open = False


def _message(role: str, **fields: Any) -> chat.Message:
    return chat.Message.model_construct(role=role, **fields)


def _text(given: str | Sequence[Any]) -> str:
    if isinstance(given, str):
        return given
    return "".join(part.text for part in given if isinstance(part, InputTextPart | OutputTextPart))
