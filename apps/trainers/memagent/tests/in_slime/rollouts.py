"""MemAgent in slime's own rollout code on the CPU: the engine is a server that plays a reader, the
texts have 1 to 39 sections.

Runs in a process whose path holds a checkout of slime in place of the stand-in (`stage`). Of slime
these run as they are: data source and dataset, `generate_rollout` with filter and abort,
evaluation, conversion, the split into steps and ranks, the loss's reducer, log hooks.

Prints a JSON object of what was seen; exits with an exception where anything is off.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import reducer
import torch
from reads import POLICY, Reader, options, stories
from slime.observability.rollout_metrics import log_eval_rollout_data, log_rollout_data
from slime.rollout import sglang_rollout
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.async_utils import run
from slime.utils.eval_config import EvalDatasetConfig
from slime.utils.misc import SingletonMeta
from slime_standin.errands import scores
from stage import LOGGED, arguments, manager_of
from turnwise.slime import accounts, close
from turnwise.testing.servers import Call, FakeSGLang, in_a_thread, status

OBJECTIVES = ("turn-mean", "rollout-token-mean", "global-token-mean")
STEPS, GROUPS, MEMBERS, EACH = 3, 8, 4, 4
CONTEXT = 512


class Faults:
    """Every tenth call has no answer at first; every 250th begins a session that gets none."""

    def __init__(self) -> None:
        self._doomed: set[str] = set()

    def __call__(self, call: Call) -> Any:
        if call.number % 250 == 7:
            self._doomed.add(call.session)
        if call.session in self._doomed:
            return status(500)
        return status(503) if call.number % 10 == 3 else None


def main() -> None:
    told = stories(EACH)
    reader = Reader(told)
    server = FakeSGLang(reader.answer)
    server.slow = reader.slow
    in_a_thread(server)
    data = Path(tempfile.mkdtemp()) / "texts.jsonl"
    rows = [
        {
            "prompt": story.question,
            "label": story.answer,
            "metadata": {
                "id": story.id,
                "context": story.text,
                "facts": [story.facts[place].text for place in story.gold],
            },
        }
        for story in told
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = arguments(
        data,
        hf_checkpoint=str(POLICY),
        turnwise=options("turn-mean"),
        sglang_router_port=server.port,
        rollout_max_context_len=CONTEXT,
        rollout_max_response_len=32,
    )
    args.input_key, args.label_key = "prompt", "label"
    args.rollout_batch_size = args.over_sampling_batch_size = GROUPS
    args.global_batch_size = GROUPS * MEMBERS
    args.use_dynamic_batch_size, args.max_tokens_per_gpu = True, 4 * CONTEXT
    args.calculate_per_token_loss = False
    seen: dict[str, Any] = {}
    for objective in OBJECTIVES:
        seen[objective] = _train(args, options(objective))
    seen["step credit"] = _train(args, options("global-token-mean", step_credit=0.5))
    server.misbehave = Faults()
    for objective in OBJECTIVES:
        seen[f"{objective}, with losses"] = _train(args, options(objective))
    seen["evaluation"] = _evaluate(args)
    reader.pace_s, args.over_sampling_batch_size = 0.005, 2 * GROUPS
    before = server.aborts
    seen["abort"] = _train(args, options("turn-mean"))
    assert server.aborts > before and server.running == 0
    assert not sglang_rollout.GenerateState(args).pendings
    assert accounts.TRAIN.in_flight == 0
    run(close())
    print(json.dumps(seen, indent=1))


def _fresh(args: Any) -> Any:
    SingletonMeta.clear_instances(SingletonMeta)
    LOGGED.clear()
    manager = manager_of(args)
    manager.data_source = RolloutDataSourceWithBuffer(args)
    return manager


def _train(args: Any, turnwise: dict[str, Any]) -> dict[str, Any]:
    """Three steps through manager, filter, conversion and split; the weight of every token in
    slime's loss is compared with the reference."""
    args.turnwise = turnwise
    args.calculate_per_token_loss = turnwise["objective"] == "global-token-mean"
    manager = _fresh(args)
    seen: Counter[str] = Counter()
    turns: list[int] = []
    ranks: list[list[int]] = []
    difference = 0.0
    for step in range(STEPS):
        data, metrics = manager._get_rollout_data(step)
        log_rollout_data(step, args, data, metrics, 1.0)
        members = _check_rows(data)
        turns += [len(rows) for rows in members.values() if not rows[0].remove_sample]
        train_data = manager._convert_samples_to_train_data(data)
        _check_rewards(data, train_data)
        parts = [part.inner for part in manager._split_train_data_by_dp(train_data)]
        ranks.append([len(part["partition"]) for part in parts])
        found = reducer.compare(args, turnwise["objective"], train_data, parts)
        difference = max(difference, found)
        seen["rows"] += len(data)
        seen["rollouts"] += len(members)
        seen["unscored"] += sum(rows[0].remove_sample for rows in members.values())
        seen["dropped"] += sum(
            value for key, value in metrics.items() if "dynamic_filter/drop" in key
        )
    return {
        **seen,
        "turns": [min(turns), max(turns)],
        "rows of each rank": ranks,
        "largest difference of a weight": difference,
        **_totals(),
    }


def _totals() -> dict[str, float]:
    """What was logged, summed over steps; raises where the ledger does not balance."""
    names = ("started", "finished", "stopped", "lost", "cancelled")
    totals = {
        name: sum(numbers.get(f"rollout/turnwise/{name}", 0) for numbers in LOGGED)
        for name in names
    }
    assert totals["started"] == sum(totals.values()) - totals["started"], totals
    assert all(numbers["rollout/turnwise/in_flight"] == 0 for numbers in LOGGED)
    return totals


def _check_rows(data: list[Any]) -> dict[int, list[Any]]:
    """The samples by rollout, each a turn, and what all of them share."""
    members: dict[int, list[Any]] = {}
    for sample in data:
        members.setdefault(sample.rollout_id, []).append(sample)
    assert len(members) == GROUPS * MEMBERS
    for rows in members.values():
        assert len({(row.index, row.group_index, row.reward) for row in rows}) == 1
        for row in rows:
            if row.remove_sample:
                assert row.reward is None and not any(row.loss_mask)
                continue
            assert all(row.loss_mask)
            assert row.rollout_log_probs == scores(row.tokens[-row.response_length :])
            assert row.metadata["turnwise"]["metrics"]["turns"] == len(rows)
    return members


def _check_rewards(data: list[Any], train_data: dict[str, Any]) -> None:
    """Every rollout counts once in its group, however many rows it has; a turn's credit is set
    against those of the group at its place."""
    groups: dict[int, dict[int, float]] = {}
    credits: dict[tuple[int, int], list[float]] = {}
    for sample in data:
        if not sample.remove_sample:
            groups.setdefault(sample.group_index, {})[sample.rollout_id] = sample.reward
        if "turnwise_credit" in sample.metadata:
            place, credit = sample.metadata["turnwise_credit"]
            credits.setdefault((sample.group_index, place), []).append(credit)
    for at, sample in enumerate(data):
        of_group = torch.tensor(list(groups[sample.group_index].values()), dtype=torch.float64)
        expected = 0.0
        if not sample.remove_sample:
            expected = float((sample.reward - of_group.mean()) / (of_group.std() + 1e-6))
        if "turnwise_credit" in sample.metadata:
            place, credit = sample.metadata["turnwise_credit"]
            beside = torch.tensor(credits[sample.group_index, place], dtype=torch.float64)
            if len(beside) > 1:
                expected += float((credit - beside.mean()) / (beside.std() + 1e-6))
        assert abs(train_data["rewards"][at] - expected) < 1e-6
        raw = float(of_group.mean()) if sample.remove_sample else sample.reward
        assert abs(train_data["raw_reward"][at] - raw) < 1e-9


def _evaluate(args: Any) -> dict[str, Any]:
    _fresh(args)
    args.eval_datasets = [
        EvalDatasetConfig(
            name="texts",
            path=args.prompt_data,
            input_key="prompt",
            label_key="label",
            metadata_key="metadata",
            n_samples_per_eval_prompt=2,
            temperature=0.7,
            top_p=0.95,
            top_k=-1,
            max_response_len=32,
        )
    ]
    output = generate_rollout(args, 0, None, evaluation=True)
    log_eval_rollout_data(0, args, output.data, output.metrics)
    (numbers,) = LOGGED
    samples = output.data["texts"]["samples"]
    rewards = {sample.index: sample.reward for sample in samples}
    scored = [reward for reward in rewards.values() if reward is not None]
    assert numbers["eval/texts/coverage"] == len(scored) / len(rewards)
    return {
        "rows": len(samples),
        "rollouts": len(rewards),
        **{f"eval/texts{key}": numbers[f"eval/texts{key}"] for key in ("", "/stderr", "/coverage")},
        "lost": numbers["eval/turnwise/lost"],
    }


if __name__ == "__main__":
    main()
