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

ERRANDS = {"method": "slime_standin.errands:Errands"}


@pytest.mark.parametrize(
    ("turnwise", "message"),
    [
        (None, "args.turnwise must hold method and its options, found NoneType"),
        ("tau", "found str"),
        ({"env": "retail"}, "must hold method"),
        ({**ERRANDS, "on_rewrite": "forget"}, "on[-_]rewrite"),
        ({**ERRANDS, "tool_format": "qwen99"}, "unknown format of tool calls 'qwen99'"),
        ({**ERRANDS, "objective": "median"}, "objective"),
        ({"method": "taus"}, "apps.trainers.taus"),
        ({"method": "json:dumps"}, "json:dumps is no class of turnwise.Method"),
        ({"method": "nowhere.at:All"}, "nowhere.at:All"),
        ({"method": "slime_standin.errands:Nothing"}, "Nothing"),
        ({**ERRANDS, "max_turn": 3}, "turnwise.max-turn"),
    ],
)
def test_wrong_options_are_one_clear_error(turnwise: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_method(read_settings(make_args(turnwise=turnwise)))


async def test_a_parser_of_the_server_that_is_not_known_here_is_refused_before_any_episode(
    checkpoint: str,
) -> None:
    args = make_args(
        turnwise={**ERRANDS, "tool_format": None},
        hf_checkpoint=checkpoint,
        sglang_tool_call_parser="qwen99",
    )
    with pytest.raises(ConfigError, match="--sglang-tool-call-parser qwen99"):
        await generate(args, Sample(prompt="0"), {})


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
