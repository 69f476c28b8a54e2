"""Names for the few scalar kinds that cross every package."""

from __future__ import annotations

from typing import Literal, TypeAlias

RequestId: TypeAlias = str
"""A client's unit of work, for its whole life."""

BlockId: TypeAlias = int
"""Index of a KV block; the same id names the same slot range in every layer."""

TokenId: TypeAlias = int
"""Index into the vocabulary."""

DtypeName = Literal["float32", "bfloat16", "float16"]
"""Numeric types that weights and KV cache may have."""

DtypeOption = Literal["auto", "float32", "bfloat16", "float16"]
KvDtypeName = Literal["float32", "bfloat16", "float16", "int8"]
"""Numeric types that cached K and V may have."""

KvDtypeOption = Literal["auto", "float32", "bfloat16", "float16", "int8"]
QuantizationOption = Literal["auto", "none", "int8", "int4"]
DeviceOption = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
PolicyName = Literal["fcfs", "priority"]
FinishReason = Literal["stop", "length", "abort", "error"]
ToolParserOption = Literal["auto", "hermes", "llama3", "qwen3_coder"]
ReasoningParserOption = Literal["auto", "none", "qwen3", "deepseek_r1"]
Pooling = Literal["mean", "last"]
"""How the hidden states of a prompt's tokens become one vector: their mean, or the last of them."""

DTYPE_BYTES: dict[KvDtypeName, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

AdmissionStop: TypeAlias = Literal[
    "tokens", "time", "blocks", "max_num_seqs", "long_prompts", "whole_prompt", "preempted"
]
"""Why a step took nobody more out of the line: its tokens, or the time that streams may wait, are
spent; too few blocks; as many run as may; only long prompts are left, and one is in progress; a
whole prompt does not fit into what is left; or somebody has just given back blocks."""
