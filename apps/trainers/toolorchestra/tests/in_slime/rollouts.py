"""ToolOrchestra in slime's own rollout code on the CPU: the engine is a server that plays a policy,
the experts are an endpoint.

Runs in a process whose path holds a checkout of slime in place of the stand-in (`stage`). Of slime
these run as they are: data source and dataset, `generate_rollout` with filter and abort,
evaluation, conversion, the split into steps, log hooks.

Prints a JSON object of what was seen; exits with an exception where anything is off.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from cast import POLICY, STAND_IN, Policy, options, says
from slime.observability.rollout_metrics import log_eval_rollout_data, log_rollout_data
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.async_utils import run
from slime.utils.eval_config import EvalDatasetConfig
from slime.utils.misc import SingletonMeta
from slime_standin.errands import scores
from stage import LOGGED, arguments, manager_of
from turnwise.slime import close
from turnwise.testing.servers import Call, FakeChat, FakeSGLang, in_a_thread, status

from apps.trainers.toolorchestra.reward import group_worths, read_outcome
from apps.trainers.toolorchestra.tables import read_experts

STEPS = 3
QUESTIONS = 56


class Faults:
    """Every tenth call has no answer at first; every fortieth begins a question that gets none."""

    def __init__(self) -> None:
        self._doomed: set[str] = set()

    def __call__(self, call: Call) -> Any:
        asked = str(call.body.get("messages"))
        if call.number % 40 == 7:
            self._doomed.add(asked)
        if asked in self._doomed:
            return status(400)
        return status(503) if call.number % 10 == 3 else None


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    policy, experts = Policy(), FakeChat(says)
    server = FakeSGLang(policy.answer)
    server.slow = policy.slow
    in_a_thread(server)
    in_a_thread(experts)
    args = arguments(
        _write_data(folder),
        hf_checkpoint=str(POLICY),
        turnwise=options(f"{experts.url}/v1"),
        sglang_router_port=server.port,
        rollout_max_context_len=4096,
        rollout_max_response_len=64,
    )
    args.input_key, args.label_key = "prompt", "label"
    seen = {"training": _train(args)}
    experts.misbehave = Faults()
    seen["with losses"] = _train(args)
    seen["evaluation"] = _evaluate(args)
    experts.misbehave = lambda call: None
    policy.pace_s, args.over_sampling_batch_size = 0.02, 6
    seen["abort"] = _train(args)
    assert server.aborts and not server.running
    policy.pace_s, args.over_sampling_batch_size, policy.serves = 0.0, 2, True
    seen["customers"] = _customers(args, folder, f"{experts.url}/v1")
    run(close())
    print(json.dumps(seen, indent=1))


def _write_data(folder: Path) -> Path:
    data = folder / "questions.jsonl"
    rows = [
        {"prompt": f"What is {n} * 7?", "label": str(n * 7), "metadata": {"id": f"maths/{n}"}}
        for n in range(2, 2 + QUESTIONS)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def _customers(args: Any, folder: Path, url: str) -> dict[str, Any]:
    """Training on customers of τ²-bench."""
    run(close())
    args.turnwise = options(url, prompt="full", max_turns=6, table=[STAND_IN])
    args.rollout_max_context_len, args.rollout_max_response_len = 16_384, 256
    args.prompt_data = str(folder / "customers.jsonl")
    ids = ("create_task_1", "create_task_1_with_env_assertions")
    rows = [
        {
            "prompt": f"mock {task}",
            "label": "",
            "metadata": {"category": "func_call", "domain": "mock", "task_id": task},
        }
        for task in ids * 8
    ]
    Path(args.prompt_data).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return _train(args)


def _fresh(args: Any) -> Any:
    SingletonMeta.clear_instances(SingletonMeta)
    LOGGED.clear()
    manager = manager_of(args)
    manager.data_source = RolloutDataSourceWithBuffer(args)
    return manager


def _train(args: Any) -> dict[str, Any]:
    """Three steps through manager, filter, conversion and split."""
    manager = _fresh(args)
    seen: Counter[str] = Counter()
    for step in range(STEPS):
        data, metrics = manager._get_rollout_data(step)
        log_rollout_data(step, args, data, metrics, 1.0)
        members = _check_rows(data)
        _check_scores(members)
        train_data = manager._convert_samples_to_train_data(data)
        _check_rewards(members, data, train_data)
        manager._split_train_data_by_dp(train_data)
        seen["rows"] += len(data)
        seen["rollouts"] += len(members)
        seen["unscored"] += sum(rows[0].remove_sample for rows in members.values())
        seen["dropped groups"] += sum(
            value for key, value in metrics.items() if "dynamic_filter/drop" in key
        )
    return {**seen, **_totals()}


def _totals() -> dict[str, Any]:
    """What was logged, summed over steps; raises where the ledger does not balance."""
    names = ("started", "finished", "stopped", "lost", "cancelled")
    totals = {
        name: sum(numbers.get(f"rollout/turnwise/{name}", 0) for numbers in LOGGED)
        for name in names
    }
    assert totals["started"] == sum(totals.values()) - totals["started"], totals
    lost: Counter[str] = Counter()
    for numbers in LOGGED:
        assert numbers["rollout/turnwise/in_flight"] == 0
        for key, value in numbers.items():
            if key.startswith("rollout/turnwise/lost/"):
                lost[key.rsplit("/", 1)[1]] += int(value)
    return {**totals, "lost by": {key: count for key, count in lost.items() if count}}


def _check_rows(data: list[Any]) -> dict[int, list[Any]]:
    """The samples by rollout; every sampled token has its own log-prob."""
    members: dict[int, list[Any]] = {}
    for sample in data:
        members.setdefault(sample.rollout_id, []).append(sample)
    assert len(members) == 8
    for rows in members.values():
        assert len({(row.index, row.group_index, row.reward) for row in rows}) == 1
        for row in rows:
            assert len(row.loss_mask) == len(row.rollout_log_probs) == row.response_length
            if row.remove_sample:
                assert row.reward is None and row.metadata["turnwise"]["score"] is None
                continue
            response = row.tokens[-row.response_length :]
            for mask, turn in groupby(range(row.response_length), key=row.loss_mask.__getitem__):
                places = list(turn)
                found = [row.rollout_log_probs[place] for place in places]
                told = scores([response[place] for place in places])
                assert found == (told if mask else [0.0] * len(places))
    return members


def _check_scores(members: dict[int, list[Any]]) -> None:
    """The rewards are the preference's, taken over the scored members of each group."""
    groups: dict[int, list[Any]] = {}
    for rows in members.values():
        if not rows[0].remove_sample:
            groups.setdefault(rows[0].group_index, []).append(rows[0])
    for group in groups.values():
        facts = [row.metadata["turnwise"]["info"]["orchestra"] for row in group]
        expected = group_worths(
            [read_outcome(one) for one in facts],
            facts[0]["preferences"],
            read_experts(facts[0]["experts"], "experts"),
        )
        for row, worth in zip(group, expected, strict=True):
            assert abs(row.reward - worth) < 1e-9
            assert "own_score" in row.metadata["turnwise"]


def _check_rewards(
    members: dict[int, list[Any]], data: list[Any], train_data: dict[str, Any]
) -> None:
    """Every rollout counts once in its group's mean and deviation."""
    groups: dict[int, list[float]] = {}
    for rows in members.values():
        if not rows[0].remove_sample:
            groups.setdefault(rows[0].group_index, []).append(rows[0].reward)
    for place, sample in enumerate(data):
        of_group = torch.tensor(groups[sample.group_index], dtype=torch.float64)
        expected = 0.0
        if not sample.remove_sample:
            expected = float((sample.reward - of_group.mean()) / (of_group.std() + 1e-6))
        assert abs(train_data["rewards"][place] - expected) < 1e-6


def _evaluate(args: Any) -> dict[str, Any]:
    _fresh(args)
    args.eval_datasets = [
        EvalDatasetConfig(
            name="questions",
            path=args.prompt_data,
            input_key="prompt",
            label_key="label",
            metadata_key="metadata",
            n_samples_per_eval_prompt=2,
            temperature=0.7,
            top_p=0.95,
            top_k=-1,
            max_response_len=64,
        )
    ]
    output = generate_rollout(args, 0, None, evaluation=True)
    log_eval_rollout_data(0, args, output.data, output.metrics)
    (numbers,) = LOGGED
    samples = output.data["questions"]["samples"]
    rollouts = {sample.index: sample.reward for sample in samples}
    assert len(rollouts) == 2 * QUESTIONS
    scored = [reward for reward in rollouts.values() if reward is not None]
    assert numbers["eval/questions/coverage"] == len(scored) / len(rollouts)
    keys = ("", "/stderr", "/coverage")
    return {
        **{f"eval/questions{key}": numbers[f"eval/questions{key}"] for key in keys},
        "lost": numbers["eval/turnwise/lost"],
    }


if __name__ == "__main__":
    main()
