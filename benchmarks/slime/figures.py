"""What a run folder says, as the figures of `docs/slime_on_gpu.md`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any

Rows = list[dict[str, Any]]
_SLEPT = re.compile(r"still has (\d+) requests after abort attempt")
LOGPROBS = "train/train_rollout_logprob_abs_diff"


def figures(folder: Path, rows: Rows) -> dict[str, Any]:
    """All that is measured of a run."""
    trains = [row for row in rows if row["kind"] == "train"]
    numbers = [row["numbers"] for row in rows if row["kind"] == "slime"]
    return {
        "steps": [row["step"] for row in trains],
        "ledger": ledger(trains),
        "evaluations": [
            [row["step"], row["reward_mean"], row["reward_stderr"], row["coverage"]]
            for row in rows
            if row["kind"] == "eval"
        ],
        "rewards": [row["reward_mean"] for row in trains],
        "logprob_difference": spread(found(numbers, LOGPROBS)),
        "grad_norm": spread(found(numbers, "train/grad_norm")),
        "rollout_s": spread(row["rollout_s"] for row in trains),
        "train_s": spread(found(numbers, "perf/train_time")),
        "update_s": spread(found(numbers, "perf/update_weights_time")),
        "waiting": spread(found(numbers, "perf/wait_time_ratio")),
        "trainer_tokens_per_s": spread(found(numbers, "perf/actor_train_tok_per_s")),
        "step_s": spread(found(numbers, "perf/step_time")),
        "tokens_per_s": spread(row["tokens_per_s"] for row in trains),
        "cache_hits": spread(found(numbers, "rollout/prefix_cache_hit_rate")),
        "importance": spread(found(numbers, "train/ois")),
        "loop_lag_ms": spread(row["loop_lag_max_ms"] for row in trains),
        "aborts_that_slept": aborts(folder),
        "versions_an_episode": versions(folder),
    }


def ledger(trains: Rows) -> dict[str, Any]:
    """Sums of the steps, and how many of them do not balance."""
    sums: Counter[str] = Counter()
    wrong = 0
    for row in trains:
        one = row["ledger"]
        parts = {
            "finished": one["finished"],
            "stopped": sum(one["stopped"].values()),
            "lost": sum(one["lost"].values()),
            "cancelled": one["cancelled"],
        }
        wrong += one["started"] != sum(parts.values())
        sums.update({"started": one["started"], **parts})
    return {**sums, "do_not_balance": wrong}


def found(numbers: Iterable[dict[str, float | None]], name: str) -> list[float]:
    """A number of slime's, in order."""
    return [value for one in numbers if (value := one.get(name)) is not None]


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Least, median, mean and most of what is there."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    named = {"least": min(there), "median": median(there), "mean": mean(there), "most": max(there)}
    return {name: round(value, 6) for name, value in named.items()} | {"number": len(there)}


def aborts(folder: Path) -> dict[str, int]:
    """How often slime's abort found requests that were ending and slept 3 s."""
    text = "".join(path.read_text(errors="replace") for path in folder.glob("logs/turnwise-*.log"))
    waited = _SLEPT.findall(text)
    return {"slept": len(waited), "requests": sum(map(int, waited))}


def versions(folder: Path) -> dict[str, int]:
    """Traced episodes by the number of versions of the weights that sampled their turns."""
    counts: Counter[str] = Counter()
    try:
        lines = (folder / "episodes.jsonl").read_bytes().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in lines:
        row = json.loads(line)
        seen = (row.get("info") or {}).get("weight_versions") or ()
        if row.get("kind") == "train":
            counts[str(len(set(seen)))] += 1
    return dict(counts)
