"""A whole GRPO step against TRL's `GRPOTrainer`: same weights, tasks, lengths and loss.

TRL is no dependency. In an environment that has this workspace's packages:

    pip install trl==1.16.0        # with the CPU build of torch already there
    OMP_NUM_THREADS=1 python -m benchmarks.local.against_trl --policy apps/trainers/tau/policy

Both train 8 tau-bench tasks x 8 rollouts a step in the compact view, on the CPU in float32, with
two optimiser steps a rollout, group-normalised rewards, token-mean loss, clip 0.2 / 0.28, no KL, no
group left out, AdamW and gradient clipping at 1. A turn has at most 128 tokens and an episode at
most 8 turns, on both sides. TRL uses transformers' `generate`, its way without vLLM, which is for
GPUs; its gradient checkpointing is switched off, which makes it faster.

What differs: TRL's loop ends at the first message without a call, as the customer of the compact
view does, but never asks that customer; it gives no log-probs of the rollout, so it takes the
first update's for the old ones, where ours compares both.

Measured: CPU seconds of the process per step, one step of each left out as a warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokendelta
import torch
from taubench import Action, Environment, Task
from taubench.prompts import COMPACT_TOOLS, prompt_view
from taubench.splits import family_splits
from taubench.users import UserConfig, compact_user
from turnwise.engine import SamplingParams
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.group import make_groups
from turnwise.ledger import Ledger
from turnwise.local.policy import load_policy
from turnwise.local.update import Updater, UpdateSettings, train_rows
from turnwise.objective import token_weights
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed, run_rollouts

from apps.trainers.tau.episode import run_episode
from apps.trainers.tau.options import TauOptions

PROMPTS = 8
SAMPLES = 8
UPDATES = 2
MAX_NEW_TOKENS = 128
MAX_TURNS = 8
CONTEXT = 1024
OPTIONS = TauOptions(prompt="compact", max_turns=MAX_TURNS, user=UserConfig(strategy="offline"))
SETTINGS = UpdateSettings(lr=3e-4, eps_clip=0.2, eps_clip_high=0.28, adam_beta2=0.98)


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step of one side.

    Attributes:
        cpu_s: CPU seconds of the process.
        wall_s: Wall seconds.
        sampled: Tokens that the policy sampled.
        length: Tokens of all sequences, prompts included.
        reward: Mean over the rollouts.
        rollout_s: Of `wall_s`, those of the rollouts.
    """

    cpu_s: float
    wall_s: float
    sampled: int
    length: int
    reward: float
    rollout_s: float


class Turnwise:
    """Our side: the pieces of `turnwise.local.trainer` with every group kept."""

    def __init__(self, folder: str, tasks: Sequence[Task]) -> None:
        loaded = load_policy(folder)
        self._tasks = tasks
        profile = tokendelta.Profile.from_tokenizer(
            loaded.tokenizer, tools=OPTIONS.view.tools("retail")
        )
        self._model = loaded.model
        self._engine = TorchEngine(loaded.model, rows=PROMPTS * SAMPLES, context=CONTEXT)
        self._policy = Policy(
            engine=self._engine,
            profile=profile,
            max_context_tokens=CONTEXT,
            sampling=SamplingParams(max_new_tokens=MAX_NEW_TOKENS),
        )
        self._updater = Updater(loaded.model, SETTINGS)

    def steps(self, count: int) -> list[StepCost]:
        """Runs `count` steps."""
        return asyncio.run(self._steps(count))

    async def _steps(self, count: int) -> list[StepCost]:
        costs = [await self._step(step) for step in range(count)]
        await self._engine.close()
        return costs

    async def _step(self, step: int) -> StepCost:
        cpu, wall = time.process_time(), time.perf_counter()
        rollouts = [
            Rollout(
                task=task,
                task_id=task.id,
                rollout_id=f"{step}/{place}/{member}",
                group_id=f"{step}/{place}",
                seed=derive_seed("against_trl", step, place, member),
            )
            for place, task in enumerate(self._tasks)
            for member in range(SAMPLES)
        ]
        await self._engine.clear()
        episodes = await run_rollouts(
            rollouts, self._play, ledger=Ledger(), concurrency=len(rollouts)
        )
        rollout_s = time.perf_counter() - wall
        groups = make_groups(episodes, require_spread=False)
        scored = [
            (episode, float(advantage))
            for group in groups
            for episode, advantage in zip(group.episodes, group.advantages_G, strict=True)
        ]
        random.Random(step).shuffle(scored)
        for part in range(UPDATES):
            self._update(scored[part::UPDATES])
        await self._engine.update_weights(self._model)
        return StepCost(
            time.process_time() - cpu,
            time.perf_counter() - wall,
            sum(segment.trained_tokens for e in episodes for segment in e.segments),
            sum(len(segment.ids) for e in episodes for segment in e.segments),
            float(np.mean([episode.score for episode in episodes])),
            rollout_s,
        )

    async def _play(self, rollout: Rollout[Task]) -> Episode:
        return await run_episode(rollout, self._policy, OPTIONS, make_user=compact_user)

    def _update(self, scored: Sequence[tuple[Episode, float]]) -> None:
        samples = [segment for episode, _ in scored for segment in episode.segments]
        weights = token_weights(
            [sample.trained_tokens for sample in samples],
            [episode.rollout_id for episode, _ in scored for _ in episode.segments],
            "global-token-mean",
        )
        advantages = [advantage for episode, advantage in scored for _ in episode.segments]
        self._updater.update(train_rows(samples, advantages, weights, max_tokens=8192))


class ToolEnvironment:
    """TRL's side of a task: public methods are the tools of the compact view."""

    def reset(self, task: int, **row: Any) -> None:
        self._environment = Environment(family_splits().train[task])
        self._observe = prompt_view("compact").observation

    def get_reward(self) -> float:
        return self._environment.score().reward

    def _call(self, tool: str, **arguments: Any) -> str:
        result = self._environment.step(Action(tool, arguments))
        return self._observe(tool, result.observation)

    def find_user_id_by_email(self, email: str) -> str:
        """Finds a customer.

        Args:
            email: The customer's address.
        """
        return self._call("find_user_id_by_email", email=email)

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Finds a customer.

        Args:
            first_name: First name.
            last_name: Last name.
            zip: Zip code.
        """
        return self._call(
            "find_user_id_by_name_zip", first_name=first_name, last_name=last_name, zip=zip
        )

    def get_order_details(self, order_id: str) -> str:
        """Shows an order.

        Args:
            order_id: With its '#'.
        """
        return self._call("get_order_details", order_id=order_id)

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        """Cancels an order.

        Args:
            order_id: With its '#'.
            reason: One of two.
        """
        return self._call("cancel_pending_order", order_id=order_id, reason=reason)

    def return_delivered_order_items(
        self, order_id: str, item_ids: list[str], payment_method_id: str
    ) -> str:
        """Returns items.

        Args:
            order_id: With its '#'.
            item_ids: The items.
            payment_method_id: Where the refund goes.
        """
        return self._call(
            "return_delivered_order_items",
            order_id=order_id,
            item_ids=item_ids,
            payment_method_id=payment_method_id,
        )


def grpo_config(
    output: str,
    *,
    device: str,
    steps: int,
    batch: int,
    rows: int,
    samples: int,
    lr: float,
    **own: Any,
) -> Any:
    """TRL's `GRPOConfig` for the loss, the updates a step and the optimiser of `SETTINGS`.

    Args:
        output: A folder, which stays empty.
        device: `cpu` or `cuda`.
        steps: Rollouts, each with `UPDATES` optimiser steps.
        batch: Rollouts of a step, a multiple of `rows * UPDATES`.
        rows: Rollouts of a micro-batch.
        samples: Rollouts of a prompt.
        lr: Learning rate.
        own: What a benchmark sets beside.
    """
    from trl import GRPOConfig  # type: ignore[import-not-found]

    return GRPOConfig(
        output_dir=output,
        use_cpu=device == "cpu",
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        max_steps=steps * UPDATES,
        num_generations=samples,
        per_device_train_batch_size=rows,
        steps_per_generation=batch // rows,
        gradient_accumulation_steps=batch // rows // UPDATES,
        temperature=1.0,
        loss_type="dapo",
        epsilon=SETTINGS.eps_clip,
        epsilon_high=SETTINGS.eps_clip_high,
        beta=0.0,
        scale_rewards="group",
        learning_rate=lr,
        lr_scheduler_type="constant",
        adam_beta1=SETTINGS.adam_beta1,
        adam_beta2=SETTINGS.adam_beta2,
        weight_decay=SETTINGS.weight_decay,
        max_grad_norm=SETTINGS.clip_grad,
        shuffle_dataset=False,
        seed=0,
        **{"bf16": False, **own},
    )


def trl_steps(
    folder: str, tasks: Sequence[Task], count: int, device: str = "cpu"
) -> list[StepCost]:
    """Runs `count` steps of `GRPOTrainer` on the same tasks."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import TrainerCallback
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen3_template  # type: ignore[import-not-found]

    loaded = load_policy(folder, device=device)
    loaded.tokenizer.response_template = qwen3_template
    system = prompt_view("compact").system("retail")
    rows = [
        {
            "prompt": [
                {"role": "system", "content": system},
                {"role": "user", "content": asyncio.run(compact_user().reset(task))},
            ],
            "task": index,
        }
        for index, task in enumerate(tasks)
    ]
    costs: list[StepCost] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *args: Any, **options: Any) -> None:
            self.cpu, self.wall = time.process_time(), time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            if state.global_step % UPDATES:
                return
            cpu, wall = time.process_time(), time.perf_counter()
            costs.append(StepCost(cpu - self.cpu, wall - self.wall, *trainer.measured))
            self.cpu, self.wall = time.process_time(), time.perf_counter()

    class Measured(GRPOTrainer):  # type: ignore[misc]
        """Notes what a rollout held."""

        measured = (0, 0, 0.0, 0.0)
        rollout_s = 0.0

        def _generate(self, *args: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            made = super()._generate(*args, **options)
            self.rollout_s = time.perf_counter() - begun
            return made

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            sampled = int((output["completion_mask"] * output["tool_mask"]).sum())
            length = int(output["completion_mask"].sum() + output["prompt_mask"].sum())
            rewards = [environment.get_reward() for environment in self.environments]
            self.measured = (sampled, length, float(np.mean(rewards)), self.rollout_s)
            return output

    batch = len(tasks) * SAMPLES
    # A CPU gains nothing from more rows at once, a GPU does.
    rows_at_once = 8 if device == "cpu" else min(64, batch // UPDATES)
    with tempfile.TemporaryDirectory() as output:
        trainer = Measured(
            model=loaded.model,
            processing_class=loaded.tokenizer,
            environment_factory=ToolEnvironment,
            train_dataset=Dataset.from_list(rows),
            callbacks=[Watch()],
            args=grpo_config(
                output,
                device=device,
                steps=count,
                batch=batch,
                rows=rows_at_once,
                samples=SAMPLES,
                lr=SETTINGS.lr,
                max_completion_length=CONTEXT - 400,
                max_tool_calling_iterations=MAX_TURNS - 1,
                generation_kwargs={"max_new_tokens": MAX_NEW_TOKENS},
            ),
        )
        # Tools are taken in alphabetical order; the policy knows them in the view's.
        trainer._env_tools[None].sort(key=lambda tool: COMPACT_TOOLS.index(tool.__name__))
        trainer.train()
    return costs


def report(name: str, costs: Sequence[StepCost]) -> float:
    """Prints the steps after the first and returns their mean CPU seconds."""
    kept = costs[1:]
    cpu_s = float(np.mean([cost.cpu_s for cost in kept]))
    print(
        f"{name:9} {cpu_s:6.2f} CPU s a step (least {min(cost.cpu_s for cost in kept):.2f}), "
        f"{np.mean([cost.wall_s for cost in kept]):6.2f} s wall, "
        f"{np.mean([cost.rollout_s for cost in kept]):6.2f} s of it rollouts, "
        f"{np.mean([cost.sampled for cost in kept]):6.0f} tokens sampled, "
        f"{np.mean([cost.length for cost in kept]):6.0f} trained on or read, "
        f"reward {np.mean([cost.reward for cost in kept]):.2f}"
    )
    return cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", required=True, help="folder with weights and tokenizer")
    parser.add_argument("--steps", type=int, default=4, help="steps of each side, 1 is a warm-up")
    parser.add_argument("--only", choices=("turnwise", "trl"), help="one side alone")
    parser.add_argument("--device", default="cpu", help="of TRL's side; ours is the CPU's")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="tasks a step")
    parser.add_argument("--json", type=Path, help="file of the steps of TRL's side")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2")
    torch.manual_seed(0)
    tasks = family_splits().train[: options.prompts]
    seconds = {}
    if options.only != "trl":
        seconds["turnwise"] = report(
            "turnwise", Turnwise(options.policy, tasks).steps(options.steps)
        )
    if options.only != "turnwise":
        steps = trl_steps(options.policy, tasks, options.steps, options.device)
        seconds["trl"] = report("trl", steps)
        if options.json:
            options.json.write_text(json.dumps([asdict(cost) for cost in steps], indent=1))
    if len(seconds) == 2:
        print(f"trl takes {seconds['trl'] / seconds['turnwise']:.1f} times the CPU time")


if __name__ == "__main__":
    main()
