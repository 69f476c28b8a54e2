"""Where the model runs. CPU and GPU are peers behind one protocol."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Protocol

import psutil  # type: ignore[import-untyped]
import torch

from octavo.core.config import DeviceConfig
from octavo.core.errors import ConfigError
from octavo.core.types import DtypeName, DtypeOption, KvDtypeName
from octavo.layers.products import cpu_is_quick_at_bfloat16

TORCH_DTYPES: dict[KvDtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_CGROUP_OF_PROCESS = Path("/proc/self/cgroup")


class Device(Protocol):
    """What the rest of the engine may ask of the hardware."""

    name: str
    """For people, e.g. ``cpu (8 threads)``."""
    torch_device: torch.device
    num_threads: int
    """CPU threads that the model's arithmetic uses."""
    default_utilization: float
    """Share of the memory that Octavo takes if nothing else is asked for."""
    step_tokens_range: tuple[int, int]
    """Sizes to try for the largest step, in tokens, if nothing else is asked for."""

    def total_memory_bytes(self) -> int:
        """What the device has, or what this process is allowed of it."""

    def other_memory_bytes(self) -> int:
        """What is taken already by anything but our tensors: interpreter, other processes."""

    def resolve_dtype(self, wanted: DtypeOption, checkpoint: DtypeName) -> DtypeName:
        """The precision to compute in."""

    def start(self) -> None:
        """Applies settings that are global to the process, such as thread counts."""

    def synchronise(self) -> None:
        """Waits for all work that was started on the device."""


class Cpu:
    """The processor that Python itself runs on."""

    default_utilization = 0.5
    step_tokens_range = (64, 2048)

    def __init__(self, num_threads: int | None = None) -> None:
        self.torch_device = torch.device("cpu")
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self.name = f"cpu ({self.num_threads} thread{'s' if self.num_threads > 1 else ''})"

    def total_memory_bytes(self) -> int:
        """The machine's memory, or the control group's limit if that is less."""
        return min([int(psutil.virtual_memory().total), *memory_limits()])

    def other_memory_bytes(self) -> int:
        """Resident memory of this process: call it before weights are loaded."""
        return int(psutil.Process().memory_info().rss)

    def resolve_dtype(self, wanted: DtypeOption, checkpoint: DtypeName) -> DtypeName:
        """auto is bfloat16 for 16-bit checkpoints if the CPU is quick at it, else float32.

        Raises:
            ConfigError: float16, which CPUs compute many times slower than either.
        """
        if wanted == "float16":
            raise ConfigError(
                "dtype float16 is not offered on a CPU, which has no arithmetic for it: use "
                "bfloat16, float32 or auto"
            )
        if wanted != "auto":
            return wanted
        is_small = checkpoint in ("bfloat16", "float16")
        return "bfloat16" if is_small and cpu_is_quick_at_bfloat16() else "float32"

    def start(self) -> None:
        """Sets the number of threads."""
        torch.set_num_threads(self.num_threads)

    def synchronise(self) -> None:
        """Nothing to wait for: a CPU is done when a call returns."""


class Cuda:
    """One NVIDIA GPU."""

    default_utilization = 0.9
    step_tokens_range = (512, 16384)

    def __init__(self, num_threads: int | None = None, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self.name = f"cuda:{index} ({torch.cuda.get_device_name(index)})"

    def total_memory_bytes(self) -> int:
        """All of the GPU's memory."""
        return torch.cuda.mem_get_info(self.torch_device)[1]

    def other_memory_bytes(self) -> int:
        """What is taken on the GPU but not by torch's allocator in this process."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free - torch.cuda.memory_reserved(self.torch_device)

    def resolve_dtype(self, wanted: DtypeOption, checkpoint: DtypeName) -> DtypeName:
        """auto is the checkpoint's; float32 checkpoints stay float32."""
        return checkpoint if wanted == "auto" else wanted

    def start(self) -> None:
        """Sets the current GPU and the number of host threads."""
        torch.cuda.set_device(self.torch_device)
        torch.set_num_threads(self.num_threads)

    def synchronise(self) -> None:
        """See `Device.synchronise`."""
        torch.cuda.synchronize(self.torch_device)


def choose_device(config: DeviceConfig) -> Device:
    """The configured device; auto takes a GPU if torch finds one.

    Raises:
        ConfigError: cuda was asked for and there is none.
    """
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        build = torch.version.cuda or "none"
        raise ConfigError(
            f"device is cuda, but torch {torch.__version__} (CUDA build: {build}) finds no GPU: "
            "install a CUDA build of torch and a driver, or use device cpu"
        )
    if config.device != "cpu" and available:
        return Cuda(config.num_threads)
    return Cpu(config.num_threads)


def memory_limits() -> list[int]:
    """Memory limits of this process's control groups, in bytes."""
    return cgroup_limits(_CGROUP_ROOT, _CGROUP_OF_PROCESS)


def cgroup_limits(root: Path, membership: Path) -> list[int]:
    """Memory limits of the process's control groups and their ancestors, versions 1 and 2.

    Args:
        root: where control groups are mounted.
        membership: the process's own groups, lines of ``id:controllers:path``.
    """
    if platform.system() != "Linux" or not membership.exists():
        return []
    limits = []
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        # A container sees its own group as the root, whatever the path says.
        candidates = [top, *(level for level in (group, *group.parents) if top in level.parents)]
        limits += [limit for level in candidates if (limit := _limit(level / name)) is not None]
    return limits


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
