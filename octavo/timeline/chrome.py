"""Timelines as Chrome traces, which Perfetto and chrome://tracing open.

One track has the engine's steps and their parts; each completion has a track with what it waited
for and what was computed of it; counters tell of KV blocks and of how many run and wait. Times are
whole microseconds since the first event, so that what nests in seconds still nests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from octavo.core.plan import ScheduledRequest
from octavo.core.types import RequestId
from octavo.timeline.events import ArrivalEvent, StepEvent

Event: TypeAlias = dict[str, Any]
_ENGINE, _REQUESTS = 1, 2


def to_chrome(steps: Sequence[StepEvent]) -> dict[str, Any]:
    """The trace as an object to be written as JSON; its slices are in order of time."""
    return _Trace(steps).result()


class _Trace:
    def __init__(self, steps: Sequence[StepEvent]) -> None:
        starts = [step.began_s for step in steps]
        starts += [arrival.arrival_s for step in steps for arrival in step.arrivals]
        self._zero_s = min(starts, default=0.0)
        self._names: list[Event] = []
        self._events: list[Event] = []
        self._tracks: dict[RequestId, int] = {}
        self._prompts: dict[RequestId, int] = {}
        self._waits: dict[RequestId, int] = {}
        """Since when preempted completions wait."""
        self._name("process_name", _ENGINE, 0, "engine")
        self._name("thread_name", _ENGINE, 1, "steps")
        self._name("process_name", _REQUESTS, 0, "requests")
        for step in steps:
            self._add(step)

    def result(self) -> dict[str, Any]:
        ordered = sorted(self._events, key=lambda event: (event["ts"], -event.get("dur", 0)))
        return {"traceEvents": [*self._names, *ordered], "displayTimeUnit": "ms"}

    def _add(self, step: StepEvent) -> None:
        began, ended = self._time(step.began_s), self._time(step.ended_s)
        self._engine_step(step, began, ended)
        for arrival in step.arrivals:
            self._arrive(arrival, began)
        for name in step.preempted:
            if name in self._tracks:
                self._waits[name] = began
                self._instant("preempted", name, began)
        for row, num_sampled in zip(step.plan.rows, step.num_sampled, strict=True):
            self._row(row, num_sampled, began, ended)
        for name, reason in step.ended:
            self._waits.pop(name, None)
            if name in self._tracks:
                self._instant(f"end: {reason}", name, ended)

    def _engine_step(self, step: StepEvent, began: int, ended: int) -> None:
        plan, stats = step.plan, step.stats
        args = {
            "rows": len(plan.rows),
            "tokens": plan.num_tokens,
            "prompt_tokens": stats.num_prompt_tokens,
            "generated_tokens": stats.num_generated_tokens,
            "preempted": list(step.preempted),
            "prefix_hits": stats.num_prefix_hits,
            "drafted": sum(stats.drafted),
            "accepted": sum(stats.accepted),
            "new_blocks": sum(len(row.new_block_ids) for row in plan.rows),
            "copies": len(plan.copies),
        }
        self._slice(f"step {plan.step_id}", _ENGINE, 1, (began, ended), args)
        self._slice("plan", _ENGINE, 1, (began, self._time(step.planned_s)), {})
        at_s, times = step.planned_s, step.times
        parts = {
            "prepare": times.prepare_s,
            "draft": times.draft_s,
            "run": times.forward_s,
            "sample": times.sample_s,
        }
        for name, seconds in parts.items():
            until_s = min(at_s + seconds, step.collected_s)
            self._slice(name, _ENGINE, 1, (self._time(at_s), self._time(until_s)), {})
            at_s = until_s
        self._slice("commit", _ENGINE, 1, (self._time(step.collected_s), ended), {})
        cache = stats.cache
        blocks = {
            "used": cache.num_used_blocks,
            "cached": cache.num_cached_blocks,
            "free": cache.num_free_blocks,
        }
        self._counter("KV blocks", ended, blocks)
        self._counter(
            "completions", ended, {"running": stats.num_running, "waiting": stats.num_waiting}
        )

    def _arrive(self, arrival: ArrivalEvent, began: int) -> None:
        name = arrival.request_id
        track = self._tracks[name] = len(self._names)  # an id that comes again gets a new track
        self._prompts[name] = arrival.num_prompt_tokens
        self._name("thread_name", _REQUESTS, track, name)
        args = {
            "prompt_tokens": arrival.num_prompt_tokens,
            "cached_tokens": arrival.num_cached_tokens,
        }
        self._slice("queued", _REQUESTS, track, (self._time(arrival.arrival_s), began), args)

    def _row(self, row: ScheduledRequest, num_sampled: int, began: int, ended: int) -> None:
        name = row.request_id
        track = self._tracks.get(name)
        if track is None:  # it began before the recording did
            return
        since = self._waits.pop(name, None)
        if since is not None:
            self._slice("preempted", _REQUESTS, track, (since, began), {})
        end = row.start + row.num_new_tokens
        is_prompt = row.start < self._prompts[name]
        kind = f"prefill {row.start}-{end}" if is_prompt else "decode"
        args = {
            "start": row.start,
            "tokens": row.num_new_tokens,
            "sampled": num_sampled,
            "drafted": row.num_draft_tokens,
            "new_blocks": list(row.new_block_ids),
        }
        self._slice(kind, _REQUESTS, track, (began, ended), args)

    def _time(self, seconds: float) -> int:
        return round((seconds - self._zero_s) * 1e6)

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        self._names.append(
            {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
        )

    def _slice(
        self, name: str, pid: int, tid: int, span: tuple[int, int], args: dict[str, Any]
    ) -> None:
        began, ended = span
        if ended > began:
            self._events.append(
                {
                    "ph": "X",
                    "name": name,
                    "pid": pid,
                    "tid": tid,
                    "ts": began,
                    "dur": ended - began,
                    "args": args,
                }
            )

    def _instant(self, name: str, request_id: RequestId, at: int) -> None:
        track = self._tracks[request_id]
        self._events.append(
            {"ph": "i", "s": "t", "name": name, "pid": _REQUESTS, "tid": track, "ts": at}
        )

    def _counter(self, name: str, at: int, args: dict[str, int]) -> None:
        self._events.append({"ph": "C", "name": name, "pid": _ENGINE, "ts": at, "args": args})
