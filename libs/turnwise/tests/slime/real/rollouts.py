"""Our hooks in slime's own rollout code on the CPU, against a server on this machine.

Runs in a process whose path holds a checkout of slime in place of the stand-in. Of slime these
run as they are: the data source with its dataset, `generate_rollout` with filter, abort and
partial rollout, the fully asynchronous rollout, evaluation, the manager's reward
post-processing, conversion to training data and split into steps, and the log functions. sglang
and its router are empty modules: only their names are imported here.

Prints a JSON object of what was seen; exits with an exception where anything is off.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from slime.rollout import fully_async_rollout
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils.eval_config import EvalDatasetConfig
from slime.utils.misc import SingletonMeta, load_function
from slime.utils.types import Sample
from slime_standin.errands import Courier, save_tokenizer, says
from stage import LOGGED, arguments, manager_of
from turnwise.objective import rollout_mask_sums
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EvalRow, TrainRow, parse_row
from turnwise.slime import accounts
from turnwise.testing.servers import Call, FakeChat, FakeSGLang, in_a_thread, status

STEPS = 3


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    server = _serve()
    seen: dict[str, Any] = {}
    args = _arguments(folder, server)
    seen["training"] = _train(args, server, slow=False)
    args.partial_rollout = True
    args.over_sampling_batch_size = 4
    seen["partial"] = _train(args, server, slow=True)
    seen["evaluation"] = _evaluate(args, folder)
    seen["users"] = _users(args, server)
    args.partial_rollout = False
    args.over_sampling_batch_size = 2
    seen["turn_mean"] = _turn_mean(args)
    seen["segments"] = _segments(args)
    seen["gateway"] = _gateway(args, server)
    seen["fully_async"] = _fully_async(args)
    print(json.dumps(seen, indent=1))


def _serve() -> FakeSGLang:
    """A server in a thread. Every third session fails its task, every tenth call has no answer,
    and now and then one is refused for good."""
    courier = Courier(wrong=lambda number: number % 3 == 2, asks=3)
    server = FakeSGLang(courier.answer)

    def misbehave(call: Call) -> Any:
        if call.number % 40 == 7:
            return status(400)
        return status(503) if call.number % 10 == 3 else None

    server.misbehave = misbehave
    in_a_thread(server)
    return server


def _arguments(folder: Path, server: FakeSGLang) -> Any:
    rows = [{"index": str(n), "metadata": {"id": f"parcel/{n}"}} for n in range(24)]
    data = folder / "tasks.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return arguments(
        data,
        hf_checkpoint=save_tokenizer(folder / "checkpoint"),
        turnwise={"method": "slime_standin.errands:Errands"},
        sglang_router_port=server.port,
    )


def _train(args: Any, server: FakeSGLang, *, slow: bool) -> dict[str, Any]:
    from slime.observability.rollout_metrics import log_rollout_data

    SingletonMeta.clear_instances(SingletonMeta)
    LOGGED.clear()
    manager = manager_of(args)
    manager.data_source = RolloutDataSourceWithBuffer(args)
    server.slow = lambda call: 0.02 + 0.03 * (ord(call.session[0]) % 5) if slow else 0.0
    rows, resumed, older = 0, 0, {}
    for step in range(STEPS):
        data, metrics = manager._get_rollout_data(step)
        log_rollout_data(step, args, data, metrics, 1.0)
        rows += len(data)
        for sample in data:
            assert (sample.reward is None) == sample.remove_sample, sample.metadata
            # One that is lost after it went on holds nothing of what it had.
            if sample.index in older and not sample.remove_sample:
                resumed += 1
                assert sample.tokens[: len(older[sample.index])] == older[sample.index]
        older = {
            sample.index: list(sample.tokens)
            for group in manager.data_source.buffer
            for sample in group
            if sample.response and sample.status is Sample.Status.ABORTED
        }
        train_data = manager._convert_samples_to_train_data(data)
        parts = manager._split_train_data_by_dp(train_data)
        assert sum(len(part.inner["tokens"]) for part in parts) == len(data)
    assert len(LOGGED) == STEPS
    totals = {
        key: sum(numbers.get(f"rollout/turnwise/{key}", 0) for numbers in LOGGED)
        for key in ("started", "finished", "stopped", "lost", "cancelled")
    }
    assert totals["started"] == sum(totals.values()) - totals["started"]
    return {"rows": rows, "went on": resumed, **totals}


def _evaluate(args: Any, folder: Path) -> dict[str, Any]:
    from slime.observability.rollout_metrics import log_eval_rollout_data

    LOGGED.clear()
    args.eval_datasets = [
        EvalDatasetConfig(
            name="parcels",
            path=args.prompt_data,
            input_key="index",
            metadata_key="metadata",
            n_samples_per_eval_prompt=2,
            temperature=1.0,
            top_p=1.0,
            top_k=1,
            max_response_len=1024,
        )
    ]
    args.turnwise_run_dir = str(folder / "run")
    output = generate_rollout(args, 0, None, evaluation=True)
    log_eval_rollout_data(0, args, output.data, output.metrics)
    (numbers,) = LOGGED
    rows = [parse_row(row) for row in RunFolder(folder / "run").metric_rows()]
    (row,) = [one for one in rows if isinstance(one, EvalRow)]
    assert (row.step, row.dataset, row.reward_mean) == (0, "parcels", numbers["eval/parcels"])
    del args.turnwise_run_dir
    keys = ("eval/parcels", "eval/parcels/coverage", "eval/parcels/stderr", "eval/turnwise/lost")
    return {key: numbers[key] for key in keys}


def _users(args: Any, server: FakeSGLang) -> dict[str, Any]:
    """A user behind an endpoint that is busy now and then, with aborted conversations that go on,
    and the run folder of it."""
    user = FakeChat(says, delay_s=0.05)
    user.misbehave = lambda call: status(429) if call.number % 9 == 4 else None
    in_a_thread(user)
    kept = args.turnwise
    args.turnwise = {**kept, "user_url": f"{user.url}/v1"}
    args.turnwise_run_dir = tempfile.mkdtemp()
    seen = _train(args, server, slow=True)
    asked = LOGGED[-1]["rollout/turnwise/user/requests"]
    rows = [parse_row(row) for row in RunFolder(Path(args.turnwise_run_dir)).metric_rows()]
    steps = [row.step for row in rows if isinstance(row, TrainRow)]
    assert steps == [1, 2, 3], steps
    started = sum(row.ledger["started"] for row in rows if isinstance(row, TrainRow))
    # A row counts what ended; what was under way is in the next.
    assert started == seen["started"]
    args.turnwise = kept
    del args.turnwise_run_dir
    return {**seen, "requests": asked, "sent": len(user.calls)}


def _turn_mean(args: Any) -> dict[str, Any]:
    """The denominators that slime's ranks divide by, against the reference."""
    SingletonMeta.clear_instances(SingletonMeta)
    two = {"method": "slime_standin.methods:TwoSegments", "objective": "turn-mean"}
    kept, args.turnwise = args.turnwise, two
    args.dynamic_sampling_filter_path = None
    args.use_dynamic_batch_size, args.max_tokens_per_gpu = True, 2048
    manager = manager_of(args)
    manager.data_source = RolloutDataSourceWithBuffer(args)
    data, _ = manager._get_rollout_data(0)
    train_data = manager._convert_samples_to_train_data(data)
    counts = [sum(mask) for mask in train_data["loss_masks"]]
    trained = [place for place, count in enumerate(counts) if count]
    expected = rollout_mask_sums(
        [counts[place] for place in trained],
        [train_data["rollout_ids"][place] for place in trained],
        "turn-mean",
    )
    sums = dict(zip(trained, expected, strict=True))
    compared = 0
    for part in manager._split_train_data_by_dp(train_data):
        load_function("turnwise.slime.train_data")(args, 0, part.inner)
        found = part.inner["rollout_mask_sums"].tolist()
        for place, value in zip(part.inner["partition"], found, strict=True):
            assert value == sums.get(place, 0), (place, value)
            compared += place in sums
    accounts.TRAIN.take().check()
    args.turnwise = kept
    args.dynamic_sampling_filter_path = "turnwise.slime.dynamic_filter"
    return {"rows": len(data), "compared": compared}


def _segments(args: Any) -> dict[str, Any]:
    SingletonMeta.clear_instances(SingletonMeta)
    kept, args.turnwise = args.turnwise, {"method": "slime_standin.methods:TwoSegments"}
    args.dynamic_sampling_filter_path = None
    # A step of fixed micro-batches takes no varying number of rows.
    args.use_dynamic_batch_size, args.max_tokens_per_gpu = True, 2048
    manager = manager_of(args)
    manager.data_source = RolloutDataSourceWithBuffer(args)
    data, _ = manager._get_rollout_data(0)
    train_data = manager._convert_samples_to_train_data(data)
    parts = manager._split_train_data_by_dp(train_data)
    rollouts = len(set(train_data["rollout_ids"]))
    accounts.TRAIN.take().check()
    args.turnwise = kept
    args.dynamic_sampling_filter_path = "turnwise.slime.dynamic_filter"
    steps = len(parts[0].inner["global_batch_sizes"])
    return {"rows": len(data), "rollouts": rollouts, "steps": steps}


def _gateway(args: Any, server: FakeSGLang) -> dict[str, Any]:
    """An agent that speaks Chat Completions to the gateway in this process, every other one of two
    segments, while the engine fails as before; then slime aborts what is under way."""
    kept, args.turnwise = args.turnwise, {"method": "slime_standin.through:Through"}
    args.use_dynamic_batch_size, args.max_tokens_per_gpu = True, 2048
    seen = _train(args, server, slow=False)
    args.over_sampling_batch_size = 6
    aborted = _train(args, server, slow=True)
    args.over_sampling_batch_size = 2
    server.slow = lambda call: 0.0
    args.turnwise = kept
    return {**seen, "aborted": aborted}


def _fully_async(args: Any) -> dict[str, Any]:
    SingletonMeta.clear_instances(SingletonMeta)
    args.sglang_server_concurrency = 8
    source = RolloutDataSourceWithBuffer(args)
    groups = fully_async_rollout.generate_rollout_fully_async(args, 0, source)
    fully_async_rollout._stop_global_worker()
    while accounts.TRAIN.in_flight:
        time.sleep(0.05)
    period = accounts.TRAIN.take()
    period.check()
    return {"groups": len(groups), "ledger": period.equation()}


if __name__ == "__main__":
    main()
