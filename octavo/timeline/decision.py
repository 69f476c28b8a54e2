"""What a step decided, and how things stood before the first one, as JSON for a replay.

Lists and numbers that would be empty or 0 are left out.
"""

from __future__ import annotations

from typing import Any

from octavo.timeline.events import Beginning, BlockStates, RowEvent, StepEvent

FORMAT = 1
"""Changes when a reader of older traces would misunderstand them."""


def beginning_of(first: Beginning) -> dict[str, Any]:
    """How things stood when the recording began; all other blocks were free."""
    return {
        "format": FORMAT,
        "num_blocks": first.num_blocks,
        "block_size": first.block_size,
        "max_num_seqs": first.max_num_seqs,
        "max_num_batched_tokens": first.max_num_batched_tokens,
        "target_itl_ms": first.target_itl_ms,
        "policy": first.policy,
        "running": [
            {"id": name, "prompt": prompt, "blocks": list(blocks)}
            for name, prompt, blocks in first.running
        ],
        "states": _states(first.blocks),
    }


def decision_of(step: StepEvent) -> dict[str, Any]:
    """The rows in order, who came and who left, whose blocks changed, and why nobody more came."""
    return _filled(
        {
            "rows": [_row(row) for row in step.rows],
            "admitted": [
                {
                    "id": event.request_id,
                    "cached": event.num_cached_tokens,
                    **_filled({"blocks": list(event.block_ids), "resumed": event.is_resumed}),
                }
                for event in step.admitted
            ],
            "preempted": [
                {"id": event.request_id, "for": event.for_id, "blocks": event.num_blocks}
                for event in step.preempted
            ],
            "copied": [
                {"id": copy[0], "index": copy[1], "source": copy[2], "target": copy[3]}
                for copy in step.copies
            ],
            "left": list(step.left),
            "ended": [
                {"id": event.request_id, "reason": event.reason, "blocks": event.num_blocks}
                for event in step.ended
            ],
            "trimmed": [{"id": name, "kept": num_kept} for name, num_kept in step.trimmed],
            "line": list(step.line),
            "in_line": step.num_in_line,
            "stopped": step.stopped,
            "states": _states(step.blocks),
        }
    )


def _row(row: RowEvent) -> dict[str, Any]:
    return {
        "id": row.request_id,
        "start": row.start,
        "tokens": row.num_new_tokens,
        "known": row.num_known_tokens,
        "prompt": row.num_prompt_tokens,
        **_filled(
            {
                "sampled": row.num_sampled,
                "drafts": row.num_draft_tokens,
                "accepted": row.num_accepted,
                "new_blocks": list(row.new_block_ids),
            }
        ),
    }


def _states(blocks: BlockStates) -> dict[str, list[int]]:
    return _filled({name: list(ids) for name, ids in blocks._asdict().items()})


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
