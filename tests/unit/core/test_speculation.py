"""What users may write in speculative_config."""

from __future__ import annotations

import pytest

from octavo.core.config import EngineConfig, SpeculationConfig
from octavo.core.errors import ConfigError
from octavo.core.speculation import Speculation, parse_speculation


def test_names_of_other_engines_are_understood() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}'
    assert parse_speculation(text) == Speculation(num_speculative_tokens=5, prompt_lookup_max=3)
    config = EngineConfig.from_options(speculative_config={"method": "ngram"})
    assert config.speculation.parsed == Speculation()
    assert EngineConfig.from_options().speculation.parsed is None
    suffix = '{"method": "suffix", "suffix_decoding_max_spec_factor": 2}'
    assert parse_speculation(suffix).suffix_decoding_max_spec_factor == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "use an object"),
        ("{}", "names no method: use ngram"),
        ('{"method": "eagle"}', "method 'eagle': use ngram"),
        ('{"method": "ngram", "num_speculative_token": 3}', "did you mean num_speculative_tokens"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens 0: use 1 to"),
        ('{"method": "ngram", "num_speculative_tokens": 65}', "use 1 to 64"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "num_speculative_tokens True"),
        ('{"method": "ngram", "prompt_lookup_min": 5}', "prompt_lookup_min 5, more than"),
        ('{"method": "ngram", "adaptive": 1}', "adaptive 1: use true or false"),
        ('{"method": "draft_model"}', "name the smaller model"),
        ('{"method": "draft_model", "model": ""}', "model ''"),
        ('{"method": "self", "model": "x"}', "has model, which the method 'self' does not use"),
        ('{"method": "self", "prompt_lookup_min": 1}', "use the method 'ngram'"),
        (
            '{"method": "suffix", "suffix_decoding_min_token_prob": 1.5}',
            "suffix_decoding_min_token_prob 1.5: use 0.0 to 1.0",
        ),
        (
            '{"method": "suffix", "suffix_decoding_max_cached_requests": 0.5}',
            "suffix_decoding_max_cached_requests 0.5: use 0 to",
        ),
    ],
)
def test_mistakes_are_told_at_once(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculationConfig(speculative_config=text)
