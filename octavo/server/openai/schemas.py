"""Request bodies. Strict types, and no unknown field: what is not served is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag, model_validator

from octavo.server.complaints import unsupported
from octavo.server.schema import Body, Strings, form, text_or_list

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


def _prompt_form(value: Any) -> str | None:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list):
        return "~prompts"
    return "~tokens" if isinstance(first, int) else text_or_list(value)


def _schema_form(value: Any) -> str | None:
    forms = {str: "~text", bool: "~bool", dict: "~object"}
    return forms.get(type(value))


def _choice_form(value: Any) -> str | None:
    if isinstance(value, dict):
        return "~allowed" if value.get("type") == "allowed_tools" else "~named"
    return "~text" if isinstance(value, str) else None


Prompt = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[list[str], Tag("~list")]
    | Annotated[list[int], Tag("~tokens")]
    | Annotated[list[list[int]], Tag("~prompts")],
    form(_prompt_form, "a string, a list of token ids, or a list of either"),
]


class StreamOptions(Body):
    """What a stream tells besides its text."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Body):
    """A schema that the answer must satisfy."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = Field(None, description="Has no effect: say it in the prompt.")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="Any JSON object if it is left out."
    )
    strict: bool | None = Field(
        None, description="Has no effect: the schema is enforced in any case."
    )


class ResponseFormat(Body):
    """The form of the answer, as the OpenAI API has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """The form of the answer, as vLLM has it: exactly one of these."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
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
            form(_schema_form, "a JSON schema, as an object or as text"),
        ]
        | None
    ) = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = Field(None, description="For Lark, or in GBNF.")
    json_object: bool | None = None


class EngineBody(Body):
    """Fields of every request that generates text, whichever API it is written for."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
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
    structured_outputs: StructuredOutputs | None = None
    bad_words: list[str] | None = None
    speculative: bool | None = Field(
        None, description="False: do not guess ahead. The tokens are the same either way."
    )
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    cache_salt: str | None = None
    timeout: float | None = Field(
        None, gt=0, le=86_400, description="Seconds after which the request ends with an error."
    )


class OpenAIBody(EngineBody):
    """Fields that all of OpenAI's ways to generate text share."""

    user: str | None = Field(None, description="Has no effect.")
    safety_identifier: str | None = Field(None, description="Has no effect.")
    prompt_cache_key: str | None = Field(
        None, description="Has no effect: equal prefixes are found without it."
    )
    stop: Strings | None = None


class SamplingBody(OpenAIBody):
    """Fields that chat and plain completions share."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _NOT_YET

    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    metadata: dict[str, str] | None = Field(None, description="Has no effect: nothing is stored.")
    response_format: ResponseFormat | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None


class CompletionRequest(SamplingBody):
    """Body of ``/v1/completions``."""

    prompt: Prompt
    add_special_tokens: bool | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class PoolingBody(Body):
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


class TextPart(Body):
    """A piece of a message."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_media(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "text":
            raise unsupported("type", f"is {kind!r}: this model takes parts of type 'text' only")
        return data


class CalledFunction(Body):
    """Which function was called, and how."""

    name: str
    arguments: str = Field(description="JSON text; what is no JSON is shown to the model as it is.")
    parsed_arguments: Any = Field(None, description="Has no effect: clients add it.")


class MessageToolCall(Body):
    """A tool call in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="Has no effect.")


class Message(Body):
    """One message of a conversation."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "refusal": ("",),
    }

    role: str
    content: (
        Annotated[
            Annotated[str, Tag("~text")] | Annotated[list[TextPart], Tag("~list")],
            form(text_or_list, "a string or a list of text parts"),
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


class FunctionDefinition(Body):
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


class ToolDefinition(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Body):
    """A function."""

    name: str


class NamedTool(Body):
    """One of the tools."""

    type: Literal["function"]
    function: FunctionName


class ToolSubset(Body):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedTools(Body):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolSubset


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~text")]
    | Annotated[NamedTool, Tag("~named")]
    | Annotated[AllowedTools, Tag("~allowed")],
    form(_choice_form, "'none', 'auto', 'required', or an object that names a tool"),
]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TemplateBody(Body):
    """How a conversation becomes a prompt."""

    tools: list[ToolDefinition] | None = None
    chat_template: str | None = Field(
        None, description="Instead of the model's own, with --trust-request-chat-template."
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        None, description="The answer goes on where the last message ends."
    )
    add_special_tokens: bool | None = None
    reasoning_effort: Effort | None = Field(
        None, description="How much the model thinks, if its chat template can be told."
    )
    chat_template_kwargs: dict[str, Any] | None = None


class ChatCompletionRequest(TemplateBody, SamplingBody):
    """Body of ``/v1/chat/completions``."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        name: value
        for name, value in _NOT_YET.items()
        if name not in ("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort")
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


class DetokenizeRequest(Body):
    """Body of ``/detokenize``."""

    model: str | None = None
    tokens: list[int]
