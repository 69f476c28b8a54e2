"""Damaged checkpoints: whatever happens to the bytes, the answer is a result or a ModelLoadError."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import FAMILIES, tiny_config, write_checkpoint, write_gguf
from support.parameters import empty_model

from octavo.core.errors import ModelLoadError
from octavo.loader.checkpoint import Checkpoint, read_checkpoint
from octavo.loader.fields import Fields
from octavo.loader.gguf_file import GgufFile
from octavo.loader.hf_config import spec_from_hf
from octavo.loader.source import ModelSource
from octavo.loader.weights import load_weights

FEW = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_gguf(path, "llama", quantization="Q4_1", num_hidden_layers=1)
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf")
    return write_checkpoint(path, tokenizer=False, num_hidden_layers=1)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Path]:
    folder = tmp_path_factory.mktemp("scratch")

    def write(content: bytes) -> Path:
        # A new file each time: what was read before may still be mapped.
        path = folder / "damaged.gguf"
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        return path

    return write


def with_weights_in(directory: Path, folder: Path) -> Checkpoint:
    """What the configuration in ``directory`` says, with the weights in ``folder``."""
    source = ModelSource(name="m", format="safetensors", path=directory)
    return replace(read_checkpoint(source), source=replace(source, path=folder))


def end_of_data(path: Path) -> int:
    """The first byte after the last tensor; what follows is padding."""
    return max(tensor.offset + tensor.num_bytes for tensor in GgufFile(path).tensors.values())


@FEW
@given(share=st.floats(0, 1, exclude_max=True))
def test_truncated_gguf_is_always_refused(
    gguf_path: Path, scratch: Callable[[bytes], Path], share: float
) -> None:
    path = scratch(gguf_path.read_bytes()[: int(end_of_data(gguf_path) * share)])
    with pytest.raises(ModelLoadError, match=r"damaged\.gguf"):
        read_checkpoint(ModelSource(name="m", format="gguf", path=path))


def test_gguf_truncated_at_every_byte_of_its_head(
    gguf_path: Path, scratch: Callable[[bytes], Path]
) -> None:
    content = gguf_path.read_bytes()
    head = min(tensor.offset for tensor in GgufFile(gguf_path).tensors.values())
    for length in range(head):
        with pytest.raises(ModelLoadError):
            GgufFile(scratch(content[:length]))


@FEW
@given(data=st.data())
def test_gguf_with_damaged_bytes(
    gguf_path: Path, scratch: Callable[[bytes], Path], data: st.DataObject
) -> None:
    content = bytearray(gguf_path.read_bytes())
    head = min(tensor.offset for tensor in GgufFile(gguf_path).tensors.values())
    at = data.draw(st.integers(4, head - 8), label="position")
    damage = data.draw(
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.integers(0, 2**64 - 1).map(lambda number: struct.pack("<Q", number)),
        ),
        label="bytes",
    )
    content[at : at + len(damage)] = damage
    path = scratch(bytes(content))
    try:
        checkpoint = read_checkpoint(ModelSource(name="m", format="gguf", path=path))
        if checkpoint.spec.num_parameters < 1 << 20:
            load_weights(checkpoint, empty_model(checkpoint.spec))
    except ModelLoadError as error:
        assert "damaged.gguf" in str(error)


@FEW
@given(share=st.floats(0, 1, exclude_max=True))
def test_truncated_safetensors_is_always_refused(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    whole = (directory / "model.safetensors").read_bytes()
    folder = tmp_path_factory.mktemp("cut")
    (folder / "model.safetensors").write_bytes(whole[: int(len(whole) * share)])
    checkpoint = with_weights_in(directory, folder)
    model = empty_model(checkpoint.spec)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load_weights(checkpoint, model)
    assert all(torch.isnan(parameter).all() for parameter in model.parameters())


@FEW
@given(data=st.data())
def test_safetensors_with_a_damaged_header(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray((directory / "model.safetensors").read_bytes())
    header = struct.unpack_from("<Q", content)[0]
    at = data.draw(st.integers(0, 8 + header - 4), label="position")
    damage = data.draw(st.binary(min_size=1, max_size=4), label="bytes")
    content[at : at + len(damage)] = damage
    folder = tmp_path_factory.mktemp("bent")
    (folder / "model.safetensors").write_bytes(content)
    checkpoint = with_weights_in(directory, folder)
    model = empty_model(checkpoint.spec)
    try:
        load_weights(checkpoint, model)
    except ModelLoadError as error:
        assert str(folder) in str(error)
    else:
        assert not any(torch.isnan(parameter).any() for parameter in model.parameters())


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([10**400, -(10**400)])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)


@FEW
@given(family=st.sampled_from(FAMILIES), value=JSON_VALUES, data=st.data())
def test_config_with_any_value_in_any_field(family: str, value: Any, data: st.DataObject) -> None:
    config = tiny_config(family)
    fields = {**config.to_dict(), "architectures": [f"{type(config).__name__[:-6]}ForCausalLM"]}
    name = data.draw(st.sampled_from(sorted({*fields, "rope_scaling", "quantization_config"})))
    try:
        spec = spec_from_hf(Fields({**fields, name: value}, "here/config.json"))
    except ModelLoadError as error:
        assert "here/config.json" in str(error)
    else:
        assert spec.num_parameters > 0
