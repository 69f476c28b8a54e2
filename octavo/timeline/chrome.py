"""Timelines as Chrome traces, which Perfetto and chrome://tracing open.

One track has the engine's steps and their parts; each completion has a track with what it waited
for and what was computed of it; counters tell of KV blocks and of how many run and wait. Times are
whole microseconds since the first event, so that what nests in seconds still nests.

What a step decided is in the arguments of its slice (`octavo.timeline.decision`), and how things
stood before the first one in the trace's ``otherData``: a replay needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from octavo.core.types import RequestId
from octavo.timeline.decision import beginning_of, decision_of
from octavo.timeline.events import AdmissionEvent, RowEvent, StepEvent

Event: TypeAlias = dict[str, Any]
_ENGINE, _REQUESTS = 1, 2


def to_chrome(steps: Iterable[StepEvent]) -> dict[str, Any]:
    """The trace as an object to be written as JSON; its slices are in order of time."""
    trace = ChromeTrace()
    events = [event for step in steps for event in trace.add(step)]
    names = [event for event in events if event["ph"] == "M"]
    timed = [event for event in events if event["ph"] != "M"]
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    return {**trace.header(), "traceEvents": [*names, *timed]}


class ChromeTrace:
    """Makes a trace of steps as they come."""

    def __init__(self) -> None:
        self._zero_s = 0.0
        self._is_begun = False
        self._beginning: dict[str, Any] = {}
        self._events: list[Event] = []
        self._num_tracks = 0
        self._tracks: dict[RequestId, int] = {}
        self._waits: dict[RequestId, int] = {}
        """Since when preempted completions wait."""

    def header(self) -> dict[str, Any]:
        """What belongs into the trace beside its events; complete once a step was added."""
        return {"displayTimeUnit": "ms", "otherData": {"octavo": self._beginning}}

    def add(self, step: StepEvent) -> list[Event]:
        """The events of a step."""
        self._events = []
        if not self._is_begun:
            self._begin(step)
        began, ended = self._time(step.began_s), self._time(step.ended_s)
        self._engine_step(step, began, ended)
        for admission in step.admitted:
            if not admission.is_resumed:
                self._arrive(admission, began)
        for name, _, _ in step.preempted:
            if name in self._tracks:
                self._waits[name] = began
                self._instant("preempted", name, began)
        for row in step.rows:
            self._row(row, began, ended)
        for name, reason, _ in step.ended:
            self._waits.pop(name, None)
            if name in self._tracks:
                self._instant(f"end: {reason}", name, ended)
        return self._events

    def _begin(self, step: StepEvent) -> None:
        first = step.beginning
        self._is_begun = True
        self._zero_s = step.began_s if first is None else first.oldest_s
        self._name("process_name", _ENGINE, 0, "engine")
        self._name("thread_name", _ENGINE, 1, "steps")
        self._name("process_name", _REQUESTS, 0, "requests")
        if first is not None:
            self._beginning = beginning_of(first)
            for holding in first.running:
                self._track(holding.request_id)

    def _engine_step(self, step: StepEvent, began: int, ended: int) -> None:
        stats = step.stats
        args = {
            "rows": len(step.rows),
            "tokens": step.num_tokens,
            "prompt_tokens": stats.num_prompt_tokens,
            "generated_tokens": stats.num_generated_tokens,
            "preempted": [event.request_id for event in step.preempted],
            "prefix_hits": stats.num_prefix_hits,
            "drafted": sum(stats.drafted),
            "accepted": sum(stats.accepted),
            "new_blocks": sum(len(row.new_block_ids) for row in step.rows),
            "copies": len(step.copies),
            "decision": decision_of(step),
        }
        self._slice(f"step {step.step_id}", _ENGINE, 1, (began, ended), args)
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

    def _arrive(self, admission: AdmissionEvent, began: int) -> None:
        track = self._track(admission.request_id)
        args = {
            "prompt_tokens": admission.num_prompt_tokens,
            "cached_tokens": admission.num_cached_tokens,
        }
        self._slice("queued", _REQUESTS, track, (self._time(admission.arrival_s), began), args)

    def _row(self, row: RowEvent, began: int, ended: int) -> None:
        name = row.request_id
        track = self._tracks.get(name)
        if track is None:  # it was preempted before the recording began
            track = self._track(name)
        since = self._waits.pop(name, None)
        if since is not None:
            self._slice("preempted", _REQUESTS, track, (since, began), {})
        end = row.start + row.num_new_tokens
        is_prompt = row.start < row.num_prompt_tokens
        kind = f"prefill {row.start}-{end}" if is_prompt else "decode"
        args = {
            "start": row.start,
            "tokens": row.num_new_tokens,
            "sampled": row.num_sampled,
            "drafted": row.num_draft_tokens,
            "new_blocks": list(row.new_block_ids),
        }
        self._slice(kind, _REQUESTS, track, (began, ended), args)

    def _track(self, name: RequestId) -> int:
        """A new track; an id that comes again gets another one."""
        self._num_tracks += 1
        self._tracks[name] = self._num_tracks
        self._name("thread_name", _REQUESTS, self._num_tracks, name)
        return self._num_tracks

    def _time(self, seconds: float) -> int:
        return max(0, round((seconds - self._zero_s) * 1e6))

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        self._events.append(
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
