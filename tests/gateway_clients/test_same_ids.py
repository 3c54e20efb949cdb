"""An agent behind the gateway samples what the native method samples."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from taubench import Task
from taubench.splits import family_splits
from taubench.users import UserConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.gateway.method import HarnessOptions
from turnwise.method import Method, Services, play
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.tau.method import TauMethod
from apps.trainers.tau.options import TauOptions
from examples.tau_gateway import TauGateway

FOLDER = Path(__file__).parents[2] / "apps/trainers/tau/policy"


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model, tokendelta.Profile.from_tokenizer(tokenizer)


async def played(method: Method[Any, Task], loaded: tuple[Any, Any]) -> list[Episode]:
    """Twelve tasks, one after another, so that both methods meet the same batches."""
    model, profile = loaded
    engine = TorchEngine(model, rows=1, context=1024)
    policy = Policy(
        engine=engine,
        profile=profile,
        max_context_tokens=1024,
        sampling=SamplingParams(max_new_tokens=128),
    )
    await method.open(Services())
    episodes = []
    for task in family_splits().train[:12]:
        seed = derive_seed(3, task.id)
        rollout = Rollout(
            task=task, task_id=task.id, rollout_id=task.id, group_id=task.id, seed=seed
        )
        episodes.append(await play(method, rollout, policy))
    await method.close()
    await engine.close()
    return episodes


@pytest.fixture(scope="module")
def native(loaded: tuple[Any, Any]) -> list[Episode]:
    options = TauOptions(prompt="compact", user=UserConfig(strategy="offline"))
    return asyncio.run(played(TauMethod(options), loaded))


class Elsewhere(TauGateway):
    """Whose agent runs in another process."""

    def describe(self, task: Task) -> int:
        return task.index


@pytest.fixture(scope="module")
def agents(python: Path) -> Iterator[str]:
    """The URL of the examples' agents, run by the interpreter that has their libraries."""
    environment = {
        "PATH": os.environ["PATH"],
        "NO_PROXY": "*",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    with subprocess.Popen(
        [python, Path(__file__).with_name("serve.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        json.dump([os.path.abspath(one) for one in sys.path], process.stdin)
        process.stdin.close()
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.mark.parametrize("module", [None, "tau_openai_agents", "tau_anthropic"])
async def test_the_same_seed_samples_the_same_ids_as_the_native_method(
    module: str | None,
    loaded: tuple[Any, Any],
    native: list[Episode],
    request: pytest.FixtureRequest,
) -> None:
    options = HarnessOptions(max_turns=8)
    method = TauGateway(options)
    if module is not None:
        url = f"{request.getfixturevalue('agents')}/{module}"
        method = Elsewhere(options.model_copy(update={"callback_url": url}))
    through = await played(method, loaded)
    for one, other in zip(native, through, strict=True):
        assert (one.ending, one.score) == (other.ending, other.score)
        (expected,), (found,) = one.segments, other.segments
        assert np.array_equal(expected.ids, found.ids)
        assert np.array_equal(expected.loss_mask, found.loss_mask)
        assert np.array_equal(expected.logprobs, found.logprobs, equal_nan=True)
        assert other.metrics["replays"] == other.metrics["forks"] == 0
    assert len({episode.score for episode in native}) == 2
    assert sum(episode.metrics["turns"] for episode in native) >= 24
