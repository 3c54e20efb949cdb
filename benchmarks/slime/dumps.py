"""What slime's own dumps of a run say of each token: which weights sampled it, what training found.

`--save-debug-rollout-data` has the rows as our hooks gave them, `--save-debug-train-data` the same
rows with the trainer's log-probs. A trained run of tokens is a turn, and slime keeps the version of
the weights that sampled each turn; rollout i (from 0) is trained with the weights of version i + 1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

Row = Mapping[str, Any]
CLIP = 2.0
"""slime's own limit of a token's weight under `--use-tis`."""


def read_dumps(folder: Path) -> dict[str, Any]:
    """All rollouts of a run that both dumps have."""
    import torch

    def load(path: Path) -> list[Row]:
        rows: list[Row] = torch.load(path, weights_only=False, map_location="cpu")["samples"]
        return rows

    pairs = []
    for path in sorted(folder.glob("rollout_[0-9]*.pt"), key=lambda path: int(path.stem[8:])):
        trained = folder / path.name.replace("rollout", "train")
        if trained.is_file():
            pairs.append((int(path.stem[8:]), load(path), load(trained)))
    return facts(pairs)


def facts(rollouts: Iterable[tuple[int, Sequence[Row], Sequence[Row]]]) -> dict[str, Any]:
    """The figures of a run.

    Args:
        rollouts: Number, rows as made, rows as trained on.
    """
    by_lag: dict[int, list[np.ndarray]] = defaultdict(list)
    versions: Counter[int] = Counter()
    segments: Counter[int] = Counter()
    prompts, cached = Counter[int](), Counter[int]()
    lines, unequal, untold = [], 0, 0
    for number, made, trained in rollouts:
        by_index = defaultdict(list)
        for row in made:
            by_index[row["index"]].append(list(map(int, row["tokens"])))
        here: list[np.ndarray] = []
        for row in trained:
            unequal += list(map(int, row["tokens"])) not in by_index[row["sample_index"]]
        for row, twin in zip(made, match(made, trained), strict=True):
            if twin is None or row.get("remove_sample"):
                continue
            turns, difference = list(runs(twin["loss_masks"])), minus(twin)
            said = [int(version) for version in row["weight_versions"]]
            if len(said) != len(turns):
                untold += 1
                continue
            for version, (start, stop) in zip(said, turns, strict=True):
                by_lag[number + 1 - version].append(difference[start:stop])
                here.append(difference[start:stop])
        lines.append({"rollout": number, **spread(here)})
        episodes = defaultdict(list)
        for row in made:
            episodes[row["rollout_id"]].append(row)
        for rows in episodes.values():
            segments[len(rows)] += 1
            versions[len({v for row in rows for v in row["weight_versions"]})] += 1
            info = ((rows[0]["metadata"] or {}).get("turnwise") or {}).get("info") or {}
            for turn, (prompt, hit) in enumerate(info.get("cached") or (), 1):
                prompts[turn] += prompt
                cached[turn] += hit
    return {
        "rollouts": len(lines),
        "rows_unequal": unequal,
        "rows_without_a_version_a_turn": untold,
        "versions_an_episode": dict(sorted(versions.items())),
        "rows_an_episode": dict(sorted(segments.items())),
        "by_lag": {lag: spread(parts) for lag, parts in sorted(by_lag.items())},
        "all": spread([part for parts in by_lag.values() for part in parts]),
        "cache_hits_by_turn": {turn: round(cached[turn] / prompts[turn], 4) for turn in prompts},
        "by_rollout": lines,
    }


def match(made: Sequence[Row], trained: Sequence[Row]) -> list[Row | None]:
    """Of each row as made the same row as trained on: by its index, then by its tokens."""
    there = defaultdict(list)
    for row in trained:
        there[row["sample_index"], tuple(map(int, row["tokens"]))].append(row)
    found = []
    for row in made:
        same = there[row["index"], tuple(map(int, row["tokens"]))]
        found.append(same.pop(0) if same else None)
    return found


def runs(mask: Any) -> Iterable[tuple[int, int]]:
    """[start, stop) of each run of trained tokens."""
    place = 0
    for kept, group in groupby(np.asarray(mask).astype(bool).tolist()):
        size = sum(1 for _ in group)
        if kept:
            yield place, place + size
        place += size


def minus(row: Row) -> np.ndarray:
    """The trainer's log-probs less the engine's, of each token of the response."""
    ours, theirs = (np.asarray(row[name], float) for name in ("log_probs", "rollout_log_probs"))
    difference: np.ndarray = ours - theirs
    return difference


def spread(parts: Sequence[np.ndarray]) -> dict[str, Any]:
    """What a difference of log-probs is like over tokens; `ratio` is its exponential."""
    if not parts:
        return {"tokens": 0}
    difference = np.concatenate(parts)
    ratio, size = np.exp(difference), np.abs(difference)
    return {
        "tokens": int(difference.size),
        "mean_difference": round(float(size.mean()), 6),
        "p99_difference": round(float(np.quantile(size, 0.99)), 5),
        "most_difference": round(float(size.max()), 4),
        "mean_ratio": round(float(ratio.mean()), 5),
        "most_ratio": round(float(ratio.max()), 3),
        "clipped": round(float((ratio > CLIP).mean()), 5),
    }
