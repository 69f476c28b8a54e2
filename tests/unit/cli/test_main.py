"""The command as a user types it, on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from support.checkpoints import write_checkpoint

from octavo import __version__
from octavo.cli.main import COMMANDS, main
from octavo.llm import LLM

WITHOUT_A_MODEL = ("env", "top")
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
    words = {"bench": [command, "step"], "eval": [command, "perplexity"]}.get(command, [command])
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert ("--max-model-len" in out) == (command not in WITHOUT_A_MODEL)
    assert "``" not in out and ".:\n" not in out


def test_help_keeps_the_capitals_of_names(capsys):
    for command, name in (("serve", "OpenAI API"), ("generate", "JSON-lines"), ("batch", "OpenAI")):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert name in capsys.readouterr().out


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


def test_outputs_of_a_form(model, tmp_path: Path, capsys):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"enum": ["é", 17]}', encoding="utf-8")
    grammar.write_text('start: "the" " fox"')
    wanted = {
        ("--regex", "ab{3}c"): ["abbbc"],
        ("--choice", "over the", "lazy dog"): ["over the", "lazy dog"],
        ("--json-schema", str(schema)): ['"é"', "17"],
        ("--grammar", str(grammar)): ["the fox"],
    }
    for flags, texts in wanted.items():
        arguments = ["generate", model, "--prompt", "a", "--max-tokens", "30", *flags, *FLAGS]
        assert main(arguments) == 0
        assert capsys.readouterr().out.removesuffix("\n") in texts
    source = tmp_path / "in.jsonl"
    source.write_text(
        '{"prompt": "a", "max_tokens": 9, "structured": {"regex": "own"}}\n'
        '{"prompt": "a", "max_tokens": 9, "structured": null}'
    )
    assert main(["generate", model, "--input", str(source), "--regex", "flag", *FLAGS]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["completions"][0]["text"] for record in records] == ["own", "flag"]


@pytest.mark.parametrize("flag", ["--json-schema", "--grammar"])
def test_forms_that_cannot_be_read_are_told_before_the_model_loads(tmp_path, capsys, flag):
    path = str(tmp_path / "none")
    assert main(["generate", str(tmp_path / "no model"), "--prompt", "x", flag, path]) == 1
    assert f"{flag} {path} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "either prompt or messages"),
        ('{"prompt": "a", "temprature": 1}', "temprature"),
        ('{"prompt": "\\ud800"}', "not valid JSON"),
        ('{"prompt": NaN}', "not valid JSON"),
        ('{"prompt": ' + "[" * 100_000, "not valid JSON"),
        ('{"prompt": "\udce9"}', "not valid JSON"),
        ('{"prompt": 5}', "prompt is 5: use text or a list of token ids"),
        ('{"prompt": {"prompt": "a"}}', "use text or a list"),
        ('{"prompt": ["a", "b"]}', "token id 'a'"),
        ('{"prompt": ""}', "is empty"),
        ('{"prompt": [999999]}', "999999"),
        (json.dumps({"prompt": "a " * 2000}), "context is 512 tokens"),
        ('{"messages": {}}', "messages is {}"),
        ('{"messages": []}', "messages is empty"),
        ('{"messages": ["hi"]}', "messages holds a str"),
        ('{"prompt": "a", "temperature": "hot"}', "temperature is 'hot'"),
        ('{"prompt": "a", "logit_bias": [1]}', "logit_bias is [1]"),
        ('{"prompt": "a", "logit_bias": {"x": 1}}', "the key 'x'"),
        ('{"prompt": "a", "logit_bias": {"999": 1}}', "999"),
        ('{"prompt": "a", "structured": "a"}', "structured is 'a'"),
        ('{"prompt": "a", "structured": {}}', "exactly one of"),
        ('{"prompt": "a", "structured": {"xml": "a"}}', "exactly one of"),
        ('{"prompt": "a", "structured": {"regex": 5}}', "structured has 5 as its regex"),
        ('{"prompt": "a", "structured": {"regex": "("}}', "unclosed group"),
    ],
    ids=lambda value: value[:40],
)
def test_a_wrong_line_is_named(model, tmp_path, capsys, line, said):
    source = tmp_path / "in.jsonl"
    text = '{"prompt": "fine"}\n' + line
    source.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["generate", model, "--input", str(source), *FLAGS]) == 1
    err = capsys.readouterr().err
    assert "line 2: " in err and said in err
    assert err.count("\n") == 1


def test_null_stands_for_a_parameter_that_is_not_given(model, tmp_path, capsys):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a", "n": null, "logit_bias": null, "max_tokens": 1}')
    assert main(["generate", model, "--input", str(source), *FLAGS]) == 0
    assert len(json.loads(capsys.readouterr().out)["completions"]) == 1


@pytest.mark.parametrize("flag", ["--input", "--output"])
def test_files_that_cannot_be_used_are_told_before_the_model_loads(tmp_path, capsys, flag):
    path = str(tmp_path / "none" / "file")
    prompt = ["--prompt", "x"] if flag == "--output" else []
    assert main(["generate", str(tmp_path / "no model"), flag, path, *prompt]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"octavo: ConfigError: {flag} {path} cannot be ")
    assert "No such file" in err


@pytest.mark.parametrize("command", [["generate", "--prompt", "-"], ["chat"]])
def test_input_that_is_no_text(model, monkeypatch, capsys, command):
    name, *arguments = command
    raw = io.TextIOWrapper(io.BytesIO(b"h\xff\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", raw)
    assert main([name, model, *arguments, *FLAGS]) == 1
    assert "standard input is no text" in capsys.readouterr().err


def test_ctrl_c_stops_an_answer_and_no_more(model, monkeypatch, capsys):
    stream, prompts = LLM.stream, []

    def interrupted(llm, prompt, params):
        prompts.append(llm.tokenizer.decode(prompt, skip_special_tokens=False))
        for number, delta in enumerate(stream(llm, prompt, params)):
            if number == 3:
                raise KeyboardInterrupt
            yield delta

    monkeypatch.setattr(LLM, "stream", interrupted)
    monkeypatch.setattr("sys.stdin", io.StringIO("first\nsecond\n"))
    assert main(["chat", model, "--ignore-eos", *FLAGS]) == 0
    assert capsys.readouterr().out.count("3 tokens, ") == 2
    assert "first" in prompts[1] and "second" in prompts[1]


def test_a_question_that_is_too_long_is_taken_back(model, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("a b " * 2000 + "\nhello\n"))
    assert main(["chat", model, "--max-tokens", "3", *FLAGS]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "shorten the prompt" in out
    assert out.count("tokens/s") == 1


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
