from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.core import env
from octavo.core.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from octavo.core.errors import ConfigError


def test_flat_options_find_their_part():
    config = EngineConfig.from_options(
        model="x", num_blocks=3, max_num_seqs=4, num_threads=1, gpu_memory_utilization=0.5
    )
    assert config.model.model == "x" and config.cache.num_blocks == 3
    assert config.scheduler.max_num_seqs == 4 and config.device.num_threads == 1
    assert config.cache.memory_utilization == 0.5
    assert EngineConfig.from_options() == EngineConfig()


def test_an_unknown_option_is_named_with_its_neighbours():
    with pytest.raises(ConfigError, match=r"'max_num_seq'.*max_num_seqs"):
        EngineConfig.from_options(max_num_seq=4)
    with pytest.raises(ConfigError, match=r"'qqq'$"):
        EngineConfig.from_options(qqq=1)


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        (ModelConfig, {"model": ""}, "model is empty"),
        (ModelConfig, {"max_model_len": 0}, "max_model_len is 0"),
        (CacheConfig, {"block_size": 12}, "block_size is 12"),
        (CacheConfig, {"memory_utilization": 0.0}, "memory_utilization is 0.0"),
        (CacheConfig, {"memory_utilization": 1.1}, "memory_utilization is 1.1"),
        (CacheConfig, {"kv_cache_memory": 0}, "kv_cache_memory is 0"),
        (CacheConfig, {"num_blocks": 0}, "num_blocks is 0"),
        (SchedulerConfig, {"max_num_seqs": 0}, "max_num_seqs is 0"),
        (SchedulerConfig, {"max_num_batched_tokens": 10}, "less than max_num_seqs"),
        (SchedulerConfig, {"long_prefill_token_threshold": -1}, "is -1"),
        (DeviceConfig, {"num_threads": 0}, "num_threads is 0"),
        (ServerConfig, {"port": 65536}, "port is 65536"),
        (ServerConfig, {"host": ""}, "host is empty"),
        (ServerConfig, {"drain_timeout_s": -1.0}, "drain_timeout_s is -1"),
        (ServerConfig, {"drain_timeout_s": float("inf")}, "drain_timeout_s is inf"),
        (ServerConfig, {"max_logprobs": -1}, "max_logprobs is -1"),
        (ServerConfig, {"served_model_name": ("a", "")}, "an empty name"),
    ],
)
def test_wrong_values_are_refused_by_name(part, values, said):
    with pytest.raises(ConfigError, match=said):
        part(**values)


def test_environment(monkeypatch):
    for name in ("OCTAVO_CHECK_INVARIANTS", "OCTAVO_LOG_LEVEL", "OCTAVO_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    assert not env.check_invariants() and env.log_level() == "INFO" and env.cpu_isa() is None
    monkeypatch.setenv("OCTAVO_CHECK_INVARIANTS", "1")
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "debug")
    monkeypatch.setenv("OCTAVO_CPU_ISA", "AVX2")
    assert env.check_invariants() and env.log_level() == "DEBUG" and env.cpu_isa() == "avx2"
    for name, read in (
        ("OCTAVO_CHECK_INVARIANTS", env.check_invariants),
        ("OCTAVO_LOG_LEVEL", env.log_level),
        ("OCTAVO_CPU_ISA", env.cpu_isa),
    ):
        monkeypatch.setenv(name, "maybe")
        with pytest.raises(ConfigError, match=name):
            read()


def test_options_are_of_their_fields_types():
    made = EngineConfig.from_options(kv_cache_memory="512M", seed=3, model=Path("a/b"))
    assert (made.cache.kv_cache_memory, made.model.model) == (512 << 20, "a/b")
    assert EngineConfig.from_options(memory_utilization=1).cache.memory_utilization == 1
    assert EngineConfig.from_options(max_model_len="auto").model.max_model_len == "auto"
    assert EngineConfig.from_options(speculative_config={"method": "ngram"}).speculation.parsed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_memory": "much"}, "'much' is not a size"),
        ({"kv_cache_memory": 1.5}, "kv_cache_memory is 1.5: use a whole number or a size"),
        ({"num_blocks": "64"}, "num_blocks is '64': use a whole number"),
        ({"num_blocks": True}, "num_blocks is True"),
        ({"memory_utilization": "0.5"}, "memory_utilization is '0.5': use a number"),
        ({"dtype": "fp16"}, "dtype is 'fp16': use auto or float32 or bfloat16"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching is 1: use True or False"),
        ({"max_model_len": "longest"}, "max_model_len is 'longest': use auto or a whole number"),
        ({"model": None}, "model is None: use text"),
    ],
)
def test_options_of_other_types_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        EngineConfig.from_options(**options)
