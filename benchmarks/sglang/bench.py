"""What all parts of the measurement share."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import tokendelta
import torch
from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.contract import make_args
from taubench import Task
from taubench.prompts import prompt_view
from taubench.splits import family_splits
from turnwise.engine import Engine, SamplingParams
from turnwise.engine.http import HttpPool
from turnwise.local.policy import load_policy
from turnwise.policy import Policy

from benchmarks.sglang.reference import Scored

SHIPPED = Path(__file__).parents[2] / "apps/trainers/tau/policy"
CONTEXT = 1024
MAX_NEW_TOKENS = 128
"""Both as the local trainer has them."""
GROUP = 8


@dataclass(frozen=True)
class Bench:
    """A running server, and the policy that it serves.

    Attributes:
        url: Of the server.
        pool: Connections to it.
        folder: For what the parts write.
        tokenizer: Of the policy.
        profile: The audited template with the tools of the compact prompt.
        models: The policy in transformers on the device, in float32 and in the server's dtype.
        dtype: The server's.
        tasks: Training tasks of the family, one for each group of `GROUP` episodes.
    """

    url: str
    pool: HttpPool
    folder: Path
    tokenizer: Any
    profile: tokendelta.Profile
    models: dict[str, Any]
    dtype: str
    tasks: Sequence[Task]

    def policy(self, engine: Engine, *, temperature: float = 1.0) -> Policy:
        """How the episodes are sampled, by `engine`."""
        return Policy(
            engine=engine,
            profile=self.profile,
            max_context_tokens=CONTEXT,
            sampling=SamplingParams(temperature=temperature, max_new_tokens=MAX_NEW_TOKENS),
        )

    def args(self, **changes: Any) -> Any:
        """slime's arguments for a rollout through the hooks."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        return make_args(
            hf_checkpoint=str(SHIPPED),
            turnwise={
                "method": "tau",
                "prompt": "compact",
                "user": {"strategy": "offline"},
            },
            sglang_router_ip=host,
            sglang_router_port=int(port),
            n_samples_per_prompt=GROUP,
            rollout_max_context_len=CONTEXT,
            rollout_max_response_len=MAX_NEW_TOKENS,
            **changes,
        )

    def groups(self) -> list[list[Any]]:
        """slime's samples, as its data source gives them."""
        return [
            [
                Sample(
                    prompt=task.index,
                    index=number * GROUP + at,
                    group_index=number,
                    metadata={"env": task.domain, "task_split": task.split},
                )
                for at in range(GROUP)
            ]
            for number, task in enumerate(self.tasks)
        ]

    async def flush(self) -> bool:
        """Empties the prefix cache; false where the server refuses, as with requests under way."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/flush_cache") as answer,
        ):
            await answer.read()
            return answer.status == 200


def make_bench(url: str, folder: Path, *, episodes: int, dtype: str, device: str) -> Bench:
    """Loads the shipped policy and its tasks."""
    loaded = load_policy(str(SHIPPED))
    models = {"float32": loaded.model.to(device).eval()}
    models[dtype] = copy.deepcopy(loaded.model).to(getattr(torch, dtype))
    tools = prompt_view("compact").tools("retail")
    return Bench(
        url=url,
        pool=HttpPool(),
        folder=folder,
        tokenizer=loaded.tokenizer,
        profile=tokendelta.Profile.from_tokenizer(loaded.tokenizer, tools=tools),
        models=models,
        dtype=dtype,
        tasks=family_splits().train[: episodes // GROUP],
    )


def scored(sample: Any) -> Scored:
    """The trained tokens of a sample of slime."""
    start = len(sample.tokens) - sample.response_length
    at = [place for place, trained in enumerate(sample.loss_mask) if trained]
    return Scored(
        ids=sample.tokens,
        places=[start + place for place in at],
        logprobs=[sample.rollout_log_probs[place] for place in at],
    )
