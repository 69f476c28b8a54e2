"""The composition root: the only file that names concrete classes of several rooms together.

Everything heavy is imported inside the function that needs it, so that the server's process, which
needs a tokenizer but no model, never loads torch.
"""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.core import env
from octavo.core.cache_plan import CachePlan, MemoryUse, plan_cache
from octavo.core.config import EngineConfig, ModelConfig
from octavo.core.errors import ConfigError, EngineError
from octavo.core.info import EngineInfo
from octavo.core.params import SamplingParams, Structured
from octavo.loader.checkpoint import Checkpoint, read_checkpoint
from octavo.loader.source import ModelSource, resolve_source
from octavo.tokenizer.gguf import tokenizer_from_gguf
from octavo.tokenizer.load import load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.attention.base import AttentionBackend
    from octavo.engine.core import Engine
    from octavo.front.async_engine import AsyncEngine
    from octavo.front.grammar_guard import GrammarGuard
    from octavo.front.process import EngineProcess
    from octavo.front.supervisor import RestartLimits, Supervisor
    from octavo.grammar.store import GrammarStore
    from octavo.models.base import CausalModel
    from octavo.models.decoder import Decoder
    from octavo.runner.device import Device
    from octavo.runner.drafter import DraftModel
    from octavo.runner.precision import KernelChoice
    from octavo.runner.step_size import StepSize
    from octavo.transport.base import EngineEnd, FrontEnd
    from octavo.transport.zmq_link import ZmqFrontEnd

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]
"""Told what is being done, and which share of it is done (0 to 1)."""

_ANY_OBJECT = SamplingParams(structured=Structured.json())


@dataclass(frozen=True, slots=True)
class FrontModel:
    """What the front end must know of a model; read without torch and without weights."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    generation_defaults: dict[str, float | int]
    """Sampling parameters that the model recommends; empty if the user wants none."""


@dataclass(slots=True)
class _Stages:
    """Times the parts of a start, and reports them."""

    on_progress: OnProgress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.on_progress(name, 0.0)
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began
        self.on_progress(name, 1.0)


def read_front(config: ModelConfig) -> FrontModel:
    """Finds the model's files and reads all of them but the weights.

    Raises:
        ModelLoadError: they are missing, damaged or of an unknown kind.
    """
    source = resolve_source(config)
    checkpoint = read_checkpoint(source, config.load_format)
    defaults = checkpoint.generation_defaults if config.generation_config == "auto" else {}
    return FrontModel(checkpoint, _read_tokenizer(config, source, checkpoint), defaults)


def _read_tokenizer(config: ModelConfig, source: ModelSource, checkpoint: Checkpoint) -> Tokenizer:
    if config.tokenizer is not None:
        path = Path(config.tokenizer)
        if not path.is_dir():
            other = replace(config, model=config.tokenizer, load_format="dummy", tokenizer=None)
            path = resolve_source(other).path
        return load_tokenizer(path)
    if checkpoint.metadata is not None:
        return tokenizer_from_gguf(checkpoint.metadata)
    return load_tokenizer(source.path)


def build_engine(
    config: EngineConfig,
    on_progress: OnProgress = lambda _stage, _share: None,
    *,
    tokenizer: Tokenizer | None = None,
    expects_grammars: bool = False,
) -> tuple[Engine, EngineInfo]:
    """Loads the model and makes an engine that is ready to step.

    Structured output needs the model's tokenizer; without one here, it is read when first needed.
    What the first grammar has to wait for is made beside the weights if it ``expects_grammars``.

    Raises:
        EngineError: a setting is wrong, the checkpoint cannot be loaded, or it does not fit.
    """
    stages = _Stages(on_progress)
    with stages.stage("import"):
        from octavo.runner.device import choose_device
        from octavo.runner.loading import load_model, make_draft_model
        from octavo.runner.precision import choose_kernels, pack

        device = choose_device(config.device)
        device.start()
    source = resolve_source(config.model)
    checkpoint = read_checkpoint(source, config.model.load_format)
    max_len = _longest(config, checkpoint)
    kernels = choose_kernels(config, checkpoint, device)
    other_bytes = device.other_memory_bytes()
    grammars = _make_grammars(config.model, source, checkpoint, tokenizer)
    warm = grammars.prepare(_ANY_OBJECT) if expects_grammars else None
    with stages.stage("weights"):
        decoder = load_model(
            config.model, checkpoint, kernels, device, lambda share: on_progress("weights", share)
        )
    with stages.stage("packing"):
        draft = make_draft_model(config, decoder, kernels, device, max_model_len=max_len)
        threads = device.num_threads
        model, backend = pack(config, decoder, kernels, max_model_len=max_len, num_threads=threads)
    if warm is not None:  # what goes wrong is told to whoever asks for a grammar
        with stages.stage("grammars"):
            concurrent.futures.wait((warm,))
    with stages.stage("measuring"):
        step_size = _step_size(config, model, backend, device, max_model_len=max_len)
        limits = replace(config.scheduler, max_num_batched_tokens=step_size.tokens)
        config = replace(config, scheduler=limits)
    with stages.stage("KV cache"):
        weight_bytes = model.weight_bytes + (draft.model.weight_bytes if draft else 0)
        memory = MemoryUse(
            total_bytes=device.total_memory_bytes(),
            weight_bytes=weight_bytes,
            activation_bytes=_activation_bytes(config, decoder, model, backend),
            other_bytes=other_bytes,
        )
        plan = _plan(config, checkpoint, kernels, memory, device, draft)
        engine = _make_engine(config, model, backend, device, plan, grammars, draft)
    backend_name = backend.name if kernels.isa is None else f"native ({kernels.isa})"
    info = _info(config, checkpoint, kernels, device, plan, backend_name)
    info = replace(info, step_size_reason=step_size.reason, startup_s=stages.seconds)
    return engine, info


def _info(
    config: EngineConfig,
    checkpoint: Checkpoint,
    kernels: KernelChoice,
    device: Device,
    plan: CachePlan,
    attention_backend: str,
) -> EngineInfo:
    return EngineInfo(
        model=config.model.model,
        spec=checkpoint.spec,
        cache_plan=plan,
        max_model_len=plan.max_model_len,
        dtype=kernels.dtype,
        kv_dtype=kernels.kv_dtype,
        quantization=kernels.quantization,
        device=device.name,
        attention_backend=attention_backend,
        num_threads=device.num_threads,
        max_num_batched_tokens=config.scheduler.token_budget(),
        max_num_seqs=config.scheduler.max_num_seqs,
        policy=config.scheduler.policy,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )


def _step_size(
    config: EngineConfig,
    model: CausalModel,
    backend: AttentionBackend,
    device: Device,
    *,
    max_model_len: int,
) -> StepSize:
    """The limit on tokens of a step: what was asked for, or what this machine wants."""
    from octavo.runner.memory import dummy_step
    from octavo.runner.step_size import StepSize, choose_step_size, sizes_between

    limits = config.scheduler
    wanted = limits.max_num_batched_tokens
    if not limits.enable_chunked_prefill:
        tokens = max(wanted or 0, max_model_len, limits.max_num_seqs)
        return StepSize(tokens, "prompts are not cut, so the longest must fit")
    if wanted is not None:
        return StepSize(wanted, "as asked for")

    def run(size: int) -> None:
        dummy_step(model, backend, max_tokens=size, max_rows=1)
        device.synchronise()

    sizes = sizes_between(*device.step_tokens_range)
    return choose_step_size(sizes, run, at_least=limits.max_num_seqs)


def _plan(
    config: EngineConfig,
    checkpoint: Checkpoint,
    kernels: KernelChoice,
    memory: MemoryUse,
    device: Device,
    draft: DraftModel | None,
) -> CachePlan:
    wanted = config.model.max_model_len
    return plan_cache(
        checkpoint.spec,
        config.cache,
        kernels.kv_dtype,
        memory,
        default_utilization=device.default_utilization,
        max_model_len=None if wanted == "auto" else _longest(config, checkpoint),
        draft_bytes_per_token=draft.kv_bytes_per_token if draft else 0,
    )


def run_engine(config: EngineConfig, link: EngineEnd) -> None:
    """Builds an engine and serves it over a link until told to leave; never raises."""
    from octavo.engine.loop import EngineLoop, failure
    from octavo.transport.messages import Progress

    try:
        engine, info = build_engine(
            config, lambda stage, share: link.send(Progress(stage, share)), expects_grammars=True
        )
    except Exception as error:
        if not isinstance(error, EngineError):
            logger.exception("the engine cannot start")
        link.send(failure(error))
    else:
        # What exists now stays for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        EngineLoop(engine, link, info, clock=time.monotonic).run()
    finally:
        link.close()


def make_async_engine(
    link: FrontEnd, front: FrontModel, model_name: str, guard: GrammarGuard | None = None
) -> AsyncEngine:
    """The front end of an engine behind ``link``."""
    from octavo.front.async_engine import AsyncEngine
    from octavo.metrics.registry import EngineMetrics

    return AsyncEngine(
        link,
        front.tokenizer,
        eos_token_ids=front.checkpoint.eos_token_ids,
        metrics=EngineMetrics(model_name),
        clock=time.monotonic,
        guard=guard,
    )


def start_engine_thread(config: EngineConfig) -> tuple[threading.Thread, FrontEnd]:
    """An engine in a thread of this process; call it in the event loop that will use it.

    Wait for the thread before the interpreter exits: a thread that is cut off inside native code
    aborts the process.
    """
    from octavo.transport.inproc import make_pair

    front_end, engine_end = make_pair()
    thread = threading.Thread(
        target=run_engine, args=(config, engine_end), name="octavo-engine", daemon=True
    )
    thread.start()
    return thread, front_end


def supervise_engine(config: EngineConfig, limits: RestartLimits) -> Supervisor:
    """An engine in a child process, started again when it dies; call it in the event loop that
    will use it."""
    from octavo.front.supervisor import Supervisor

    return Supervisor(lambda: start_engine_process(config), limits)


def start_engine_process(config: EngineConfig) -> tuple[EngineProcess, ZmqFrontEnd]:
    """An engine in a child process; call it in the event loop that will use it."""
    import msgspec

    from octavo.front.process import EngineProcess
    from octavo.transport.zmq_link import ZmqFrontEnd

    config_line = msgspec.json.encode(config).decode()
    link = ZmqFrontEnd()
    command = _module_command("octavo.cli.engine_process", link.address)
    try:
        process = EngineProcess(command, config_line)
    except BaseException:
        link.close()
        raise
    process.watch(link.connection_lost)
    return process, link


def make_grammar_guard(config: ModelConfig) -> GrammarGuard:
    """What refuses bad grammars, in a process of its own that is not started yet."""
    import msgspec

    from octavo.front.grammar_guard import GrammarGuard

    command = _module_command("octavo.cli.grammar_process")
    return GrammarGuard(command, msgspec.json.encode(config).decode())


def _module_command(module: str, *arguments: str) -> list[str]:
    # `-m` would put the current directory, with whatever modules lie there, before all others.
    options = [] if os.getcwd() in sys.path or "" in sys.path else ["-P"]
    return [sys.executable, *options, "-m", module, *arguments]


def _longest(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """The longest request that the model could serve."""
    wanted, limit = config.model.max_model_len, checkpoint.spec.max_position
    if isinstance(wanted, int) and wanted > limit:
        raise ConfigError(
            f"max_model_len is {wanted}, but {config.model.model} knows positions up to {limit}: "
            "lower it, or leave it out"
        )
    return wanted if isinstance(wanted, int) else limit


def _activation_bytes(
    config: EngineConfig, decoder: Decoder, model: CausalModel, backend: AttentionBackend
) -> int:
    from octavo.runner.memory import activation_bytes, measured_activation_bytes

    tokens, rows = config.scheduler.token_budget(), config.scheduler.max_num_seqs
    if model.device.type == "cuda":
        return measured_activation_bytes(model, backend, max_tokens=tokens, max_rows=rows)
    # Native activations are float32, whatever the weights are.
    is_wide = model is not decoder or model.dtype.itemsize == 4
    return activation_bytes(
        model.spec,
        "float32" if is_wide else "bfloat16",
        max_tokens=tokens,
        max_rows=rows,
        upcast=decoder.products.takes_float32,
    )


def _make_engine(
    config: EngineConfig,
    model: CausalModel,
    backend: AttentionBackend,
    device: Device,
    plan: CachePlan,
    grammars: GrammarStore,
    draft: DraftModel | None,
) -> Engine:
    from octavo.engine.core import Engine
    from octavo.kv.manager import BlockManager
    from octavo.runner.model_runner import ModelRunner, RunnerLimits
    from octavo.scheduler.scheduler import Scheduler
    from octavo.speculate.speculator import Speculator

    limits = RunnerLimits(
        num_blocks=plan.num_blocks,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=plan.max_model_len,
    )
    blocks = BlockManager(
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    speculation = config.speculation.parsed
    scheduler = Scheduler(
        config.scheduler,
        blocks,
        max_model_len=plan.max_model_len,
        clock=time.monotonic,
        speculator=None if speculation is None else Speculator(speculation),
    )
    return Engine(
        scheduler,
        ModelRunner(model, backend, device, limits, grammars, draft),
        clock=time.monotonic,
        check_invariants=env.check_invariants(),
        preparer=grammars,
    )


def _make_grammars(
    config: ModelConfig,
    source: ModelSource,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer | None,
) -> GrammarStore:
    """Grammars over a model's tokens; those are read when the first grammar is wanted."""
    from octavo.grammar.store import GrammarStore
    from octavo.grammar.vocabulary import make_vocabulary

    return GrammarStore(
        lambda: make_vocabulary(
            tokenizer or _read_tokenizer(config, source, checkpoint),
            vocab_size=checkpoint.spec.vocab_size,
            eos_token_ids=checkpoint.eos_token_ids,
        )
    )
