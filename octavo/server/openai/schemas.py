"""Request bodies. Strict types, and no unknown field: what is not served is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from octavo.server.complaints import unknown, unsupported

_NOT_YET: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_cache_options": ({"mode": "implicit"},),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters of the OpenAI API that are not offered, and values that ask for nothing."""

_OLDER_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""What other servers once had at the top level, and now below ``structured_outputs``."""


@cache
def _field_names(body: type[BaseModel]) -> frozenset[str]:
    """Fields as clients write them."""
    return frozenset(field.alias or name for name, field in body.model_fields.items())


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = _field_names(cls)
        others = [name for name in data if name not in known]
        for name in others:
            if name in _OLDER_NAMES:
                raise unsupported(
                    name, f"is an older name: use structured_outputs with {_OLDER_NAMES[name]!r}"
                )
            if name not in cls.unsupported:
                raise unknown(name, known)
            if data[name] is not None and data[name] not in cls.unsupported[name]:
                raise unsupported(name)
        return {name: data[name] for name in data if name not in others} if others else data


def _text_or_list(value: Any) -> str | None:
    if isinstance(value, str):
        return "~text"
    return "~list" if isinstance(value, list) else None


def _prompt_form(value: Any) -> str | None:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list):
        return "~prompts"
    return "~tokens" if isinstance(first, int) else _text_or_list(value)


def _schema_form(value: Any) -> str | None:
    forms = {str: "~text", bool: "~bool", dict: "~object"}
    return forms.get(type(value))


def _choice_form(value: Any) -> str | None:
    if isinstance(value, dict):
        return "~allowed" if value.get("type") == "allowed_tools" else "~named"
    return "~text" if isinstance(value, str) else None


def _form(choose: Callable[[Any], str | None], wanted: str) -> Discriminator:
    """Picks the union's member by the value's form, so that complaints are about that one."""
    return Discriminator(
        choose, custom_error_type="wrong_form", custom_error_message=f"use {wanted}"
    )


Strings = Annotated[
    Annotated[str, Tag("~text")] | Annotated[list[str], Tag("~list")],
    _form(_text_or_list, "a string or a list of strings"),
]
Prompt = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[list[str], Tag("~list")]
    | Annotated[list[int], Tag("~tokens")]
    | Annotated[list[list[int]], Tag("~prompts")],
    _form(_prompt_form, "a string, a list of token ids, or a list of either"),
]


class StreamOptions(_Body):
    """What a stream tells besides its text."""

    unsupported = {"include_obfuscation": (False,)}

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(_Body):
    """A schema that the answer must satisfy."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = Field(None, description="Has no effect: say it in the prompt.")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="Any JSON object if it is left out."
    )
    strict: bool | None = Field(
        None, description="Has no effect: the schema is enforced in any case."
    )


class ResponseFormat(_Body):
    """The form of the answer, as the OpenAI API has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(_Body):
    """The form of the answer, as vLLM has it: exactly one of these."""

    unsupported = {
        "disable_additional_properties": (False,),
        "disable_any_whitespace": (False,),
        "disable_fallback": (False,),
        "structural_tag": (),
        "whitespace_pattern": (),
    }

    json_: (
        Annotated[
            Annotated[str, Tag("~text")]
            | Annotated[bool, Tag("~bool")]
            | Annotated[dict[str, Any], Tag("~object")],
            _form(_schema_form, "a JSON schema, as an object or as text"),
        ]
        | None
    ) = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = Field(None, description="For Lark, or in GBNF.")
    json_object: bool | None = None


class SamplingBody(_Body):
    """Fields that chat and plain completions share."""

    unsupported = _NOT_YET

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: Strings | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    user: str | None = Field(None, description="Has no effect.")
    safety_identifier: str | None = Field(None, description="Has no effect.")
    prompt_cache_key: str | None = Field(
        None, description="Has no effect: equal prefixes are found without it."
    )
    metadata: dict[str, str] | None = Field(None, description="Has no effect: nothing is stored.")
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    speculative: bool | None = Field(
        None, description="False: do not guess ahead. The tokens are the same either way."
    )
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    cache_salt: str | None = None
    timeout: float | None = Field(
        None, gt=0, le=86_400, description="Seconds after which the request ends with an error."
    )
    return_token_ids: bool | None = None


class CompletionRequest(SamplingBody):
    """Body of ``/v1/completions``."""

    prompt: Prompt
    add_special_tokens: bool | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class PoolingBody(_Body):
    """Fields that embeddings and scores share."""

    model: str | None = None
    user: str | None = Field(None, description="Has no effect.")
    pooling: Literal["mean", "last"] | None = Field(
        None, description="The server's --pooling if it is left out."
    )
    add_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    cache_salt: str | None = None
    timeout: float | None = Field(
        None, gt=0, le=86_400, description="Seconds after which the request ends with an error."
    )


class EmbeddingRequest(PoolingBody):
    """Body of ``/v1/embeddings``."""

    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, description="The model's hidden size, and no other.")


class ScoreRequest(PoolingBody):
    """Body of ``/v1/score``: one text and what to compare it with, or pairs of texts."""

    text_1: Strings
    text_2: Strings


class TextPart(_Body):
    """A piece of a message."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_media(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "text":
            raise unsupported("type", f"is {kind!r}: this model takes parts of type 'text' only")
        return data


class CalledFunction(_Body):
    """Which function was called, and how."""

    name: str
    arguments: str = Field(description="JSON text; what is no JSON is shown to the model as it is.")
    parsed_arguments: Any = Field(None, description="Has no effect: clients add it.")


class MessageToolCall(_Body):
    """A tool call in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="Has no effect.")


class Message(_Body):
    """One message of a conversation."""

    unsupported = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "refusal": ("",),
    }

    role: str
    content: (
        Annotated[
            Annotated[str, Tag("~text")] | Annotated[list[TextPart], Tag("~list")],
            _form(_text_or_list, "a string or a list of text parts"),
        ]
        | None
    ) = Field(None, description="May be left out beside tool_calls.")
    tool_calls: list[MessageToolCall] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(
        None, description="What the assistant thought before it answered."
    )
    reasoning: str | None = Field(None, description="The same by its newer name.")
    parsed: Any = Field(None, description="Has no effect: clients add it.")


class FunctionDefinition(_Body):
    """A function that the model may ask to call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="JSON schema of its arguments; none if it is left out."
    )
    strict: bool | None = Field(
        None,
        description="Hold the arguments to the schema even if the model need not call.",
    )


class ToolDefinition(_Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(_Body):
    """A function."""

    name: str


class NamedTool(_Body):
    """One of the tools."""

    type: Literal["function"]
    function: FunctionName


class ToolSubset(_Body):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedTools(_Body):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolSubset


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~text")]
    | Annotated[NamedTool, Tag("~named")]
    | Annotated[AllowedTools, Tag("~allowed")],
    _form(_choice_form, "'none', 'auto', 'required', or an object that names a tool"),
]


class TemplateBody(_Body):
    """How a conversation becomes a prompt."""

    tools: list[ToolDefinition] | None = None
    chat_template: str | None = Field(
        None, description="Instead of the model's own, with --trust-request-chat-template."
    )
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatCompletionRequest(TemplateBody, SamplingBody):
    """Body of ``/v1/chat/completions``."""

    unsupported = {
        name: value
        for name, value in _NOT_YET.items()
        if name not in ("tools", "tool_choice", "parallel_tool_calls")
    }

    messages: list[Message]
    tool_choice: ToolChoice | None = Field(
        None, description="auto if there are tools, none otherwise."
    )
    parallel_tool_calls: bool | None = Field(None, description="False: one call an answer at most.")
    include_reasoning: bool | None = Field(
        None, description="False: leave out what the model thinks."
    )
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class TokenizeRequest(TemplateBody):
    """Body of ``/tokenize``: text, or the messages of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(_Body):
    """Body of ``/detokenize``."""

    model: str | None = None
    tokens: list[int]
