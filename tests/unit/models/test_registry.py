from __future__ import annotations

from importlib import import_module

import pytest
import torch
from support.tiny_models import tiny_spec

from octavo.core.errors import UnknownArchitecture
from octavo.models.registry import ARCHITECTURES, build_model


def test_unknown_architecture_lists_those_that_exist():
    with pytest.raises(UnknownArchitecture, match=r"'NopeForCausalLM'.*LlamaForCausalLM") as caught:
        build_model(
            tiny_spec(architecture="NopeForCausalLM"),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
    assert all(name in str(caught.value) for name in ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_entry_can_be_built(architecture):
    module, name = ARCHITECTURES[architecture].split(":")
    model = build_model(
        tiny_spec(architecture=architecture), dtype=torch.bfloat16, device=torch.device("cpu")
    )
    assert type(model) is getattr(import_module(module), name)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in model.parameters())
