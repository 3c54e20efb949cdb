"""`generate` inside of the rollout loop: what comes out of it, and what slime makes of that."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slime.observability import logging_utils  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime.rollout.sglang_rollout import (  # type: ignore[import-not-found]  # pants: no-infer-dep
    eval_rollout,
    generate_rollout_async,
)
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import DataSource, to_train_data
from slime_standin.errands import Courier, Errands, rows, says
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.method import Services
from turnwise.slime import accounts, close, eval_log, generate, rollout_log, shared
from turnwise.testing.servers import FakeChat, FakeSGLang

GREEDY = {"temperature": 1.0, "top_p": 1.0, "top_k": 1, "max_new_tokens": 1024}


async def test_a_sample_comes_back_filled_and_otherwise_as_it_was(
    args: Callable[..., Any], server: FakeSGLang, tokenizer: Any
) -> None:
    sample = rows(1)[0]
    sample.index, sample.group_index, sample.session_id = 17, 3, "session-17"
    server.weight_version = "5"
    result = await generate(args(), sample, dict(GREEDY))
    assert result is sample
    assert (sample.index, sample.group_index, sample.rollout_id) == (17, 3, 17)
    assert (sample.label, sample.session_id) == ("label of 0", "session-17")
    assert sample.status is Sample.Status.COMPLETED and sample.reward == 1.0
    assert {call.session for call in server.calls} == {"session-17"}
    assert sample.weight_versions == ["5"] * len(server.calls)
    assert not sample.remove_sample
    assert sample.metadata["kind"] == "red" and sample.metadata["turnwise"]["task_id"] == "parcel/0"
    assert sample.metadata["turnwise"]["ending"] == "finished"
    assert "turnwise_replay" not in sample.metadata
    assert sample.response == tokenizer.decode(sample.tokens[-sample.response_length :])
    assert 0 <= sample.non_generation_time < 60


async def test_what_is_trained_is_what_the_server_sampled_bit_for_bit(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    sampled: list[tuple[list[int], list[float]]] = []
    server.more_meta = lambda call, turn: (
        sampled.append((list(turn.ids), list(turn.logprobs))) or {}  # type: ignore[func-returns-value]
    )
    sample = await generate(args(), rows(1)[0], dict(GREEDY))
    response = sample.tokens[-sample.response_length :]
    trained = [
        (token, logprob)
        for token, logprob, mask in zip(
            response, sample.rollout_log_probs, sample.loss_mask, strict=True
        )
        if mask
    ]
    assert trained == [pair for ids, scores in sampled for pair in zip(ids, scores, strict=True)]
    untrained = zip(sample.rollout_log_probs, sample.loss_mask, strict=True)
    assert all(logprob == 0.0 for logprob, mask in untrained if not mask)
    for number, call in enumerate(server.calls):
        prompt = call.body["input_ids"]
        assert sample.tokens[: len(prompt)] == prompt
        end = len(prompt) + len(sampled[number][0])
        assert sample.tokens[len(prompt) : end] == sampled[number][0]


async def test_cached_tokens_and_speculative_counts_are_those_of_all_turns(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    server.more_meta = lambda call, turn: {
        "spec_accept_token_num": 3,
        "spec_draft_token_num": 4,
        "spec_verify_ct": 2,
    }
    arguments = args(sglang_speculative_algorithm="EAGLE")
    sample = await generate(arguments, rows(1)[0], dict(GREEDY))
    turns = len(server.calls)
    assert turns == 2
    assert sample.spec_info.spec_accept_token_num == 3 * turns
    assert sample.spec_info.completion_token_num == sum(sample.loss_mask)
    info = sample.prefix_cache_info
    assert info.total_prompt_tokens == sum(len(call.body["input_ids"]) for call in server.calls)
    first, second = (len(call.body["input_ids"]) for call in server.calls)
    assert first < info.cached_tokens < second


async def test_top_p_spans_and_routed_experts_cover_the_whole_sample(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    layers, experts = 2, 3

    def more(call: Any, turn: Any) -> dict[str, Any]:
        rows = len(call.body["input_ids"]) + len(turn.ids) - 1
        return {
            "top_p_token_ids": [token for token in turn.ids for _ in range(2)],
            "top_p_token_offsets": list(range(0, 2 * len(turn.ids) + 1, 2)),
            "routed_experts": [row % 7 for row in range(rows) for _ in range(layers * experts)],
        }

    server.more_meta = more
    arguments = args(
        rollout_top_p=0.9,
        use_rollout_routing_replay=True,
        num_layers=layers,
        moe_router_topk=experts,
    )
    params = {**GREEDY, "top_p": 0.9, "custom_params": {"return_top_p_token_ids": True}}
    sample = await generate(arguments, rows(1)[0], params)
    body = server.calls[0].body
    assert body["return_routed_experts"] is True
    assert body["sampling_params"]["custom_params"] == {"return_top_p_token_ids": True}
    widths = [
        stop - start
        for start, stop in zip(
            sample.rollout_top_p_token_offsets[:-1],
            sample.rollout_top_p_token_offsets[1:],
            strict=True,
        )
    ]
    assert widths == [2 * mask for mask in sample.loss_mask]
    assert len(sample.rollout_routed_experts) == len(sample.tokens) - 1
    assert sample.rollout_routed_experts[8] == [[1] * experts] * layers


async def test_a_training_rollout_balances_and_converts(
    args: Callable[..., Any], server: FakeSGLang, courier: Courier
) -> None:
    arguments = args(n_samples_per_prompt=3)
    source = DataSource(arguments, rows(4))
    groups, reasons, again = await generate_rollout_async(arguments, 0, source.get_samples)
    data = to_train_data(arguments, groups)
    assert not again
    assert set(data["raw_reward"]) <= {0.0, 1.0}
    assert all(abs(sum(data["rewards"][at : at + 3])) < 1e-6 for at in (0, 3))
    samples = [sample for group in groups for sample in group]
    assert rollout_log(0, arguments, samples, reasons, 1.5) is True
    (numbers,) = logging_utils.logged
    assert numbers["rollout/step"] == 0
    assert numbers["rollout/turnwise/started"] == numbers["rollout/turnwise/finished"]
    assert numbers["rollout/turnwise/coverage"] == 1.0
    assert numbers["rollout/turnwise/in_flight"] == 0
    assert numbers["rollout/prefix_cache_hit_rate"] > 0
    assert numbers["rollout/turnwise/episode/turns"] >= 1


async def test_evaluation_uses_the_same_loop_and_reports_over_tasks(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    arguments = args(n_samples_per_eval_prompt=3)
    data = await eval_rollout(arguments, rows(4), GREEDY, "parcels")
    assert eval_log(0, arguments, data, {"extra": 1.0}) is True
    (numbers,) = logging_utils.logged
    assert abs(numbers["eval/parcels"] - 2 / 3) < 1e-9
    assert numbers["eval/parcels/coverage"] == 1.0
    assert numbers["eval/parcels/tasks"] == 4
    assert numbers["eval/parcels/pass_hat_3"] == 0.0
    assert numbers["eval/parcels/ending/finished"] == 12
    assert numbers["eval/turnwise/started"] == 12
    assert (numbers["extra"], numbers["eval/step"]) == (1.0, 0)
    assert server.calls[0].body["sampling_params"]["top_k"] == 1


async def test_a_user_behind_an_endpoint_is_asked_and_counted(
    args: Callable[..., Any], server: FakeSGLang, courier: Courier
) -> None:
    courier._asks = 1
    async with FakeChat(says) as endpoint:
        arguments = args(turnwise={"user_url": f"{endpoint.url}/v1"})
        sample = await generate(arguments, rows(1)[0], dict(GREEDY))
        assert sample.metadata["turnwise"]["ending"] == "finished", sample.metadata
        assert sample.reward == 1.0
        assert rollout_log(0, arguments, [sample], {}, 1.0) is True
        await close()
    (numbers,) = logging_utils.logged
    assert numbers["rollout/turnwise/user/requests"] == len(endpoint.calls) == 2


async def test_a_method_is_opened_once_for_all_episodes_and_closed_with_the_connections(
    args: Callable[..., Any], server: FakeSGLang
) -> None:
    arguments = args()
    await asyncio.gather(*(generate(arguments, row, dict(GREEDY)) for row in rows(5)))
    method = shared.find_method(arguments)
    assert (method.opened, method.closed) == (1, 0)
    await close()
    assert (method.opened, method.closed) == (1, 1)
    await generate(arguments, rows(1)[0], dict(GREEDY))
    assert (shared.find_method(arguments), method.opened) == (method, 2)


async def test_a_service_that_is_not_there_ends_the_job_and_not_each_episode(
    args: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(self: Errands, services: Services) -> None:
        raise PreflightError("user: no answer")

    monkeypatch.setattr(Errands, "open", gone)
    with pytest.raises(PreflightError, match="user: no answer"):
        await generate(args(), rows(1)[0], dict(GREEDY))
    assert accounts.TRAIN.take().started == 0
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("given", "server_format", "expected"),
    [("hermes", "llama3", "hermes"), (None, "llama3", "llama3"), (None, None, "qwen25")],
)
async def test_the_tool_format_is_the_methods_then_the_servers_then_the_templates(
    args: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    given: str | None,
    server_format: str | None,
    expected: str,
) -> None:
    caplog.set_level(logging.INFO, "turnwise.slime.shared")
    arguments = args(turnwise={"tool_format": given}, sglang_tool_call_parser=server_format)
    assert (await shared.get_shared(arguments)).tool_format == expected
    said = "tool calls are read as qwen25, found in the chat template" in caplog.text
    assert said == (given is None and server_format is None)


async def test_code_of_a_checkpoint_is_never_run(
    args: Callable[..., Any], checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["own.Own", None]}
    config["tokenizer_class"] = "Own"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").unlink()
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    arguments = args()
    arguments.hf_checkpoint = str(folder)
    with pytest.raises(ConfigError, match="is never run"):
        await generate(arguments, rows(1)[0], dict(GREEDY))
    assert not (tmp_path / "ran").exists()
