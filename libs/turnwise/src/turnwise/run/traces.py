"""Episodes as rows of `episodes.jsonl`: everything that is needed to look at one token by token.

A step keeps its best, worst and longest episode and one of each ending that is not the policy's
doing; an evaluation keeps so many for the report and the scores of all in its metrics row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tokendelta

from turnwise.episode import Episode

SCHEMA_VERSION = 1
EVAL_TRACES = 12
"""Episodes that one evaluation keeps whole."""


def trace_row(
    episode: Episode, tokenizer: Any, *, step: int, kind: str, why: str
) -> dict[str, Any]:
    """One episode as a JSON-able row.

    Args:
        tokenizer: Turns each token into its text.
        step: Training steps that the weights had seen.
        kind: `train` or `eval`.
        why: `best`, `worst`, `longest`, `sample` or the label of an ending.
    """
    return {
        "schema": SCHEMA_VERSION,
        "step": step,
        "kind": kind,
        "why": why,
        "rollout_id": episode.rollout_id,
        "group_id": episode.group_id,
        "task_id": episode.task_id,
        "ending": episode.ending.label,
        "error": episode.ending.error,
        "score": episode.score,
        "wall_s": round(episode.wall_s, 4),
        "metrics": dict(episode.metrics),
        "info": dict(episode.info),
        "transcript": [dict(message) for message in episode.transcript],
        "segments": [_segment(segment, tokenizer) for segment in episode.segments],
    }


def choose_traces(episodes: Sequence[Episode]) -> list[tuple[str, Episode]]:
    """The episodes of a training step that are kept whole, each with the reason."""
    scored = [episode for episode in episodes if episode.score is not None and episode.segments]
    chosen: list[tuple[str, Episode]] = []
    if scored:
        chosen = [
            ("best", max(scored, key=lambda episode: episode.score or 0.0)),
            ("worst", min(scored, key=lambda episode: episode.score or 0.0)),
            ("longest", max(scored, key=_tokens)),
        ]
    labels = set()
    for episode in episodes:
        if not episode.ending.by_policy and episode.ending.label not in labels:
            labels.add(episode.ending.label)
            chosen.append((episode.ending.label, episode))
    return _once(chosen)


def choose_eval_traces(episodes: Sequence[Episode]) -> list[tuple[str, Episode]]:
    """The episodes of an evaluation that are kept whole: best, worst, longest, then others."""
    chosen = choose_traces(episodes)
    stride = max(1, len(episodes) // EVAL_TRACES)
    return _once([*chosen, *(("sample", episode) for episode in episodes[::stride])])[:EVAL_TRACES]


def _segment(sample: tokendelta.Sample, tokenizer: Any) -> dict[str, Any]:
    ids = sample.ids.tolist()
    logprobs = [
        None if np.isnan(value) else round(float(value), 4) for value in sample.logprobs.tolist()
    ]
    return {
        "ids": ids,
        "texts": [
            tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for token in ids
        ],
        "prompt_length": sample.prompt_length,
        "loss_mask": sample.loss_mask.tolist(),
        "logprobs": logprobs,
        "spans": [[span.kind, span.turn, span.start, span.stop] for span in sample.spans],
        "weight": sample.weight,
    }


def _tokens(episode: Episode) -> int:
    return sum(len(segment.ids) for segment in episode.segments)


def _once(chosen: Iterable[tuple[str, Episode]]) -> list[tuple[str, Episode]]:
    kept: dict[str, tuple[str, Episode]] = {}
    for why, episode in chosen:
        kept.setdefault(episode.rollout_id, (why, episode))
    return list(kept.values())
