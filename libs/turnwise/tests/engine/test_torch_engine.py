"""The embedded engine against transformers' own forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from turnwise.config import ConfigError
from turnwise.engine import Completion, SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Boundary, BoundaryError

from .models import DEVICES, KINDS, VOCAB, expected_logprobs, make_model, random_ids

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Sampled:
    prompt: NDArray[np.int32]
    completion: Completion


async def episode(
    engine: TorchEngine,
    seed: int,
    *,
    turns: int = 3,
    system: int = 40,
    session: str | None = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> list[Sampled]:
    """An episode whose turns and observations have random lengths; prompts share a system part."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([random_ids(0, system), random_ids(seed + 1, int(rng.integers(1, 20)))])
    name = session or f"episode-{seed}"
    found = []
    for turn in range(turns):
        params = SamplingParams(
            max_new_tokens=int(rng.integers(1, 14)),
            stop_token_ids=(3, 4, 5),
            seed=100 * seed + turn,
        )
        completion = await engine.generate(ids, params, session_id=name)
        found.append(Sampled(ids, completion))
        observation = random_ids(7 * seed + turn, int(rng.integers(1, 15)))
        ids = np.concatenate([ids, completion.ids, observation])
        if pause is not None:
            await pause()
    await engine.release(name)
    return found


def assert_equal_to_transformers(model: object, sampled: list[Sampled]) -> None:
    assert sampled
    for turn in sampled:
        expected = expected_logprobs(model, turn.prompt, turn.completion.ids)
        np.testing.assert_allclose(turn.completion.logprobs, expected, atol=TOLERANCE, rtol=0)


def run_episodes(engine: TorchEngine, seeds: list[int], **options: Any) -> list[list[Sampled]]:
    async def run() -> list[list[Sampled]]:
        return list(await asyncio.gather(*(episode(engine, seed, **options) for seed in seeds)))

    return asyncio.run(run())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_equal_transformers_for_every_supported_kind(kind: str, device: str) -> None:
    model = make_model(kind).to(device)
    engine = TorchEngine(model, rows=8)
    for sampled in run_episodes(engine, list(range(6))):
        assert_equal_to_transformers(model, sampled)
    asyncio.run(engine.close())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("system", [1, 40])
def test_every_batch_fill_and_order_equals_transformers(system: int, device: str) -> None:
    rows = 7
    model = make_model().to(device)
    engine = TorchEngine(model, rows=rows)
    order = np.random.default_rng(5)
    for fill in range(1, rows + 1):
        seeds = [int(seed) for seed in order.permutation(fill) + 10 * fill]
        for sampled in run_episodes(engine, seeds, system=system):
            assert_equal_to_transformers(model, sampled)


def test_rows_that_ended_within_a_burst_stay_equal_while_others_go_on() -> None:
    model = make_model()
    engine = TorchEngine(model, rows=6, context=96)
    engine._batch._check_every, engine._batch._patience = 8, 0.5
    alone = TorchEngine(model, rows=6, context=96)
    for sampled, expected in zip(
        run_episodes(engine, list(range(9))), run_episodes(alone, list(range(9))), strict=True
    ):
        assert_equal_to_transformers(model, [turn for turn in sampled if len(turn.completion.ids)])
        for one, other in zip(sampled, expected, strict=True):
            np.testing.assert_array_equal(one.completion.ids, other.completion.ids)
            assert one.completion.finish == other.completion.finish


def test_more_sessions_than_rows_reuse_rows_and_stay_equal() -> None:
    model = make_model()
    engine = TorchEngine(model, rows=4)
    for _ in range(2):
        for sampled in run_episodes(engine, list(range(11)), turns=4):
            assert_equal_to_transformers(model, sampled)


def test_samples_do_not_depend_on_what_else_is_in_the_batch() -> None:
    model = make_model()
    crowd = run_episodes(TorchEngine(model, rows=8), list(range(8)))
    for seed in range(8):
        (alone,) = run_episodes(TorchEngine(model, rows=1), [seed])
        for one, other in zip(alone, crowd[seed], strict=True):
            np.testing.assert_array_equal(one.completion.ids, other.completion.ids)
            np.testing.assert_allclose(
                one.completion.logprobs, other.completion.logprobs, atol=TOLERANCE
            )


def test_the_same_24_episodes_give_the_same_bits() -> None:
    model = make_model()
    engine = TorchEngine(model, rows=10)
    first = run_episodes(engine, list(range(24)))
    asyncio.run(engine.clear())
    again = run_episodes(engine, list(range(24)))
    fresh = run_episodes(TorchEngine(model, rows=10), list(range(24)))
    for one, other, third in zip(first, again, fresh, strict=True):
        for a, b, c in zip(one, other, third, strict=True):
            assert a.completion.ids.tobytes() == b.completion.ids.tobytes()
            assert a.completion.logprobs.tobytes() == b.completion.logprobs.tobytes()
            assert a.completion.logprobs.tobytes() == c.completion.logprobs.tobytes()
            assert a.completion.cached_tokens == b.completion.cached_tokens


def test_a_later_turn_computes_only_what_is_new() -> None:
    sampled = run_episodes(TorchEngine(make_model(), rows=2), [1])[0]
    for before, after in zip(sampled, sampled[1:], strict=False):
        # All of the last turn but its last sampled token, which no step has read.
        known = len(before.prompt) + len(before.completion.ids) - 1
        assert after.completion.cached_tokens == known


def test_a_group_computes_its_prompt_once() -> None:
    engine = TorchEngine(make_model(), rows=8)
    prompt = random_ids(1, 60)

    async def run() -> list[Completion]:
        turns = [
            engine.generate(prompt, SamplingParams(max_new_tokens=4, seed=i), session_id=str(i))
            for i in range(8)
        ]
        return list(await asyncio.gather(*turns))

    completions = asyncio.run(run())
    assert sorted(c.cached_tokens for c in completions) == [0] + [59] * 7
    for completion in completions:
        expected = expected_logprobs(make_model(), prompt, completion.ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE)


def test_a_rewritten_prompt_reuses_the_common_part_alone() -> None:
    model = make_model()
    engine = TorchEngine(model, rows=2)
    first, second = random_ids(1, 50), random_ids(1, 50)
    second[30:] = random_ids(2, 20)

    async def run() -> list[Completion]:
        params = SamplingParams(max_new_tokens=6, seed=1)
        return [await engine.generate(p, params, session_id="s") for p in (first, second)]

    completions = asyncio.run(run())
    assert completions[1].cached_tokens == 30
    for prompt, completion in zip((first, second), completions, strict=True):
        expected = expected_logprobs(model, prompt, completion.ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE)


def test_an_episode_that_waits_holds_up_nobody() -> None:
    engine = TorchEngine(make_model(), rows=4)

    async def run() -> None:
        never = asyncio.Event()
        waiting = asyncio.create_task(episode(engine, 1, pause=lambda: _wait(never)))
        others = await asyncio.gather(*(episode(engine, seed) for seed in range(2, 9)))
        assert len(others) == 7
        assert not waiting.done()
        never.set()
        await waiting

    asyncio.run(run())


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def test_new_weights_are_used_and_old_rows_are_not() -> None:
    old, new = make_model(seed=0), make_model(seed=1)
    engine = TorchEngine(old, rows=2)
    prompt = random_ids(1, 40)

    async def run() -> list[Completion]:
        params = SamplingParams(max_new_tokens=8, seed=1)
        before = await engine.generate(prompt, params, session_id="s")
        await engine.update_weights(new)
        return [before, await engine.generate(prompt, params, session_id="s")]

    before, after = asyncio.run(run())
    assert (before.weight_version, after.weight_version) == (0, 1)
    assert after.cached_tokens == 0
    for model, completion in ((old, before), (new, after)):
        expected = expected_logprobs(model, prompt, completion.ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE)


def test_a_weight_update_ends_turns_under_way_with_abort() -> None:
    engine = TorchEngine(make_model(), rows=2)

    async def run() -> Completion:
        params = SamplingParams(max_new_tokens=200, seed=1)
        turn = asyncio.create_task(engine.generate(random_ids(1, 9), params, session_id="s"))
        while engine.stats.sampled_tokens == 0:
            await asyncio.sleep(0)
        await engine.update_weights(make_model(seed=1))
        return await turn

    completion = asyncio.run(run())
    assert completion.finish == "abort"
    assert 0 < len(completion.ids) < 200
    assert completion.weight_version == 0


def test_close_aborts_what_is_under_way_and_refuses_what_comes_after() -> None:
    engine = TorchEngine(make_model(), rows=1)

    async def run() -> None:
        params = SamplingParams(max_new_tokens=200, seed=1)
        turns = [
            asyncio.create_task(engine.generate(random_ids(i, 9), params, session_id=str(i)))
            for i in range(2)
        ]
        while engine.stats.sampled_tokens == 0:
            await asyncio.sleep(0)
        await engine.close()
        assert [(await turn).finish for turn in turns] == ["abort", "abort"]
        with pytest.raises(BoundaryError, match="closed") as caught:
            await engine.generate(random_ids(1, 9), params, session_id="late")
        assert caught.value.boundary is Boundary.ENGINE
        await engine.close()

    asyncio.run(run())


def test_a_cancelled_turn_gives_its_row_back() -> None:
    model = make_model()
    engine = TorchEngine(model, rows=1)

    async def run() -> Sampled:
        params = SamplingParams(max_new_tokens=240, seed=1)
        turn = asyncio.create_task(engine.generate(random_ids(1, 9), params, session_id="s"))
        while engine.stats.sampled_tokens == 0:
            await asyncio.sleep(0)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        prompt = random_ids(2, 30)
        short = SamplingParams(max_new_tokens=5, seed=1)
        return Sampled(prompt, await engine.generate(prompt, short, session_id="other"))

    assert_equal_to_transformers(model, [asyncio.run(run())])
    # The only row was free long before the cancelled turn would have ended.
    assert engine.stats.sampled_tokens < 120


def test_a_failed_computation_is_a_boundary_error_and_the_engine_goes_on() -> None:
    model = make_model()
    engine = TorchEngine(model, rows=4)
    step, calls = engine._decoder.step, 0

    def broken(*args: object, **options: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of memory")
        return step(*args, **options)  # type: ignore[arg-type]

    engine._decoder.step = broken  # type: ignore[method-assign]

    async def run() -> list[object]:
        params = SamplingParams(max_new_tokens=9, seed=1)
        turns = (engine.generate(random_ids(i, 9), params, session_id=str(i)) for i in range(3))
        return list(await asyncio.gather(*turns, return_exceptions=True))

    for outcome in asyncio.run(run()):
        assert isinstance(outcome, BoundaryError)
        assert outcome.boundary is Boundary.ENGINE
        assert "out of memory" in str(outcome)
    for sampled in run_episodes(engine, [1, 2, 3]):
        assert_equal_to_transformers(model, sampled)


def test_a_failed_weight_update_is_raised() -> None:
    engine = TorchEngine(make_model(), rows=1)
    other = make_model(hidden_size=64)
    with pytest.raises(BoundaryError, match="size of tensor"):
        asyncio.run(engine.update_weights(other))


def test_finish_says_why_a_turn_ended() -> None:
    engine = TorchEngine(make_model(), rows=1, context=32)

    async def run() -> None:
        every = tuple(range(VOCAB))
        stopped = await engine.generate(
            random_ids(1, 5), SamplingParams(stop_token_ids=every, seed=1), session_id="a"
        )
        assert (stopped.finish, len(stopped.ids)) == ("stop", 1)
        limited = await engine.generate(
            random_ids(1, 5), SamplingParams(max_new_tokens=7, seed=1), session_id="a"
        )
        assert (limited.finish, len(limited.ids)) == ("length", 7)
        full = await engine.generate(random_ids(1, 29), SamplingParams(seed=1), session_id="a")
        assert (full.finish, len(full.ids)) == ("length", 3)
        none = await engine.generate(random_ids(1, 32), SamplingParams(seed=1), session_id="a")
        assert (none.finish, len(none.ids)) == ("length", 0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (np.empty(0, np.int32), "p >= 1"),
        (np.array([1, VOCAB], np.int32), rf"prompt_ids\[1\] is {VOCAB}"),
        (np.array([-1], np.int32), r"prompt_ids\[0\] is -1"),
    ],
)
def test_a_prompt_that_is_none_is_refused(prompt: NDArray[np.int32], message: str) -> None:
    engine = TorchEngine(make_model(), rows=1)
    with pytest.raises(ValueError, match=message):
        asyncio.run(engine.generate(prompt, SamplingParams(seed=1), session_id="s"))


def test_two_turns_of_one_session_at_a_time_are_refused() -> None:
    engine = TorchEngine(make_model(), rows=2)

    async def run() -> None:
        first = asyncio.create_task(
            engine.generate(random_ids(1, 5), SamplingParams(seed=1), session_id="s")
        )
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="under way"):
            await engine.generate(random_ids(1, 5), SamplingParams(seed=1), session_id="s")
        await first

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "dynamic",
        ),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding"),
    ],
)
def test_what_the_engine_can_not_compute_is_refused(changes: dict[str, Any], message: str) -> None:
    model = make_model(**changes)
    with pytest.raises(ConfigError, match=message):
        TorchEngine(model, rows=1)


def test_the_self_check_finds_a_forward_pass_that_differs() -> None:
    model = make_model()
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()
    with pytest.raises(ConfigError, match="differs from transformers"):
        TorchEngine(model, rows=1)


def test_a_context_beyond_the_positions_of_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="256 positions"):
        TorchEngine(make_model(), rows=1, context=257)
