"""What every engine keeps of `turnwise.engine.Engine`, as claims that an engine is put to.

    @pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
    async def test_my_engine_keeps_the_contract(claim: Claim) -> None:
        await claim(Subject(make=my_engine, prompt=ids, stop_ids=(2,), context=256))

A claim makes an engine, asks it, and asserts; it says nothing of which tokens come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from turnwise.engine import Completion, Engine, SamplingParams
from turnwise.episode import Boundary, BoundaryError

DEADLINE_S = 60.0
"""For each turn; an engine that misses it does not answer at all."""
AT_ONCE = 12

MakeEngine = Callable[[], AbstractAsyncContextManager[Engine]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The engine under test.

    Attributes:
        make: An engine that is ready and closed at the end of the block.
        prompt: int32[n], a prompt after which it samples a turn of at least two tokens that ends
            with one of
        stop_ids: the stop tokens of its turns.
        context: Tokens of prompt and turn together that it was made with; None if it has no bound.
        make_slow: An engine whose turn goes on until it is closed; None where it can't be had.
        params: How turns are sampled; the claims set lengths, stop tokens and seeds.
    """

    make: MakeEngine
    prompt: NDArray[np.int32]
    stop_ids: tuple[int, ...]
    context: int | None = None
    make_slow: MakeEngine | None = None
    params: SamplingParams = field(default_factory=SamplingParams)


Claim = Callable[[Subject], Awaitable[None]]


async def a_turn_has_a_log_prob_for_every_token(subject: Subject) -> None:
    async with subject.make() as engine:
        turn = await _ask(engine, subject)
    assert turn.ids.dtype == np.int32 and turn.logprobs.dtype == np.float32
    assert turn.ids.shape == turn.logprobs.shape and turn.ids.ndim == 1 and turn.ids.size
    assert (turn.ids >= 0).all()
    assert np.isfinite(turn.logprobs).all() and (turn.logprobs <= 0).all()
    assert turn.cached_tokens >= 0 and turn.weight_version >= 0


async def a_stop_token_ends_the_turn_and_is_returned(subject: Subject) -> None:
    async with subject.make() as engine:
        turn = await _ask(engine, subject)
    assert turn.finish == "stop"
    stops = np.isin(turn.ids, subject.stop_ids)
    assert stops[-1] and not stops[:-1].any()


async def a_turn_that_is_too_long_is_cut_and_says_so(subject: Subject) -> None:
    async with subject.make() as engine:
        turn = await _ask(engine, subject, max_new_tokens=1, stop_token_ids=())
    assert (turn.ids.size, turn.finish) == (1, "length")


async def a_prompt_without_room_gives_an_empty_turn(subject: Subject) -> None:
    if subject.context is None:
        return
    full = np.resize(subject.prompt, subject.context).astype(np.int32)
    async with subject.make() as engine:
        turn = await _ask(engine, replace(subject, prompt=full))
    assert (turn.ids.size, turn.logprobs.size, turn.finish) == (0, 0, "length")


async def the_prompt_is_left_as_it_is(subject: Subject) -> None:
    prompt = subject.prompt.copy()
    prompt.flags.writeable = False
    async with subject.make() as engine:
        await _ask(engine, replace(subject, prompt=prompt))
    assert np.array_equal(prompt, subject.prompt)


async def turns_at_once_do_not_mix(subject: Subject) -> None:
    """Each is what it is alone, whatever else is under way."""
    async with subject.make() as engine:
        alone = [await _ask(engine, subject, f"alone-{n}", seed=n) for n in range(3)]
    async with subject.make() as engine:
        together = await asyncio.gather(
            *(_ask(engine, subject, f"together-{n}", seed=n) for n in range(AT_ONCE))
        )
    for one, other in zip(alone, together, strict=False):
        assert np.array_equal(one.ids, other.ids)
        assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)


async def a_session_goes_on_after_its_turn(subject: Subject) -> None:
    async with subject.make() as engine:
        first = await _ask(engine, subject, "talk")
        longer = np.concatenate([subject.prompt, first.ids, subject.prompt]).astype(np.int32)
        if subject.context is None or len(longer) + 2 < subject.context:
            second = await _ask(engine, replace(subject, prompt=longer), "talk", max_new_tokens=2)
            assert 0 < second.ids.size <= 2
            assert second.cached_tokens <= len(longer)


async def a_session_may_be_released_at_any_time(subject: Subject) -> None:
    async with subject.make() as engine:
        await engine.release("never seen")
        await _ask(engine, subject, "seen")
        await engine.release("seen")
        await engine.release("seen")
        assert (await _ask(engine, subject, "seen")).ids.size


async def a_closed_engine_is_a_failure_of_the_engine(subject: Subject) -> None:
    async with subject.make() as engine:
        await engine.close()
        try:
            turn = await _ask(engine, subject)
        except BoundaryError as error:
            assert error.boundary is Boundary.ENGINE
        else:
            raise AssertionError(f"a closed engine gave {turn}")


async def closing_gives_turns_under_way_back_unfinished(subject: Subject) -> None:
    if subject.make_slow is None:
        return
    async with subject.make_slow() as engine:
        under_way = [
            asyncio.create_task(
                _ask(engine, subject, f"s{n}", max_new_tokens=100_000, stop_token_ids=())
            )
            for n in range(3)
        ]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in under_way), "the slow engine is not slow"
        await engine.close()
        turns = await asyncio.gather(*under_way)
    assert [turn.finish for turn in turns] == ["abort"] * 3
    assert all(turn.ids.size == turn.logprobs.size for turn in turns)


CLAIMS: tuple[Claim, ...] = (
    a_turn_has_a_log_prob_for_every_token,
    a_stop_token_ends_the_turn_and_is_returned,
    a_turn_that_is_too_long_is_cut_and_says_so,
    a_prompt_without_room_gives_an_empty_turn,
    the_prompt_is_left_as_it_is,
    turns_at_once_do_not_mix,
    a_session_goes_on_after_its_turn,
    a_session_may_be_released_at_any_time,
    a_closed_engine_is_a_failure_of_the_engine,
    closing_gives_turns_under_way_back_unfinished,
)


async def _ask(
    engine: Engine,
    subject: Subject,
    session: str = "session",
    *,
    max_new_tokens: int = 64,
    stop_token_ids: tuple[int, ...] | None = None,
    seed: int = 7,
) -> Completion:
    params = replace(
        subject.params,
        max_new_tokens=max_new_tokens,
        stop_token_ids=subject.stop_ids if stop_token_ids is None else stop_token_ids,
        seed=seed,
    )
    async with asyncio.timeout(DEADLINE_S):
        return await engine.generate(subject.prompt, params, session_id=session)
