"""A tokenizer whose marks of tool calls and reasoning are special tokens, and templates."""

from __future__ import annotations

from support.vocabularies import byte_level_backend
from tokenizers import AddedToken

from octavo.tokenizer.tokenizer import Tokenizer

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>")
HERMES = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    HERMES.replace("<tool_call>{% endif %}", "<|python_tag|>{% endif %}")
    .replace("<tool_call>", "")
    .replace("</tool_call>", "")
)
QWEN3_CODER = HERMES.replace("<tool_call>{% endif %}", "<function=a><parameter=b>{% endif %}")
THINKING = (
    HERMES + "{% if enable_thinking is not false %}{% else %}<think>\n\n</think>\n\n{% endif %}"
)
OPENED = HERMES + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"


def marked_tokenizer() -> Tokenizer:
    backend = byte_level_backend()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return Tokenizer(backend, special_tokens={"bos_token": "<|im_start|>"})
