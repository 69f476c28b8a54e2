"""Request bodies of the Responses API; what is not served is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from octavo.server.openai.schemas import Effort, OpenAIBody
from octavo.server.schema import Body, Other, by_type, form, text_or_list

Status = Literal["in_progress", "completed", "incomplete"]
_STORED = "is not supported: nothing is stored here; send the whole conversation as input"


class InputTextPart(Body):
    """A piece of what someone other than the model says."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"prompt_cache_breakpoint": ()}

    type: Literal["input_text", "text"]
    text: str


class OutputTextPart(Body):
    """A piece of what the model said."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"annotations": ([],), "parsed": ()}

    type: Literal["output_text"]
    text: str
    logprobs: list[Any] | None = Field(None, description="Has no effect.")


class OtherPart(Other):
    """Any other part of a message."""

    taken: ClassVar[str] = "parts of type 'input_text' or 'output_text'"


Content = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[
        list[
            Annotated[
                Annotated[InputTextPart, Tag("~input_text")]
                | Annotated[InputTextPart, Tag("~text")]
                | Annotated[OutputTextPart, Tag("~output_text")]
                | Annotated[OtherPart, Tag("~other")],
                by_type("input_text", "text", "output_text"),
            ]
        ],
        Tag("~list"),
    ],
    form(text_or_list, "a string or a list of text parts"),
]


class _Item(Body):
    id: str | None = Field(None, description="Has no effect.")
    status: Status | None = Field(None, description="Has no effect.")


class InputMessageItem(_Item):
    """A message."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"phase": ("final_answer",)}

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class ReasoningTextPart(Body):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"]
    text: str


class SummaryTextPart(Body):
    """A piece of a summary of what the model thought."""

    type: Literal["summary_text"]
    text: str


class InputReasoningItem(_Item):
    """What the model thought before it answered."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"encrypted_content": ()}

    type: Literal["reasoning"]
    summary: list[SummaryTextPart] | None = Field(
        None, description="Read by the model if there is no content."
    )
    content: list[ReasoningTextPart] | None = None


class InputFunctionCallItem(_Item):
    """The model called a function."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "caller": ({"type": "direct"},),
        "namespace": (),
    }

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = Field(description="JSON text; what is no JSON is shown to the model as it is.")
    parsed_arguments: Any = Field(None, description="Has no effect: clients add it.")


class FunctionCallOutputItem(_Item):
    """What a function returned."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "caller": ({"type": "direct"},),
        "name": (),
        "namespace": (),
    }

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class OtherItem(Other):
    """Any other item."""

    taken: ClassVar[str] = "message, reasoning, function_call or function_call_output"


Item = Annotated[
    Annotated[InputMessageItem, Tag("~message")]
    | Annotated[InputReasoningItem, Tag("~reasoning")]
    | Annotated[InputFunctionCallItem, Tag("~function_call")]
    | Annotated[FunctionCallOutputItem, Tag("~function_call_output")]
    | Annotated[OtherItem, Tag("~other")],
    by_type("message", "reasoning", "function_call", "function_call_output", without="message"),
]


class FunctionTool(Body):
    """A function that the model may call."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "output_schema": (),
    }

    type: Literal["function"]
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="JSON schema of its arguments; none if it is left out."
    )
    strict: bool | None = Field(
        None, description="Hold the arguments to the schema even if the model need not call."
    )


class HostedTool(Other):
    """A tool that OpenAI runs."""

    taken: ClassVar[str] = "tools of type 'function'"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("~function")] | Annotated[HostedTool, Tag("~other")],
    by_type("function"),
]


class FunctionChoice(Body):
    """One of the functions."""

    type: Literal["function"]
    name: str


class AllowedFunctions(Body):
    """A choice among some of the functions."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice] = Field(min_length=1)


def _choice_form(value: Any) -> str | None:
    if isinstance(value, dict):
        return "~allowed" if value.get("type") == "allowed_tools" else "~function"
    return "~text" if isinstance(value, str) else None


AnyToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~text")]
    | Annotated[FunctionChoice, Tag("~function")]
    | Annotated[AllowedFunctions, Tag("~allowed")],
    form(_choice_form, "'none', 'auto', 'required', or an object that names a function"),
]


class TextFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = Field(None, description="Has no effect: say it in the prompt.")
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = Field(
        None, description="Has no effect: the schema is enforced in any case."
    )


class TextConfig(Body):
    """What the text of the answer is like."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: TextFormat | None = None


class Reasoning(Body):
    """Whether, or how much, the model thinks, if its chat template can tell it."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "context": ("auto", "all_turns"),
        "generate_summary": ("auto",),
        "mode": ("standard",),
        "summary": ("auto",),
    }

    effort: Effort | None = None


class ResponsesStreamOptions(Body):
    """What a stream has besides its events."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}


_NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_options": ({"mode": "implicit"},),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
}
"""Parameters of the API that are not offered, and values that ask for nothing."""


class ResponsesRequest(OpenAIBody):
    """Body of ``/v1/responses``."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _NOT_OFFERED
    reasons: ClassVar[dict[str, str]] = {"previous_response_id": _STORED, "conversation": _STORED}

    input: Annotated[
        Annotated[str, Tag("~text")] | Annotated[list[Item], Tag("~list")],
        form(text_or_list, "a string or a list of items"),
    ]
    instructions: str | None = None
    tools: list[AnyTool] | None = None
    tool_choice: AnyToolChoice | None = Field(
        None, description="auto if there are tools, none otherwise."
    )
    parallel_tool_calls: bool | None = Field(None, description="False: one call an answer at most.")
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        Field(None, description="Reasoning is there in any case, and not encrypted.")
    )
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = Field(None, description="Repeated in the answer.")
    store: bool | None = Field(None, description="Has no effect: nothing is stored.")
    stream_options: ResponsesStreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
