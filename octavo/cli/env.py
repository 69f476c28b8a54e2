"""``octavo env``: what Octavo finds on this machine, and what it makes of it.

For reports of faults, and for whoever wonders why a machine is slow. Loads no model.
"""

from __future__ import annotations

import argparse
import importlib.metadata as packages
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.core import env
from octavo.core.errors import ConfigError

Facts = dict[str, Any]

_INSTRUCTIONS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)
"""What matters to products, as Linux calls it."""

_GIB = 1 << 30
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_EXTRA = re.compile(r"""(?P<name>[\w.-]+).*extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No flag of the engine has a say here."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Looks and prints."""
    facts = collect()
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    for title, section in facts.items():
        print(title)
        width = max(map(len, section), default=0)
        for name, value in section.items():
            print(f"  {name:<{width}}  {_shown(value)}")
    return 0


def collect() -> dict[str, Facts]:
    """Sections of facts, as JSON has them; what cannot be found out is null."""
    return {
        "software": _software(),
        "native kernels": _native(),
        "processor": _processor(),
        "memory": _memory(),
        "gpu": _gpu(),
        "extras": _extras(),
        "environment": _environment(),
    }


def _software() -> Facts:
    import torch

    names = ("numpy", "transformers", "tokenizers", "llguidance", "fastapi", "pyzmq")
    return {
        "octavo": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "executable": sys.executable,
        "platform": platform.platform(),
        "torch": torch.__version__,
        **{name: _version(name) for name in names},
    }


def _native() -> Facts:
    """Which instruction sets there are kernels for, and which `octavo` would take for a model that
    they serve."""
    from octavo.kernels.native import instruction_sets
    from octavo.layers.products import cpu_is_quick_at_bfloat16

    found = instruction_sets()
    facts: Facts = {"octavo-native": _version("octavo-native"), "found": found}
    try:
        forced = env.cpu_isa()
    except ConfigError as error:
        return {**facts, "forced": os.environ.get("OCTAVO_CPU_ISA"), "chosen": None} | {
            "problem": str(error)
        }
    facts |= {"forced": forced, "chosen": forced or (found[0] if found else None)}
    if not found:
        facts["problem"] = "not installed for this machine: pip install ./native; torch is used"
    elif forced is not None and forced not in found:
        facts |= {"chosen": None, "problem": f"this machine has no kernels for {forced}"}
    facts["torch for bfloat16 weights"] = cpu_is_quick_at_bfloat16()
    return facts


def _processor() -> Facts:
    import psutil  # type: ignore[import-untyped]

    info = _read(Path("/proc/cpuinfo")) or ""
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "model": model[1] if model else platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "instructions": [name for name in _INSTRUCTIONS if name in known],
        "cores": psutil.cpu_count(logical=False),
        "threads": os.cpu_count(),
        "usable threads": len(affinity(0)) if affinity else os.cpu_count(),
        "cgroup cores": cpu_quota(_CGROUP_ROOT),
    }


def cpu_quota(root: Path) -> float | None:
    """Cores' worth of time that the control group may use, versions 2 and 1; None for no limit.

    Args:
        root: where control groups are mounted; a container sees its own as the root.
    """
    words = (_read(root / "cpu.max") or "").split()
    if len(words) != 2:
        words = [_read(root / "cpu" / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    quota, period = (word.strip() for word in words)
    if not quota.isdigit() or not period.isdigit() or period == "0":
        return None
    return int(quota) / int(period)


def _memory() -> Facts:
    import psutil

    from octavo.runner.device import Cpu, memory_limits

    machine = psutil.virtual_memory()
    return {
        "total": int(machine.total),
        "available": int(machine.available),
        # Version 1 writes a huge number where there is no limit.
        "cgroup limit": min((n for n in memory_limits() if n < machine.total), default=None),
        "used by default": int(Cpu().total_memory_bytes() * Cpu.default_utilization),
    }


def _gpu() -> Facts:
    import torch

    facts: Facts = {"cuda build": torch.version.cuda, "found": torch.cuda.is_available()}
    for index in range(torch.cuda.device_count() if facts["found"] else 0):
        found = torch.cuda.get_device_properties(index)
        facts[f"cuda:{index}"] = {
            "name": found.name,
            "memory": found.total_memory,
            "compute capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
        }
    return facts


def _extras() -> Facts:
    """Packages of each optional extra and their versions; without the ones for development."""
    try:
        wanted = packages.requires("octavo") or []
    except packages.PackageNotFoundError:  # run from a checkout that is not installed
        wanted = []
    found: Facts = {"event loop": {"uvloop": _version("uvloop")}}
    for requirement in wanted:
        match = _EXTRA.match(requirement)
        if match is not None and match["extra"] != "dev":
            found.setdefault(match["extra"], {})[match["name"]] = _version(match["name"])
    return found


def _environment() -> Facts:
    """Variables that are set; of secrets only that they are."""
    return {
        name: "(set)" if variable.is_secret else os.environ[name]
        for name, variable in env.VARIABLES.items()
        if name in os.environ
    }


def _version(package: str) -> str | None:
    try:
        return packages.version(package)
    except packages.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _shown(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int() if value >= _GIB:
            return f"{value / _GIB:.2f} GiB"
        case list():
            return ", ".join(map(_shown, value)) or "none"
        case dict():
            return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    return str(value)
