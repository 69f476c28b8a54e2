"""Request bodies of the Messages API; what is not served is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from octavo.server.openai.schemas import Effort, EngineBody
from octavo.server.schema import Body, Other, by_type, form, text_or_list

_NO_EFFECT = "Has no effect: equal prefixes are found without it."


class CacheControl(Body):
    """Where a prefix that is worth keeping ends."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Cacheable(Body):
    cache_control: CacheControl | None = Field(None, description=_NO_EFFECT)


class InputTextBlock(_Cacheable):
    """A piece of text."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"citations": ([],), "parsed_output": ()}

    type: Literal["text"]
    text: str


class InputThinkingBlock(_Cacheable):
    """What the model thought before it answered."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Has no effect.")


class InputToolUseBlock(_Cacheable):
    """The model called a tool."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "caller": ({"type": "direct"},),
        "toolset_name": (),
    }

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class OtherBlock(Other):
    """Any other block."""

    taken: ClassVar[str] = "text, thinking, tool_use or tool_result"


class OtherText(Other):
    """Any block where only text may stand."""

    taken: ClassVar[str] = "blocks of type 'text'"


Texts = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[
        list[
            Annotated[
                Annotated[InputTextBlock, Tag("~text")] | Annotated[OtherText, Tag("~other")],
                by_type("text"),
            ]
        ],
        Tag("~list"),
    ],
    form(text_or_list, "a string or a list of text blocks"),
]


class InputToolResultBlock(_Cacheable):
    """What a tool answered."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"toolset_name": ()}

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = Field(
        None, description="True: the model reads 'Error: ' before the content."
    )


InputBlock = Annotated[
    Annotated[InputTextBlock, Tag("~text")]
    | Annotated[InputThinkingBlock, Tag("~thinking")]
    | Annotated[InputToolUseBlock, Tag("~tool_use")]
    | Annotated[InputToolResultBlock, Tag("~tool_result")]
    | Annotated[OtherBlock, Tag("~other")],
    by_type("text", "thinking", "tool_use", "tool_result"),
]


class InputMessage(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("~text")] | Annotated[list[InputBlock], Tag("~list")],
        form(text_or_list, "a string or a list of blocks"),
    ]


class MessagesTool(_Cacheable):
    """A tool that the model may use, and the client runs."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "eager_input_streaming": (True,),
        "input_examples": ([],),
    }

    type: Literal["custom"] | None = None
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = Field(
        None, description="Hold the input to the schema even if the model need not use the tool."
    )


class OtherTool(Other):
    """A tool that Anthropic runs, or whose schema it knows."""

    taken: ClassVar[str] = "tools with an input_schema, and no type or 'custom'"


AnyTool = Annotated[
    Annotated[MessagesTool, Tag("~custom")] | Annotated[OtherTool, Tag("~other")],
    by_type("custom", without="custom"),
]


class MessagesToolChoice(Body):
    """Whether the model may use tools, or must."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="With type 'tool': which.")
    disable_parallel_tool_use: bool | None = Field(
        None, description="True: one use of a tool in an answer at most."
    )


class MessagesMetadata(Body):
    """Has no effect: nothing is stored."""

    user_id: str | None = None


class Thinking(Body):
    """Whether the model thinks before it answers, if it can do either."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"display": ("summarized",)}

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(
        None, ge=1, description="Has no effect: max_tokens limits thinking and answer together."
    )


class OutputFormat(Body):
    """JSON by a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """The form of the answer, and what is put into it."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"task_budget": ()}

    format: OutputFormat | None = None
    effort: Effort | None = Field(
        None, description="How much the model thinks, if its chat template can be told."
    )


class ConversationBody(Body):
    """Fields that say what the model reads."""

    messages: list[InputMessage]
    system: Texts | None = None
    tools: list[AnyTool] | None = None
    tool_choice: MessagesToolChoice | None = Field(
        None, description="auto if there are tools, none otherwise."
    )
    cache_control: CacheControl | None = Field(None, description=_NO_EFFECT)
    thinking: Thinking | None = Field(None, description="The model does not think if left out.")
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": ({"edits": []},),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
}
"""Parameters of the API that are not offered, and values that ask for nothing."""


class MessagesRequest(ConversationBody, EngineBody):
    """Body of ``/v1/messages``."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _NOT_OFFERED

    max_tokens: int = Field(ge=1, le=2**31 - 1)
    stop_sequences: list[str] | None = None
    metadata: MessagesMetadata | None = None


class CountTokensRequest(ConversationBody):
    """Body of ``/v1/messages/count_tokens``."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _NOT_OFFERED

    model: str | None = None
