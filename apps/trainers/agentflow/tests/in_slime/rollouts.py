"""AgentFlow in slime's own rollout code on the CPU: the engine is a server that plays a planner,
the frozen models are rules, programs run in the sandbox.

Runs in a process whose path holds a checkout of slime in place of the stand-in (`stage`). Of slime
these run as they are: data source and dataset, `generate_rollout` with filter and abort, the fully
asynchronous rollout, evaluation, conversion, the split into steps, the loss's reducer, log hooks.

Prints a JSON object of what was seen; exits with an exception where anything is off.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import reducer
import torch
from planner import POLICY, Planner, options
from sandbox import Sandbox, SandboxUnavailable
from slime.observability.rollout_metrics import log_eval_rollout_data, log_rollout_data
from slime.rollout import fully_async_rollout, sglang_rollout
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.rm_hub import batched_async_rm
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.async_utils import run
from slime.utils.eval_config import EvalDatasetConfig
from slime.utils.misc import SingletonMeta
from slime_standin.errands import scores
from stage import LOGGED, arguments, manager_of
from turnwise.command import StopRun
from turnwise.config import ConfigError
from turnwise.slime import accounts, close
from turnwise.testing.servers import Call, FakeSGLang, in_a_thread, status

from apps.trainers.agentflow.laptop.problems import make_problems

OBJECTIVES = ("turn-mean", "rollout-token-mean", "global-token-mean")
STEPS = 3
CONTEXT = 3072


class Faults:
    """Every tenth call has no answer at first; every fortieth begins a session that gets none."""

    def __init__(self) -> None:
        self._doomed: set[str] = set()

    def __call__(self, call: Call) -> Any:
        if call.number % 40 == 7:
            self._doomed.add(call.session)
        if call.session in self._doomed:
            return status(500)
        return status(503) if call.number % 10 == 3 else None


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    planner = Planner()
    server = FakeSGLang(planner.answer)
    server.slow = planner.slow
    in_a_thread(server)
    args = arguments(
        _write_data(folder),
        hf_checkpoint=str(POLICY),
        turnwise=options("turn-mean"),
        sglang_router_port=server.port,
        rollout_max_context_len=CONTEXT,
        rollout_max_response_len=256,
    )
    args.input_key, args.label_key = "prompt", "label"
    args.use_dynamic_batch_size, args.max_tokens_per_gpu = True, CONTEXT
    args.calculate_per_token_loss = False
    seen: dict[str, Any] = {}
    for objective in OBJECTIVES:
        seen[objective] = _train(args, objective)
    server.misbehave = Faults()
    with broken_sandbox(every=8):
        for objective in OBJECTIVES:
            seen[f"{objective}, with losses"] = _train(args, objective)
        seen["evaluation"] = _evaluate(args)
    planner.pace_s = 0.02
    seen["abort"] = _abort(args, server)
    planner.pace_s = 0.0
    seen["fully asynchronous"] = _fully_async(args)
    seen["rewards of lists"] = _rewards_of_lists(args)
    seen["refused"] = _refused(args)
    seen["no sandbox"] = _without_sandbox(args)
    run(close())
    print(json.dumps(seen, indent=1))


def _write_data(folder: Path) -> Path:
    problems = make_problems("train", per_cell=4, seed=3, levels=(2, 3))
    data = folder / "problems.jsonl"
    rows = [
        {"prompt": one.text, "label": one.answer, "metadata": {"id": one.id}} for one in problems
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


@contextmanager
def broken_sandbox(*, every: int) -> Iterator[None]:
    """Of so many programs one finds no interpreter that starts."""
    numbers = itertools.count(1)
    get = Sandbox._worker

    async def worker(sandbox: Sandbox) -> Any:
        if next(numbers) % every == 0:
            raise SandboxUnavailable("its interpreter does not start")
        return await get(sandbox)

    Sandbox._worker = worker  # type: ignore[method-assign]
    try:
        yield
    finally:
        Sandbox._worker = get  # type: ignore[method-assign]


def _fresh(args: Any) -> Any:
    SingletonMeta.clear_instances(SingletonMeta)
    LOGGED.clear()
    manager = manager_of(args)
    manager.data_source = RolloutDataSourceWithBuffer(args)
    return manager


def _train(args: Any, objective: str) -> dict[str, Any]:
    """Three steps through manager, filter, conversion and split; the weight of every token in
    slime's loss is compared with the reference."""
    args.turnwise = options(objective)
    args.calculate_per_token_loss = objective == "global-token-mean"
    manager = _fresh(args)
    seen: Counter[str] = Counter()
    shapes: Counter[int] = Counter()
    difference = 0.0
    for step in range(STEPS):
        data, metrics = manager._get_rollout_data(step)
        log_rollout_data(step, args, data, metrics, 1.0)
        members = _check_rows(data)
        shapes.update(len(rows) for rows in members.values())
        train_data = manager._convert_samples_to_train_data(data)
        _check_rewards(data, train_data)
        parts = [part.inner for part in manager._split_train_data_by_dp(train_data)]
        difference = max(difference, reducer.compare(args, objective, train_data, parts))
        seen["rows"] += len(data)
        seen["rollouts"] += len(members)
        seen["unscored"] += sum(rows[0].remove_sample for rows in members.values())
        seen["dropped"] += sum(
            value for key, value in metrics.items() if "dynamic_filter/drop" in key
        )
    assert manager.data_source.buffer == []
    return {
        **seen,
        "segments": dict(sorted(shapes.items())),
        "largest difference of a weight": difference,
        **_totals(),
    }


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
        assert "rollout/response_len/mean" in numbers and "perf/rollout_time" in numbers
        for key, value in numbers.items():
            if key.startswith("rollout/turnwise/lost/"):
                lost[key.rsplit("/", 1)[1]] += int(value)
    return {**totals, "lost by": {key: count for key, count in lost.items() if count}}


def _check_rows(data: list[Any]) -> dict[int, list[Any]]:
    """The samples by rollout, each with its turns in order and what all of them share."""
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
            # A turn of the planner each: all of the response was sampled, with its log-probs.
            assert all(row.loss_mask)
            sampled = row.tokens[-row.response_length :]
            assert row.rollout_log_probs == scores(sampled)
            assert row.metadata["turnwise"]["metrics"]["turns"] == len(rows)
    return members


def _check_rewards(data: list[Any], train_data: dict[str, Any]) -> None:
    """Every rollout counts once in its group, however many rows it has."""
    groups: dict[int, dict[int, float]] = {}
    for sample in data:
        if not sample.remove_sample:
            groups.setdefault(sample.group_index, {})[sample.rollout_id] = sample.reward
    for place, sample in enumerate(data):
        of_group = torch.tensor(list(groups[sample.group_index].values()), dtype=torch.float64)
        expected = 0.0
        if not sample.remove_sample:
            spread = of_group.std() + 1e-6
            expected = float((sample.reward - of_group.mean()) / spread)
        assert abs(train_data["rewards"][place] - expected) < 1e-6
        raw = float(of_group.mean()) if sample.remove_sample else sample.reward
        assert abs(train_data["raw_reward"][place] - raw) < 1e-9


def _evaluate(args: Any) -> dict[str, Any]:
    _fresh(args)
    args.eval_datasets = [
        EvalDatasetConfig(
            name="problems",
            path=args.prompt_data,
            input_key="prompt",
            label_key="label",
            metadata_key="metadata",
            n_samples_per_eval_prompt=2,
            temperature=0.7,
            top_p=0.95,
            top_k=-1,
            max_response_len=256,
        )
    ]
    output = generate_rollout(args, 0, None, evaluation=True)
    log_eval_rollout_data(0, args, output.data, output.metrics)
    (numbers,) = LOGGED
    samples = output.data["problems"]["samples"]
    rollouts = {sample.index: sample.reward for sample in samples}
    assert len(rollouts) == 112
    tasks = {sample.metadata["id"] for sample in samples if sample.reward is not None}
    assert numbers["eval/problems/tasks"] == len(tasks)
    scored = [reward for reward in rollouts.values() if reward is not None]
    assert numbers["eval/problems/coverage"] == len(scored) / 112
    keys = ("", "/stderr", "/coverage", "/pass_hat_1", "/pass_hat_2")
    return {
        "rows": len(samples),
        "tasks": len(tasks),
        **{f"eval/problems{key}": numbers[f"eval/problems{key}"] for key in keys},
        "lost": numbers["eval/turnwise/lost"],
    }


def _abort(args: Any, server: FakeSGLang) -> dict[str, Any]:
    """Twice the groups under way, so that slime ends a rollout in the middle of episodes."""
    args.over_sampling_batch_size = 6
    before = server.aborts
    seen = _train(args, "turn-mean")
    args.over_sampling_batch_size = 2
    assert server.aborts > before and server.running == 0
    assert not sglang_rollout.GenerateState(args).pendings
    assert accounts.TRAIN.in_flight == 0
    return seen


def _fully_async(args: Any) -> str:
    """slime's fully asynchronous rollout sorts groups by an index that a list does not have."""
    _fresh(args)
    args.sglang_server_concurrency = 8
    source = RolloutDataSourceWithBuffer(args)
    try:
        fully_async_rollout.generate_rollout_fully_async(args, 0, source)
    except TypeError as error:
        return str(error)
    else:
        raise AssertionError("slime's fully asynchronous rollout takes lists now: allow it")
    finally:
        fully_async_rollout._stop_global_worker()
        while accounts.TRAIN.in_flight:
            time.sleep(0.05)
        accounts.TRAIN.take().check()
        args.sglang_server_concurrency = 512


def _rewards_of_lists(args: Any) -> dict[str, Any]:
    """slime asks for the rewards of all rows of an episode at once."""
    manager = _fresh(args)
    data, _ = manager._get_rollout_data(0)
    accounts.TRAIN.take().check()
    found = run(batched_async_rm(args, data))
    assert found == [sample.reward for sample in data]
    assert run(batched_async_rm(args, [])) == []
    return {"rows": len(found)}


def _refused(args: Any) -> list[str]:
    """Flags of slime that a method of several rows can't go with."""
    told = []
    for flag in ("partial_rollout", "group_rm"):
        setattr(args, flag, True)
        try:
            _fresh(args)._get_rollout_data(0)
        except ConfigError as error:
            told.append(str(error))
        setattr(args, flag, False)
    assert len(told) == 2, told
    accounts.TRAIN.take().check()
    return told


def _without_sandbox(args: Any) -> str:
    """A sandbox that is gone in the middle of a run ends it."""
    args.turnwise = {**options("turn-mean"), "tools": ["python_coder"]}
    manager = _fresh(args)
    manager._get_rollout_data(0)
    accounts.TRAIN.take().check()
    try:
        with broken_sandbox(every=1):
            manager._get_rollout_data(1)
    except StopRun as error:
        return str(error)
    raise AssertionError("slime went on without a sandbox")


if __name__ == "__main__":
    main()
