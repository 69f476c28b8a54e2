"""Grammar of a call that has a tag for each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.core.errors import UnsupportedParameter
from octavo.grammar.source import json_rule
from octavo.server.parsing.tools import Tool
from octavo.server.parsing.values import is_text, json_types, resolved

_NAME = re.compile(r"[^<>\n]+")
_LIMITS = ("minLength", "maxLength", "pattern", "format")


def xml_call(tool: Tool, schema: Mapping[str, Any], prefix: str) -> tuple[str, list[str]]:
    """What stands between a call's marks, and the rules that it needs. Arguments come in the order
    of the schema's properties.

    Raises:
        UnsupportedParameter: a limit of the schema cannot be kept in this format.
    """
    rules: list[str] = []
    parts: list[str] = []
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    wanted = schema.get("required")
    required = wanted if isinstance(wanted, list) else []
    missing = next((name for name in required if name not in known), None)
    if missing is not None:
        raise UnsupportedParameter(
            f"the tool {tool.name!r} requires {missing!r}, which is not among its properties: "
            "describe it there",
            param="tools",
        )
    for number, (name, found) in enumerate(known.items()):
        if not _NAME.fullmatch(name):
            raise UnsupportedParameter(
                f"the tool {tool.name!r} has an argument {name!r}, which cannot be written in this "
                "model's format of tool calls: use another name",
                param="tools",
            )
        rule = f"{prefix}_{number}"
        place = (found if isinstance(found, Mapping) else {}), schema
        head = json.dumps(f"<parameter={name}>\n", ensure_ascii=False)
        rules += [f"{rule}: {head} {_value(tool, name, place, rule, rules)}"]
        parts.append(rule if name in required else f"{rule}?")
    if not known and schema.get("additionalProperties") is not False:
        parts.append("any_argument*")
        rules += [
            'any_argument: "<parameter=" /[^<>\\n]+/ ">\\n" any_value',
            'any_value[suffix="\\n</parameter>\\n"]: /(.|\\n)*/',
        ]
    head = json.dumps(f"<function={tool.name}>\n", ensure_ascii=False)
    return f'{head} {" ".join(parts)} "</function>"', rules


def _value(
    tool: Tool,
    name: str,
    place: tuple[Mapping[str, Any], Mapping[str, Any]],
    rule: str,
    rules: list[str],
) -> str:
    """The value of an argument, up to its closing tag."""
    schema, whole = place
    end = '"\\n</parameter>\\n"'
    types = json_types(place)
    if not is_text(place) and not (types and "string" in types and not _is_words(schema)):
        definitions = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
        return f"{json_block(schema, definitions)} {end}"
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = resolved(reference, whole) or {}
    words = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(words, list):
        return f"({' | '.join(json.dumps(str(w), ensure_ascii=False) for w in words)}) {end}"
    limit = next((key for key in _LIMITS if key in schema), None)
    if limit is not None:
        raise UnsupportedParameter(
            f"the argument {name!r} of the tool {tool.name!r} has a {limit}, which cannot be "
            "enforced in this model's format of tool calls: leave it out, or use an enum",
            param="tools",
        )
    rules.append(f'{rule}_text[suffix="\\n</parameter>\\n"]: /(.|\\n)*/')
    return f"{rule}_text"


def json_block(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A value that is written as JSON."""
    return json_rule({**definitions, **schema})


def _is_words(schema: Mapping[str, Any]) -> bool:
    return "enum" in schema or "const" in schema
