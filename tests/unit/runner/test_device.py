from __future__ import annotations

import os

import pytest
import torch

from octavo.core.config import DeviceConfig
from octavo.core.errors import ConfigError
from octavo.runner import device
from octavo.runner.device import Cpu, cgroup_limits, choose_device


def test_auto_is_the_cpu_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chosen = choose_device(DeviceConfig(num_threads=3))
    assert isinstance(chosen, Cpu)
    assert (chosen.num_threads, chosen.name) == (3, "cpu (3 threads)")
    with pytest.raises(ConfigError, match="finds no GPU"):
        choose_device(DeviceConfig(device="cuda"))


def test_gpu_is_taken_if_there_is_one_and_none_forbids_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H200")
    assert choose_device(DeviceConfig()).name == "cuda:0 (H200)"
    assert isinstance(choose_device(DeviceConfig(device="cpu")), Cpu)


def test_threads_are_the_cores_this_process_may_use():
    cpu = Cpu()
    assert cpu.num_threads == len(os.sched_getaffinity(0))
    before = torch.get_num_threads()
    Cpu(1).start()
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_memory_of_this_machine():
    cpu = Cpu()
    assert 0 < cpu.other_memory_bytes() < cpu.total_memory_bytes()


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "quick", "expected"),
    [
        ("auto", "bfloat16", True, "bfloat16"),
        ("auto", "float16", True, "bfloat16"),
        ("auto", "float32", True, "float32"),
        ("auto", "bfloat16", False, "float32"),
        ("auto", "float16", False, "float32"),
        ("bfloat16", "float32", False, "bfloat16"),
        ("float32", "bfloat16", True, "float32"),
    ],
)
def test_dtype_on_a_cpu(monkeypatch, wanted, checkpoint, quick, expected):
    monkeypatch.setattr(device, "cpu_is_quick_at_bfloat16", lambda: quick)
    assert Cpu(1).resolve_dtype(wanted, checkpoint) == expected


def test_float16_on_a_cpu_is_refused():
    with pytest.raises(ConfigError, match="float16 is not offered on a CPU"):
        Cpu(1).resolve_dtype("float16", "float16")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_control_groups_version_2(tmp_path):
    membership = tmp_path / "cgroup"
    write(membership, "0::/pod/box\n")
    root = tmp_path / "fs"
    write(root / "pod" / "box" / "memory.max", "max\n")
    write(root / "pod" / "memory.max", "5000\n")
    assert cgroup_limits(root, membership) == [5000]
    write(root / "memory.max", "4000\n")
    assert sorted(cgroup_limits(root, membership)) == [4000, 5000]


def test_limits_of_control_groups_version_1(tmp_path):
    membership = tmp_path / "cgroup"
    write(membership, "5:devices:/pod\n4:cpu,memory:/pod/box\n0::/\n")
    root = tmp_path / "fs"
    write(root / "memory" / "pod" / "box" / "memory.limit_in_bytes", "7000\n")
    write(root / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    assert min(cgroup_limits(root, membership)) == 7000


def test_no_control_groups(tmp_path):
    assert cgroup_limits(tmp_path, tmp_path / "missing") == []
