from __future__ import annotations

import pytest
import torch
from support.attention import make_placement, make_spec

from octavo.attention.select import FASTEST_FIRST, choose, refusal
from octavo.core.errors import ConfigError


def test_auto_takes_the_fastest():
    assert choose(make_spec(), make_placement()).name == FASTEST_FIRST[0] == "sdpa"


@pytest.mark.parametrize("name", FASTEST_FIRST)
def test_request_is_followed(name):
    assert choose(make_spec(), make_placement(), name).name == name


def test_auto_passes_over_what_cannot_serve():
    assert choose(make_spec(soft_cap=30.0), make_placement()).name == "reference"


def test_refusal_names_the_reason():
    with pytest.raises(ConfigError, match=r"sdpa: it has no soft cap on scores.*30"):
        choose(make_spec(soft_cap=30.0), make_placement(), "sdpa")


def test_none_left_lists_every_reason():
    with pytest.raises(ConfigError, match=r"sdpa: 4 heads.*reference: 4 heads"):
        choose(make_spec(4, 3), make_placement())
    assert "float64" in (refusal("sdpa", make_spec(), make_placement(16, torch.float64)) or "")
