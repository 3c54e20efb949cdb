"""What slime's arguments say, and one clear error for each way in which they can be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import HOOKS, make_args
from turnwise.config import ConfigError
from turnwise.slime import generate
from turnwise.slime.settings import (
    make_method,
    max_context_tokens,
    read_sampling,
    read_settings,
)

LLM = {"base_url": "http://h/v1", "key_env": ""}
TAU = {"method": "tau", "user": {"strategy": "offline"}}


@pytest.mark.parametrize(
    ("turnwise", "message"),
    [
        (None, "args.turnwise must hold method and its options, found NoneType"),
        ("tau", "found str"),
        ({"env": "retail"}, "must hold method"),
        ({**TAU, "on_rewrite": "forget"}, "on_rewrite: must be keep, fork or error"),
        ({"method": "taus"}, "'taus' is neither one of tau, agentflow nor an import path"),
        ({"method": "json:dumps"}, "json:dumps gives str, not a turnwise Method"),
        ({"method": "nowhere.at:all"}, "nowhere.at:all"),
        ({"method": "taubench.method:nothing"}, "nothing"),
        ({**TAU, "max_turn": 3}, "turnwise.max-turn"),
        ({**TAU, "max_turns": 0}, "turnwise.max-turns: .* found 0"),
        ({**TAU, "env": "hotel"}, "turnwise.env: .* found 'hotel'"),
        ({**TAU, "env": "airline"}, "airline has test, found 'train'"),
    ],
)
def test_wrong_options_are_one_clear_error(turnwise: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_method(read_settings(make_args(turnwise=turnwise)))


@pytest.mark.parametrize(
    ("given", "server", "expected"),
    [(None, None, "qwen25"), (None, "llama3", "llama3"), ("hermes", "llama3", "hermes")],
)
def test_the_tool_format_is_ours_then_the_servers_then_the_default(
    given: str | None, server: str | None, expected: str
) -> None:
    args = make_args(turnwise={**TAU, "tool_format": given}, sglang_tool_call_parser=server)
    assert read_settings(args).tool_format == expected


async def test_an_unknown_tool_format_is_refused_before_any_episode(
    checkpoint: str,
) -> None:
    args = make_args(turnwise={**TAU, "tool_format": "qwen99"}, hf_checkpoint=checkpoint)
    with pytest.raises(ConfigError, match="unknown format 'qwen99'"):
        await generate(args, Sample(prompt=0), {})


def test_slimes_sampling_parameters_are_taken_apart() -> None:
    params, rest = read_sampling(
        {
            "temperature": 0.8,
            "top_p": 0.9,
            "top_k": -1,
            "max_new_tokens": 77,
            "stop": ["END"],
            "stop_token_ids": [5],
            "no_stop_trim": True,
            "sampling_seed": 3,
        }
    )
    assert (params.temperature, params.top_p, params.top_k) == (0.8, 0.9, 0)
    assert (params.max_new_tokens, params.stop_token_ids) == (77, (5,))
    assert rest == {"stop": ["END"], "no_stop_trim": True}
    assert read_sampling({"top_k": 1, "temperature": None, "stop_token_ids": None})[0].top_k == 1
    with pytest.raises(ConfigError, match="sampling parameters: top_p"):
        read_sampling({"top_p": 0.0})


def test_the_context_is_the_first_flag_that_is_given() -> None:
    args = make_args(
        rollout_max_context_len=None, sglang_context_length=900, max_position_embeddings=1000
    )
    assert max_context_tokens(args, evaluation=False) == 900
    args.rollout_max_context_len = 800
    args.eval_max_context_len = 700
    assert max_context_tokens(args, evaluation=False) == 800
    assert max_context_tokens(args, evaluation=True) == 700
    with pytest.raises(ConfigError, match="--rollout-max-context-len"):
        max_context_tokens(make_args(rollout_max_context_len=None), evaluation=False)


def test_every_hook_can_be_loaded_by_the_path_that_slime_is_given() -> None:
    from slime.utils.misc import load_function  # type: ignore[import-not-found]  # pants: no-infer-dep

    for path in HOOKS.values():
        assert callable(load_function(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent_strategy": "reflect"}, "agent-strategy: .* found 'reflect'"),
        (
            {"agent_strategy": "few-shot", "env": "airline", "task_split": "test"},
            "agent-strategy few-shot: .*airline has no train tasks",
        ),
        (
            {"user": {"key_env": "NO_SUCH_KEY", "base_url": "http://h/v1"}},
            "user.key-env: .*NO_SUCH",
        ),
        ({"user": {"base_url": "http://h/v1"}}, "GEMINI_API_KEY would be sent to h"),
        ({"user": {"strategy": "human"}}, "user.strategy: nobody could answer"),
        ({"user": {"concurency": 3}}, "user.concurency"),
        ({"user": {**LLM, "deadline_s": 120}}, "deadline-s: 120 must be below user-deadline-s 120"),
        ({"user": {"sglang": "user", "key_env": "A"}}, "sglang: .* leave key-env out"),
        ({"user": {"sglang": "user", "strategy": "offline"}}, "offline asks no model"),
    ],
)
def test_what_the_hooks_cannot_play_is_refused_before_any_episode(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_method(read_settings(make_args(turnwise={**TAU, **options})))
