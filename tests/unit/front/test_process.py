from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.aio import aio, eventually

from octavo.core.errors import EngineDead
from octavo.front.process import EngineProcess

ECHO_CONFIG = "import sys; sys.stdout.write(sys.stdin.readline()); sys.exit(len(sys.stdin.read()))"
STAYS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
LEAVES_WITH_PIPE = "import sys; sys.stdin.read()"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def exit_reason(process: EngineProcess) -> str:
    reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    process.watch(reason.set_result)
    return await reason


@aio
async def test_child_gets_its_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    process = EngineProcess(python(ECHO_CONFIG), '{"model": "é"}')
    process.stop()
    assert await exit_reason(process) == (f"the engine process (pid {process.pid}) has left")
    assert capfd.readouterr().out == '{"model": "é"}\n'


@aio
async def test_watcher_tells_how_the_child_ended() -> None:
    process = EngineProcess(python("raise SystemExit(3)"), "{}")
    assert "ended with status 3: see its log" in await exit_reason(process)
    process.stop()
    process = EngineProcess(python(STAYS), "{}")
    os.kill(process.pid, signal.SIGKILL)
    assert "was killed by SIGKILL: perhaps memory ran out" in await exit_reason(process)
    process.stop()
    process = EngineProcess(python("import os; os.abort()"), "{}")
    assert "was killed by SIGABRT: see its log" in await exit_reason(process)
    process.stop()


@aio
async def test_ended_child_is_no_zombie_even_if_nobody_stops_it() -> None:
    process = EngineProcess(python("pass"), "{}")
    await exit_reason(process)
    assert not psutil.pid_exists(process.pid)
    process.stop()


def test_stop_asks_first_and_insists_then() -> None:
    friendly = EngineProcess(python(LEAVES_WITH_PIPE), "{}")
    friendly.stop()
    assert "has left" in friendly.describe_exit()
    deaf = EngineProcess(python("import time; time.sleep(60)"), "{}")
    deaf.stop(grace_s=0.2)
    assert "SIGTERM" in deaf.describe_exit()


def test_stop_kills_in_the_end() -> None:
    stubborn = EngineProcess(python(f"print('.', flush=True); {STAYS}"), "{}")
    time.sleep(0.3)  # until it ignores SIGTERM
    began = time.monotonic()
    stubborn.stop(grace_s=0.2)
    stubborn.stop(grace_s=0.2)
    assert "SIGKILL" in stubborn.describe_exit()
    assert time.monotonic() - began < 2


@aio
async def test_stop_while_somebody_watches() -> None:
    process = EngineProcess(python("import time; time.sleep(60)"), "{}")
    watching = asyncio.create_task(exit_reason(process))
    await asyncio.sleep(0.05)
    process.stop(grace_s=0.1)
    assert "SIGTERM" in await watching


def test_loop_that_is_closed_hears_nothing() -> None:
    async def start() -> EngineProcess:
        process = EngineProcess(python(LEAVES_WITH_PIPE), "{}")
        process.watch(lambda _: pytest.fail("nobody should be told"))
        return process

    process = asyncio.run(start())
    process.stop()
    time.sleep(0.05)


def test_command_that_cannot_be_run_is_told() -> None:
    with pytest.raises(EngineDead, match=r"/nowhere/python: .*No such file"):
        EngineProcess(["/nowhere/python"], "{}")


def test_ctrl_c_does_not_reach_the_child() -> None:
    process = EngineProcess(python(LEAVES_WITH_PIPE), "{}")
    try:
        assert os.getpgid(process.pid) != os.getpgid(0)
    finally:
        process.stop()


@aio
async def test_child_leaves_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys, tempfile, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
tempfile.tempdir = {str(tmp_path)!r}
from support.echo_engine import CONFIG_LINE, Behaviour, child_command
from octavo.front.process import EngineProcess
from octavo.transport.zmq_link import ZmqFrontEnd

async def main():
    link = ZmqFrontEnd()
    process = EngineProcess(child_command(link.address, Behaviour()), CONFIG_LINE)
    await link.receive()
    print(process.pid, flush=True)
    time.sleep(60)

asyncio.run(main())
"""
    parent = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    child = psutil.Process(pid)
    assert child.is_running()
    parent.kill()
    parent.wait()
    await eventually(lambda: not psutil.pid_exists(pid) or child.status() == "zombie")
    assert list(tmp_path.iterdir()) == []
