"""A served engine against a server whose weights really change."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from turnwise.command import PreflightError, StopRun
from turnwise.engine import Completion, SamplingParams
from turnwise.engine.served import Launch, ServedEngine
from turnwise.engine.server import free_port
from turnwise.episode import Boundary, BoundaryError
from turnwise.testing.conformance import CLAIMS, Claim, Subject
from turnwise.testing.policy_server import Faults, PolicyServer
from turnwise.testing.servers import edit

PROMPT = np.array([5, 6, 7, 8], dtype=np.int32)
PARAMS = SamplingParams(max_new_tokens=12)
CONTEXT = 96


def make(url: str | None, model: Any, policy: Path, **options: Any) -> ServedEngine:
    return ServedEngine(
        options.pop("launch", None),
        url=url,
        weights=lambda found: found.named_parameters(),
        model=model,
        policy=lambda folder: policy,
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_context_tokens=CONTEXT,
        **options,
    )


@asynccontextmanager
async def opened(model: Any, policy: Path, faults: Faults | None = None, **options: Any) -> Any:
    async with PolicyServer(policy, context=CONTEXT + 16, faults=faults) as server:
        engine = make(server.url, model, policy, **options)
        await engine.open(policy.parent)
        yield engine, server
        await engine.close()


async def ask(engine: ServedEngine, session: str = "s") -> Completion:
    async with asyncio.timeout(60):
        return await engine.generate(PROMPT, PARAMS, session_id=session)


def difference(model: Any, turn: Completion) -> float:
    """Largest |engine - model| log-prob of a turn."""
    ids = torch.tensor([[*PROMPT.tolist(), *turn.ids.tolist()]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
    own = logits.log_softmax(-1).gather(1, ids[0, len(PROMPT) :, None])[:, 0]
    return float((own - torch.from_numpy(turn.logprobs)).abs().max())


def other(model: Any, seed: int = 1) -> Any:
    changed = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return changed


@pytest.mark.parametrize("refuse_memory", [False, True], ids=["through memory", "by disk"])
async def test_after_an_update_the_server_samples_from_the_new_weights(
    model: Any, policy: Path, refuse_memory: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    second = other(model)
    async with opened(model, policy, Faults(refuse_memory=refuse_memory)) as (engine, server):
        before = await ask(engine)
        await engine.update_weights(second)
        after = await ask(engine)
        await engine.update_weights(model)
        assert (before.weight_version, after.weight_version) == (0, 1)
        assert (engine.weight_version, engine.failure) == (2, "")
        # The way that was found is kept.
        assert len([one for one in server.updates if "model_path" in one]) == 3 * refuse_memory
    assert difference(model, before) < 1e-4 and difference(second, after) < 1e-4
    assert difference(second, before) > 0.1 and difference(model, after) > 0.1
    assert ("weights go by disk from now on" in capsys.readouterr().err) == refuse_memory
    assert not list(policy.parent.glob(".weights*"))


async def test_a_forgotten_update_shows_in_the_log_probs(model: Any, policy: Path) -> None:
    second = other(model)
    async with opened(model, policy, Faults(forget=(1,))) as (engine, _):
        await engine.update_weights(second)
        turn = await ask(engine)
    assert turn.weight_version == 1
    assert difference(second, turn) > 0.1


async def test_a_server_that_runs_already_is_given_the_policys_weights(
    model: Any, policy: Path
) -> None:
    second = other(model)
    async with opened(second, policy) as (engine, _):
        assert difference(second, await ask(engine)) < 1e-4


async def test_an_answer_of_other_weights_than_were_sent_is_refused(
    model: Any, policy: Path
) -> None:
    async with opened(model, policy) as (engine, server):
        server.weight_version = "7"
        with pytest.raises(BoundaryError, match="with weights 7, it was sent 0") as caught:
            await ask(engine)
        assert caught.value.boundary is Boundary.ENGINE


async def test_a_server_without_sglangs_number_is_told_of(
    model: Any, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(model, policy, Faults(version="0.4.0")):
        pass
    assert "SGLang 0.4.0; this was tried with 0.5.15" in capsys.readouterr().err


async def test_a_server_that_takes_no_weights_ends_the_run_after_the_step(
    model: Any, policy: Path
) -> None:
    async with opened(model, policy) as (engine, server):
        object.__setattr__(server.faults, "refuse_weights", True)
        await engine.update_weights(other(model))
        assert "did not take new weights" in engine.failure and "out of memory" in engine.failure
        with pytest.raises(BoundaryError, match="out of memory"):
            await ask(engine)
        with pytest.raises(StopRun, match="did not take new weights"):
            await engine.clear()


async def test_a_server_that_takes_none_at_the_start_is_a_failed_preflight(
    model: Any, policy: Path
) -> None:
    async with PolicyServer(policy, context=64, faults=Faults(refuse_weights=True)) as server:
        engine = make(server.url, model, policy)
        with pytest.raises(PreflightError, match=f"--engine-url {server.url}: .*out of memory"):
            await engine.open(policy.parent)
        await engine.close()


async def test_nobody_at_the_url_is_a_failed_preflight(model: Any, policy: Path) -> None:
    engine = make(f"http://127.0.0.1:{free_port()}", model, policy)
    with pytest.raises(PreflightError, match="--engine-url http://127.0.0.1"):
        await engine.open(policy.parent)
    await engine.close()


async def test_memory_is_given_back_and_weights_follow_when_it_is_taken_again(
    model: Any, policy: Path
) -> None:
    second = other(model)
    async with opened(model, policy) as (engine, server):
        await ask(engine)
        await engine.release_memory()
        assert server.released and server.flushes == 1
        await engine.resume_memory()
        await engine.update_weights(second)
        assert difference(second, await ask(engine)) < 1e-4


async def test_a_cleared_server_has_no_prefix(model: Any, policy: Path) -> None:
    async with opened(model, policy) as (engine, server):
        await ask(engine)
        await engine.clear()
        assert server.flushes == 1


async def test_totals_are_of_whole_answers(model: Any, policy: Path) -> None:
    async with opened(model, policy) as (engine, server):
        turns = [await ask(engine, name) for name in "ab"]
        server.misbehave = lambda call: edit(lambda answer: {**answer, "meta_info": {}})
        with pytest.raises(BoundaryError):
            await ask(engine)
        stats = engine.stats
    assert stats.sampled_tokens == sum(len(turn.ids) for turn in turns)
    assert stats.prompt_tokens == 2 * len(PROMPT) and stats.busy_s > 0


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., Launch]:
    """A server of aiohttp alone, which answers until it dies: quick to start."""

    def made(die_after: str = "0") -> Launch:
        folder = tmp_path / "starts"
        folder.mkdir(exist_ok=True)
        code = Path(__file__).with_name("mortal.py")
        return Launch(
            words=lambda _, port: [sys.executable, str(code), str(port), str(folder), die_after],
            port=free_port,
            start_s=120.0,
        )

    return made


async def test_a_server_that_dies_is_started_once_more_with_the_last_weights(
    launch: Callable[..., Launch], model: Any, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = make(None, model, policy, launch=launch("2"))
    await engine.open(policy.parent)
    assert (await ask(engine)).weight_version == 0
    await engine.update_weights(model)
    with pytest.raises(BoundaryError) as caught:
        await ask(engine)
    assert caught.value.boundary is Boundary.ENGINE
    turns = await asyncio.gather(*(ask(engine, str(n)) for n in range(8)))
    assert {turn.weight_version for turn in turns} == {1}
    said = capsys.readouterr().err
    assert "started again: the server ended with exit code 3" in said and "I die" in said
    await engine.close()
    assert len((policy.parent / "starts" / "starts").read_text().splitlines()) == 2


async def test_a_server_that_dies_twice_is_not_started_again(
    launch: Callable[..., Launch], model: Any, policy: Path
) -> None:
    engine = make(None, model, policy, launch=launch("1,1"))
    await engine.open(policy.parent)
    for _ in range(2):
        with pytest.raises(BoundaryError):
            await ask(engine)
    with pytest.raises(StopRun, match="ended for the second time(.|\n)*I die"):
        await engine.clear()
    with pytest.raises(BoundaryError, match="ended for the second time"):
        await ask(engine)
    await engine.close()


async def test_a_server_that_dies_of_new_weights_gets_them_after_its_restart(
    launch: Callable[..., Launch], model: Any, policy: Path
) -> None:
    engine = make(None, model, policy, launch=launch("weights"))
    await engine.open(policy.parent)
    await engine.update_weights(model)
    assert engine.failure == ""
    assert (await ask(engine)).weight_version == 1
    await engine.close()


def subject(model: Any, policy: Path) -> Subject:
    @asynccontextmanager
    async def engine() -> Any:
        async with opened(model, policy) as (found, _):
            yield found

    stops = tuple(range(2, 64, 3))
    return Subject(make=engine, prompt=PROMPT, stop_ids=stops, context=CONTEXT)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
async def test_a_served_engine_keeps_the_contract(claim: Claim, model: Any, policy: Path) -> None:
    await claim(subject(model, policy))
