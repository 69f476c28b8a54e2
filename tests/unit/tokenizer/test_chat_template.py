from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pytest
from support.vocabularies import word_backend

from octavo.core.errors import ConfigError, InvalidParameter
from octavo.tokenizer.chat_template import ChatTemplate

CHATML = """\
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
<|im_start|>system
You are helpful.<|im_end|>
    {% endif %}
<|im_start|>{{ message.role }}
{{ message['content'] | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- message.content is mapping and (message.content | tojson) or message.content }}
        {%- continue %}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}
        {{- "}" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.seen and message.role == "user" %}
        {%- set ns.seen = true %}
        {%- set ns.last = messages|length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content or '' %}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {%- set content = '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n' + content %}
        {%- endif %}
        {%- generation %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>' + (call.function | tojson) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif message.content is not string %}
        {%- for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- for document in documents or [] %}{{ loop.index }}: {{ document.text }}{% break %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- endif %}
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'It\'s <b>the</b> weather & "more" in Zürich',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
PLAIN = [{"role": "user", "content": "  Hi <there> & 'you' 世界 \n"}]
SYSTEM = [
    {"role": "system", "content": "Be brief."},
    *PLAIN,
    {"role": "assistant", "content": "No.", "name": None},
    {"role": "user", "content": "Why?"},
]
CALLS = [
    *PLAIN,
    {
        "role": "assistant",
        "content": None,
        "reasoning": "\nlook it up\n",
        "tool_calls": [
            {"function": {"name": "weather", "arguments": {"city": "Zürich", "n": 1.5}}}
        ],
    },
    {"role": "tool", "content": "21 °C"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
SPECIAL = {"bos_token": "<a>", "eos_token": "<b>"}


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=word_backend(), **SPECIAL)


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        (CHATML, PLAIN),
        (CHATML, SYSTEM),
        (LLAMA3, PLAIN),
        (LLAMA3, SYSTEM),
        (LLAMA3, CALLS),
        (QWEN, PLAIN),
        (QWEN, SYSTEM),
        (QWEN, CALLS),
        (QWEN, PARTS),
    ],
)
def test_renders_as_transformers_does(
    theirs: Any, template: str, messages: list[dict[str, Any]]
) -> None:
    ours = ChatTemplate(template, SPECIAL)
    documents = [{"title": "t", "text": "first"}, {"title": "u", "text": "second"}]
    for tools, given, generate, variables in itertools.product(
        (None, TOOLS),
        (None, documents),
        (True, False),
        ({}, {"date_string": "26 Jul 2024", "enable_thinking": False}),
    ):
        options = {"tools": tools, "documents": given, "add_generation_prompt": generate}
        expected = theirs.apply_chat_template(
            messages, chat_template=template, tokenize=False, **options, **variables
        )
        assert ours.render(messages, **options, **variables) == expected


def test_it_knows_today() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m') }}")
    assert template.render(PLAIN) == datetime.now().strftime("%Y-%m")


def test_messages_are_left_as_they_were() -> None:
    messages = [{"role": "user", "content": "x", "name": None, "reasoning": "r"}]
    ChatTemplate(QWEN).render(messages)
    assert messages == [{"role": "user", "content": "x", "name": None, "reasoning": "r"}]


def test_a_template_can_refuse_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidParameter, match="roles must alternate") as caught:
        template.render(PLAIN)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[0]['content'] + 1 }}", "TypeError"),
        ("{{ messages[7].content.text }}", "no element 7|undefined"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe|append"),
    ],
)
def test_what_goes_wrong_in_a_template_is_the_clients_error(source: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message) as caught:
        ChatTemplate(source).render(PLAIN)
    assert caught.value.param == "messages"


def test_a_model_without_a_template() -> None:
    with pytest.raises(InvalidParameter, match="--chat-template FILE"):
        ChatTemplate(None).render(PLAIN)


def test_no_messages() -> None:
    with pytest.raises(InvalidParameter, match="messages is empty"):
        ChatTemplate(CHATML).render([])


def test_values_that_are_no_json() -> None:
    with pytest.raises(InvalidParameter, match=r"^messages holds a value of type object"):
        ChatTemplate(CHATML).render([{"role": "user", "content": object()}])


def test_messages_that_are_no_objects() -> None:
    with pytest.raises(InvalidParameter, match=r"^messages holds a str: use objects"):
        ChatTemplate(CHATML).render(["hello"])  # type: ignore[list-item]


def test_messages_nested_without_end() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidParameter, match="RecursionError"):
        ChatTemplate(CHATML).render([{"role": "user", "content": deep}])


def test_subclasses_become_plain_values() -> None:
    class Loud(str):
        def shout(self) -> str:
            return "!"

    with pytest.raises(InvalidParameter, match="shout"):
        ChatTemplate("{{ messages[0].content.shout() }}").render(
            [{"role": "user", "content": Loud("x")}]
        )


def test_a_template_that_is_no_template() -> None:
    with pytest.raises(ConfigError, match=r"line 2: .*--chat-template FILE"):
        ChatTemplate("{% for x in messages %}\n{% endif %}")
