"""The tools of a request, and which of them may or must be called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.core.errors import InvalidParameter

Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may ask the client to call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """JSON schema of the arguments; None for none."""
    strict: bool = False
    """Arguments must satisfy the schema even if the model calls the tool of its own accord."""

    @property
    def schema(self) -> dict[str, Any]:
        """What the arguments must satisfy: always an object."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}

    def described(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What a request says of tools.

    Raises:
        InvalidParameter: the tools contradict each other, or one that must be called is missing.
    """

    tools: Sequence[Tool] = ()
    mode: Mode = "none"
    """Whether the model may call tools, or must."""
    only: Sequence[str] | None = None
    """Names of those it may call; None for all."""
    is_parallel: bool = True
    """Whether one answer may have several calls."""
    allowed: Sequence[Tool] = field(init=False)
    """The tools that may be called."""

    def __post_init__(self) -> None:
        names = Counter(tool.name for tool in self.tools)
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise InvalidParameter(f"tools has {twice!r} twice: use other names", param="tools")
        for tool in self.tools:
            if tool.schema["type"] != "object":
                raise InvalidParameter(
                    f"parameters of the tool {tool.name!r} are of type {tool.schema['type']!r}: "
                    "use 'object'",
                    param="tools",
                )
        missing = next((name for name in self.only or () if name not in names), None)
        if missing is not None:
            raise InvalidParameter(
                f"tool_choice names {missing!r}, which is not in tools", param="tool_choice"
            )
        allowed = [t for t in self.tools if self.only is None or t.name in self.only]
        if self.mode == "required" and not allowed:
            raise InvalidParameter(
                "tool_choice asks for a call, but there are no tools: send tools",
                param="tool_choice",
            )
        object.__setattr__(self, "allowed", () if self.mode == "none" else tuple(allowed))
