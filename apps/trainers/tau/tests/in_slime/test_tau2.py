"""A task of τ²-bench through slime's hooks: the same ids and reward as on the local backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokendelta
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.desk import scores
from taubench.users import UserConfig
from turnwise.engine import SamplingParams
from turnwise.engine.scripted import Reply, ScriptedEngine, reply
from turnwise.method import Services, play
from turnwise.policy import Policy
from turnwise.rollout import Rollout
from turnwise.slime import generate
from turnwise.testing import call
from turnwise.testing.servers import Call, FakeSGLang, Turn

from apps.trainers.tau.method import TauMethod
from apps.trainers.tau.options import TauOptions

LIMIT = 1024
PARAMS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": LIMIT}


@pytest.mark.parametrize("env", ["tau2-telecom-solo", "tau2-airline"])
async def test_the_reference_is_the_same_episode_on_both_backends(
    env: str,
    args: Callable[..., Any],
    server: FakeSGLang,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"env": env, "prompt": "full", "max_turns": None}
    method = TauMethod(TauOptions(**options, user=UserConfig(strategy="offline")))
    row = next(one for one in method.rows("test") if _acts(method.task(one)))
    job = method.task(row)
    turns = [call(one.name, **one.arguments) for one in job.task.criteria.actions]
    turns += [call("done")] if job.solo else ["It is done. Goodbye."] * 8
    ids = [[*tokenizer.encode(turn), tokenizer.eos_token_id] for turn in turns]

    async def answer(asked: Call) -> Turn:
        said = ids[asked.turn]
        return Turn(said, scores(said))

    monkeypatch.setattr(server, "_answer", answer)
    sample = Sample(prompt=int(str(row.prompt)), metadata=dict(row.metadata))
    sample.index = 0
    got = await generate(args(turnwise=options, rollout_max_context_len=400_000), sample, PARAMS)

    replies: list[Reply] = [reply(said, logprobs=scores(said)) for said in ids]
    policy = Policy(
        engine=ScriptedEngine(replies),
        profile=tokendelta.Profile.from_tokenizer(tokenizer),
        max_context_tokens=400_000,
        sampling=SamplingParams(max_new_tokens=LIMIT),
    )
    await method.open(Services(environ={}))
    episode = await play(method, Rollout(job, row.id, "r", "g", seed=0), policy)
    (segment,) = episode.segments
    assert got.tokens == segment.ids.tolist()
    assert got.loss_mask == segment.loss_mask.tolist()
    logprobs = np.nan_to_num(segment.logprobs, nan=0.0)
    assert np.array_equal(np.float32(got.rollout_log_probs), logprobs)
    assert got.reward == episode.score == 1.0


def _acts(job: Any) -> bool:
    """Whether the agent's calls are all that the task needs, and not a hand-over."""
    actions = job.task.criteria.actions or ()
    names = [one.name for one in actions]
    basis = set(job.task.criteria.basis) <= {"ENV_ASSERTION", "DB", "COMMUNICATE"}
    return basis and 1 <= len(names) <= 5 and not job.task.criteria.communicate
