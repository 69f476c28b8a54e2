"""Frozen configuration, one dataclass a concern, composed in `EngineConfig`.

Each field carries the sentence that ``--help`` and the reference page show. Values that are only
learned at run time (number of KV blocks, end-of-sequence ids, the real context length) are results,
not configuration: see `octavo.core.cache_plan` and `octavo.core.model_spec`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Literal

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.observe_config import ObservabilityConfig
from octavo.core.options import require as _require
from octavo.core.options import split_options
from octavo.core.speculation import Speculation, parse_speculation
from octavo.core.types import (
    DeviceOption,
    DtypeOption,
    KvDtypeOption,
    LoadFormat,
    PolicyName,
    Pooling,
    QuantizationOption,
    ReasoningParserOption,
    ToolParserOption,
)

_MAX_DRAIN_S = 86_400
_MAX_TIMEOUT_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model to serve, and in what precision."""

    model: str = "smollm2"
    """Alias (smollm2), local directory, GGUF file, or Hugging Face hub id."""

    revision: str | None = None
    """Branch, tag or commit of a hub model; the default branch if not given."""

    tokenizer: str | None = None
    """Directory or hub id to take the tokenizer from, if not from the model."""

    load_format: LoadFormat = "auto"
    """auto finds out from the files; dummy makes random weights for the model's config."""

    dtype: DtypeOption = "auto"
    """Precision of weights and activations; auto takes the checkpoint's where the device is quick
    at it, float32 elsewhere."""

    quantization: QuantizationOption = "auto"
    """Rounds weights to 8 or 4 bits on load (CPU only); auto keeps the precision of quantised GGUF
    files, unless a dtype is given, and rounds nothing else; none rounds nothing."""

    max_model_len: int | Literal["auto"] | None = None
    """Longest prompt + output in tokens; the model's own by default, auto for the longest that
    fits in the KV cache."""

    generation_config: Literal["auto", "none"] = "auto"
    """auto takes default sampling parameters from the model's generation_config.json; none uses
    those of the OpenAI API."""

    seed: int = 0
    """Seed of dummy weights and of offline requests that bring none."""

    def __post_init__(self) -> None:
        _require(bool(self.model), "model is empty: give an alias, a path or a hub id")
        if isinstance(self.max_model_len, int):
            _require(
                self.max_model_len >= 1, f"max_model_len is {self.max_model_len}: use 1 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens in a KV block: 8, 16, 32, 64 or 128."""

    memory_utilization: float | None = None
    """Share of the device's memory that Octavo may use in all; 0.9 on a GPU and 0.5 on a CPU by
    default."""

    kv_cache_memory: int | None = None
    """Bytes for the KV cache, instead of what memory_utilization leaves."""

    num_blocks: int | None = None
    """Number of KV blocks, instead of deriving it from memory."""

    kv_cache_dtype: KvDtypeOption = "auto"
    """Precision of cached K and V; auto takes that of the weights, bfloat16 for quantised ones.
    int8 has a scale for each token and head, and needs the native CPU kernels."""

    enable_prefix_caching: bool = True
    """Reuse the KV blocks of equal prompt prefixes."""

    def __post_init__(self) -> None:
        _require(
            self.block_size in (8, 16, 32, 64, 128),
            f"block_size is {self.block_size}: use 8, 16, 32, 64 or 128",
        )
        share = self.memory_utilization
        if share is not None:
            _require(0 < share <= 1, f"memory_utilization is {share}: use a share in (0, 1]")
        for name in ("kv_cache_memory", "num_blocks"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} is {value}: use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What a step may hold and who comes first."""

    max_num_batched_tokens: int | None = None
    """Tokens that one step computes at most; a longer prompt is cut into chunks. By default the
    smallest size that computes prompts at nearly full speed, measured at start."""

    max_num_seqs: int = 256
    """Requests that run at the same time at most."""

    policy: PolicyName = "fcfs"
    """fcfs serves in order of arrival; priority serves lower priority values first."""

    max_long_partial_prefills: int = 1
    """Long prompts that may be in progress at once, so that short ones are not stuck behind
    them."""

    long_prefill_token_threshold: int = 1024
    """A prompt with more tokens than this still to compute counts as long; 0 makes none long."""

    enable_chunked_prefill: bool = True
    """Cut prompts into chunks that share steps with running streams. Without it prompts are
    computed whole, in steps of their own that streams wait for: for comparison."""

    target_itl_ms: float | None = None
    """Milliseconds that running streams should wait for their next token at most: prompts are cut
    into pieces that fit, learned from what steps take. No limit by default."""

    def __post_init__(self) -> None:
        target = self.target_itl_ms
        _require(
            target is None or 0 < target < math.inf,
            f"target_itl_ms is {target}: use more than 0, or leave it out",
        )
        _require(
            target is None or self.enable_chunked_prefill,
            f"target_itl_ms is {target}, but enable_chunked_prefill is off: whole prompts cannot "
            "be made to fit; leave out one of them",
        )
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_long_partial_prefills"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} is {value}: use 1 or more")
        _require(
            self.long_prefill_token_threshold >= 0,
            f"long_prefill_token_threshold is {self.long_prefill_token_threshold}: use 0 or more",
        )
        tokens = self.max_num_batched_tokens
        _require(
            tokens is None or tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({tokens}) is less than max_num_seqs ({self.max_num_seqs}): "
            "each running request needs one token a step; raise the first or lower the second",
        )

    def token_budget(self) -> int:
        """Tokens of the largest step; 2048 until they have been chosen."""
        return self.max_num_batched_tokens or max(2048, self.max_num_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Where and how the model runs."""

    device: DeviceOption = "auto"
    """cpu or cuda; auto takes cuda where torch finds one."""

    num_threads: int | None = None
    """CPU threads for the model; the cores that this process may use by default."""

    attention_backend: Literal["auto", "reference", "sdpa"] = "auto"
    """Attention kernels; auto takes the fastest that supports the model on this device."""

    kernels: Literal["auto", "native", "torch"] = "auto"
    """What computes a step on a CPU: native for the compiled kernels of octavo-native, torch for
    plain torch; auto takes native where it is installed and the quicker of the two."""

    def __post_init__(self) -> None:
        threads = self.num_threads
        _require(threads is None or threads >= 1, f"num_threads is {threads}: use 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP side of ``octavo serve``."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every interface."""

    port: int = 8000
    """Port to listen on; 0 takes a free one."""

    served_model_name: tuple[str, ...] = ()
    """Names that clients may use for the model; the model argument by default."""

    chat_template: str | None = None
    """File with a Jinja chat template, instead of the model's own."""

    trust_request_chat_template: bool = False
    """Let requests bring a chat template of their own: a program that may take any time to run."""

    tool_call_parser: ToolParserOption = "auto"
    """How the model writes tool calls; auto tells it from the chat template. hermes is also for
    Qwen2.5 and Qwen3."""

    reasoning_parser: ReasoningParserOption = "auto"
    """How the model writes what it thinks: not at all (none), between <think> and </think> if it or
    the prompt opens it (qwen3), or in every answer up to </think> (deepseek_r1). auto takes qwen3
    if the chat template has </think>."""

    drain_timeout_s: float = 30.0
    """Seconds that running requests get to finish after the first Ctrl-C or SIGTERM."""

    max_waiting_requests: int = 2048
    """Completions that may wait for others to end; requests beyond are refused with status 429.
    0 for any number."""

    max_waiting_tokens: int = 4_000_000
    """Prompt tokens that may wait to be computed; requests beyond are refused with status 429. 0
    for any number."""

    request_timeout_s: float | None = None
    """Seconds after which a request that is not done ends with an error, in the queue or running;
    also the most that a request's own timeout may be. No limit by default."""

    slow_client_timeout_s: float = 60.0
    """Seconds after which a TCP connection ends whose client takes nothing of what is there for
    it."""

    max_engine_restarts: int = 10
    """Times in a row that an engine is started again which dies while starting, or before it has
    answered what it was asked; the server ends with status 1 then. 0 for no restart at all."""

    engine_timeout_s: float = 300.0
    """Seconds without a sign of life after which an engine that has work is killed and started
    again; must exceed the longest step. 0 for never."""

    max_logprobs: int = 20
    """Most alternatives that a request may ask for at each position."""

    pooling: Pooling = "mean"
    """What an embedding is made of, unless the request says it: the final hidden states of all
    tokens of a text (mean), or that of the last one."""

    access_log: bool = False
    """Log a line for each HTTP request."""

    root_path: str = ""
    """Path under which a proxy offers the server, such as /llm; whether the proxy takes it off
    before it hands requests on does not matter."""

    uds: str | None = None
    """Unix socket to listen on, instead of host and port."""

    security: SecurityConfig = field(default_factory=SecurityConfig)
    """Keys, certificates and origins."""

    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """What a connection and a key may use."""

    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    """What is told about requests, and to whom."""

    def __post_init__(self) -> None:
        _require(bool(self.host), "host is empty: use 0.0.0.0 for every interface")
        _require(0 <= self.port <= 65535, f"port is {self.port}: use 0 to 65535")
        _require(
            0 <= self.drain_timeout_s <= _MAX_DRAIN_S,
            f"drain_timeout_s is {self.drain_timeout_s}: use 0 to {_MAX_DRAIN_S}",
        )
        for name in ("max_waiting_requests", "max_waiting_tokens", "max_engine_restarts"):
            value = getattr(self, name)
            _require(value >= 0, f"{name} is {value}: use 0 or more")
        limit = self.request_timeout_s
        _require(
            limit is None or 0 < limit <= _MAX_TIMEOUT_S,
            f"request_timeout_s is {limit}: use more than 0, and {_MAX_TIMEOUT_S} at most",
        )
        _require(
            0 < self.slow_client_timeout_s <= _MAX_TIMEOUT_S,
            f"slow_client_timeout_s is {self.slow_client_timeout_s}: use more than 0, and "
            f"{_MAX_TIMEOUT_S} at most",
        )
        _require(
            0 <= self.engine_timeout_s <= _MAX_TIMEOUT_S,
            f"engine_timeout_s is {self.engine_timeout_s}: use 0 to {_MAX_TIMEOUT_S}",
        )
        _require(self.max_logprobs >= 0, f"max_logprobs is {self.max_logprobs}: use 0 or more")
        _require(all(self.served_model_name), "served_model_name has an empty name")
        _require(
            self.uds is None or ("\0" not in self.uds and bool(self.uds)),
            f"uds is {self.uds!r}: give the path of a socket in the file system",
        )
        _require(
            not self.root_path or (self.root_path[0] == "/" and self.root_path[-1] != "/"),
            f"root_path is {self.root_path!r}: begin it with / and do not end it with one",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Speculative decoding: guesses checked with the model itself, for the same tokens sooner."""

    speculative_config: str | None = None
    """A JSON object such as {"method": "ngram", "num_speculative_tokens": 8}; none by default."""

    def __post_init__(self) -> None:
        given: object = self.speculative_config
        if isinstance(given, dict):
            object.__setattr__(self, "speculative_config", json.dumps(given))
        _ = self.parsed  # a mistake is told now

    @property
    def parsed(self) -> Speculation | None:
        """What it says; None for no speculation."""
        text = self.speculative_config
        return None if text is None else parse_speculation(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that the engine must know to start."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)

    @classmethod
    def from_options(cls, **options: object) -> EngineConfig:
        """Builds the parts from one flat set of field names, as `LLM` and the command line do.

        Raises:
            ConfigError: a name that no part has, with the closest names that exist.
        """
        return cls(**split_options(cls, options))
