from __future__ import annotations

import argparse

import pytest

from octavo.cli.options import add_config_options, given_options
from octavo.cli.sampling import ENGINE_PARTS
from octavo.cli.serve import SERVER_PARTS
from octavo.core.options import field_docs, parse_size, part_fields

PARTS = (*ENGINE_PARTS, *SERVER_PARTS)


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    add_config_options(parser, *PARTS)
    return parser


def test_every_field_has_a_flag_with_its_sentence(parser):
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    for part in PARTS:
        for item, _, _ in part_fields(part):
            action = flags[f"--{item.name.replace('_', '-')}"]
            assert action.help.startswith(field_docs(part)[item.name].replace("%", "%%"))
    assert flags["--gpu-memory-utilization"] is flags["--memory-utilization"]
    text = parser.format_help()
    assert "KV blocks" in text and "\nThe paged KV cache:\n" in text
    assert ".:" not in text and "``" not in text


def test_only_what_was_given_comes_back(parser):
    assert given_options(parser.parse_args([]), *PARTS) == {}
    line = (
        "--max-model-len auto --no-enable-prefix-caching --served-model-name a b "
        "--kv-cache-memory 1.5GiB --gpu-memory-utilization 0.8 --dtype bfloat16 --seed 3"
    )
    assert given_options(parser.parse_args(line.split()), *PARTS) == {
        "max_model_len": "auto",
        "enable_prefix_caching": False,
        "served_model_name": ("a", "b"),
        "kv_cache_memory": 3 << 29,
        "memory_utilization": 0.8,
        "dtype": "bfloat16",
        "seed": 3,
    }


def test_lists(parser):
    line = "--api-key a --api-key b:c model --allowed-origins x y --allowed-origins z"
    parser.add_argument("model")
    args = parser.parse_args(line.split())
    assert args.model == "model"
    given = given_options(args, *PARTS)
    assert (given["api_key"], given["allowed_origins"]) == (("a", "b:c"), ("x", "y", "z"))


@pytest.mark.parametrize(
    "line", ["--dtype int8", "--num-blocks x", "--max-model-len longest", "--kv-cache-memory much"]
)
def test_wrong_values_are_refused(parser, line, capsys):
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(line.split())
    assert caught.value.code == 2
    assert line.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("123", 123),
        ("4k", 4096),
        ("512M", 512 << 20),
        ("4GiB", 4 << 30),
        ("1.5 gb", 3 << 29),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size
