"""The command as a user types it, on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from support.checkpoints import write_checkpoint

from octavo import __version__
from octavo.cli.main import COMMANDS, main

FLAGS = ["--num-blocks", "64", "--num-threads", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("cli") / "tiny"
    write_checkpoint(path, "llama")
    return str(path)


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert "--max-model-len" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"octavo {__version__}"


def test_errors_are_one_line_and_status_1(capsys, tmp_path):
    assert main(["generate", str(tmp_path / "nothing"), "--prompt", "x"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("octavo: ModelLoadError:") and "Traceback" not in err
    assert main(["generate", "--prompt", "x", "--block-size", "5"]) == 1
    assert "block_size is 5" in capsys.readouterr().err


def test_one_prompt(model, capsys, monkeypatch):
    arguments = ["generate", model, "--temperature", "0", "--max-tokens", "5", *FLAGS]
    assert main([*arguments, "--prompt", "hello"]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    assert main([*arguments, "--prompt", "-"]) == 0
    assert capsys.readouterr().out == first
    assert main([*arguments, "--chat", "--prompt", "hello"]) == 0


def test_a_file_of_prompts(model, tmp_path: Path):
    lines = [
        {"id": "x", "prompt": "hello", "max_tokens": 3, "ignore_eos": True},
        {"prompt": [5, 6, 7], "n": 2, "max_tokens": 2, "ignore_eos": True},
        {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"5": 1.0}},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n\n".join(json.dumps(line) for line in lines))
    arguments = ["--input", str(source), "--output", str(target), "--max-tokens", "4"]
    assert main(["generate", model, *arguments, *FLAGS]) == 0
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["id"] for record in records] == ["x", 3, 5]
    assert [record["usage"]["completion_tokens"] for record in records][:2] == [3, 4]
    assert [len(record["completions"]) for record in records] == [1, 2, 1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "either prompt or messages"),
        ('{"prompt": "a", "temprature": 1}', "temprature"),
    ],
)
def test_a_wrong_line_is_named(model, tmp_path, capsys, line, said):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "fine"}\n' + line)
    assert main(["generate", model, "--input", str(source), *FLAGS]) == 1
    err = capsys.readouterr().err
    assert "line 2" in err and said in err


def test_chat(model, monkeypatch, capsys):
    lines = iter(["hello", "/clear", "", "again", "/exit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(lines))
    arguments = ["--temperature", "0", "--max-tokens", "4", "--system", "be brief"]
    assert main(["chat", model, *arguments, *FLAGS]) == 0
    out = capsys.readouterr().out
    assert out.count("tokens/s") == 2 and "is ready" in out


def test_chat_ends_with_the_input(model, monkeypatch):
    def end(*_: object) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    assert main(["chat", model, *FLAGS]) == 0
