from __future__ import annotations

import asyncio
import threading

from octavo.server.openai.prompts import off_loop


def test_only_large_requests_leave_the_event_loops_thread() -> None:
    async def main() -> None:
        here = threading.current_thread()
        assert await off_loop(100, threading.current_thread) is here
        assert await off_loop(1 << 20, threading.current_thread) is not here

    asyncio.run(main())
