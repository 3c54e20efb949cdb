"""One training step and one evaluation of the embedded backend.

A step, as in `turnwise.group` and `turnwise.objective`:
1. take the step's prompts from a seeded order, and sample every rollout of every prompt at once;
2. check the ledger: each rollout has an ending;
3. group by prompt; leave out groups with too few scored members or no spread, counted by reason;
4. deal the kept rollouts into `num_steps_per_rollout` parts, all segments of a rollout together;
5. compare engine and trainer on every token that is trained on; then one optimiser step per part,
   with the engine's own log-probs as the old ones;
6. copy the weights into the engine.

Everything random is drawn from seeds that name the step, so that step k of a resumed run is step
k of the unbroken one, bit for bit, on the same machine with the same thread count.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from turnwise.command import RunError
from turnwise.episode import Episode
from turnwise.group import Group, make_groups, scored_by_group
from turnwise.ledger import Ledger
from turnwise.local.experiment import Experiment, objective
from turnwise.local.lag import LagMonitor
from turnwise.local.options import TrainOptions
from turnwise.local.update import (
    TrainRow,
    UpdateMetrics,
    Updater,
    max_difference,
    train_rows,
    trained_logprobs,
)
from turnwise.method import play
from turnwise.objective import token_weights
from turnwise.rollout import Rollout, derive_seed, run_rollouts
from turnwise.stopping import logprobs_differ
from turnwise.trials import Estimate, Trial, by_task, mean_score

TaskT = TypeVar("TaskT")
Table = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A training step: what it did, and how long each stage took in seconds."""

    episodes: list[Episode]
    groups: list[Group]
    ledger: Ledger
    updates: list[UpdateMetrics]
    max_logprob_diff: float
    rollout_s: float
    train_s: float
    sampled_tokens: int
    lag: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """An evaluation: scores by task and trial, and the mean with its clustered error."""

    episodes: list[Episode]
    table: Table
    estimate: Estimate
    ledger: Ledger
    eval_s: float


class Trainer(Generic[TaskT]):
    """Owns the policy's weights, its optimiser and the engine that samples from it."""

    def __init__(self, options: TrainOptions, experiment: Experiment[TaskT], model: Any) -> None:
        self.options, self.experiment, self.model = options, experiment, model
        self.updater = Updater(model, options.update_settings())
        self._reference = copy.deepcopy(model) if options.use_kl_loss else None
        self._objective = objective(options, experiment.method)
        self.engine = experiment.engine

    async def train_step(self, step: int) -> StepResult:
        """Runs training step `step`, counted from 1.

        Raises:
            RunError: if engine and trainer disagree on a sampled token's log-prob, or a loss is
                not finite.
        """
        started = time.perf_counter()
        ledger = Ledger()
        await self.engine.clear()
        sampled_before = self.engine.stats.sampled_tokens
        async with LagMonitor() as lag:
            episodes = await run_rollouts(
                self._train_rollouts(step),
                lambda rollout: play(self.experiment.method, rollout, self.experiment.policy),
                ledger=ledger,
                concurrency=self.options.concurrency,
            )
        ledger.check()
        episodes = self._scored(episodes, step)
        rolled_out = time.perf_counter()
        groups = make_groups(
            episodes, std_normalization=not self.options.disable_grpo_std_normalization
        )
        if self.options.offload_rollout:
            await self.engine.release_memory()
        updates, difference = await asyncio.to_thread(self._update, groups, step)
        if self.options.offload_rollout:
            await self.engine.resume_memory()
        await self.engine.update_weights(self.model)
        return StepResult(
            episodes=episodes,
            groups=groups,
            ledger=ledger,
            updates=updates,
            max_logprob_diff=difference,
            rollout_s=rolled_out - started,
            train_s=time.perf_counter() - rolled_out,
            sampled_tokens=self.engine.stats.sampled_tokens - sampled_before,
            lag=lag,
        )

    def _scored(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        """`group_scores` of the method, whose bugs end the run and not in a traceback."""
        try:
            return scored_by_group(episodes, self.experiment.method.group_scores)
        except Exception as error:
            raise RunError(
                f"step {step}: group_scores of {self.experiment.name} failed:"
                f" {type(error).__name__}: {error}"
            ) from error

    async def evaluate(self) -> EvalResult:
        """Plays every held-out task `n_samples_per_eval_prompt` times.

        Trials have the same seeds at every evaluation of a run, so that two of them differ by
        the policy alone.
        """
        started = time.perf_counter()
        options, method = self.options, self.experiment.method
        tasks, policy = self.experiment.eval_tasks, self.experiment.policy
        stops = policy.sampling.stop_token_ids
        policy = replace(policy, sampling=replace(options.eval_sampling(), stop_token_ids=stops))
        rollouts = [
            Rollout(
                task=task,
                task_id=task_id,
                rollout_id=f"{task_id}#{trial}",
                group_id=task_id,
                seed=derive_seed(options.seed, "eval", task_id, trial),
            )
            for task_id, task in tasks.items()
            for trial in range(options.n_samples_per_eval_prompt)
        ]
        ledger = Ledger()
        await self.engine.clear()
        episodes = await run_rollouts(
            rollouts,
            lambda rollout: play(method, rollout, policy),
            ledger=ledger,
            concurrency=options.concurrency,
        )
        ledger.check()
        trials = (
            Trial(episode.group_id, int(episode.rollout_id.rpartition("#")[2]), episode.score)
            for episode in episodes
        )
        table = by_task(trials, list(tasks), options.n_samples_per_eval_prompt)
        return EvalResult(
            episodes=episodes,
            table=table,
            estimate=mean_score(table),
            ledger=ledger,
            eval_s=time.perf_counter() - started,
        )

    def _train_rollouts(self, step: int) -> list[Rollout[TaskT]]:
        options = self.options
        tasks = self.experiment.train_tasks
        names = list(tasks)
        return [
            Rollout(
                task=tasks[names[index]],
                task_id=names[index],
                rollout_id=f"{step}/{place}/{member}",
                group_id=f"{step}/{place}",
                seed=derive_seed(options.seed, "train", step, place, member),
            )
            for place, index in enumerate(
                prompt_order(len(names), options.rollout_batch_size, step, options.seed)
            )
            for member in range(options.n_samples_per_prompt)
        ]

    def _update(self, groups: Sequence[Group], step: int) -> tuple[list[UpdateMetrics], float]:
        """Updates the policy; also the largest difference between engine and trainer before it."""
        options = self.options
        rollouts = kept_rollouts(groups)
        rng = np.random.default_rng(derive_seed(options.seed, "update", step))
        order = rng.permutation(len(rollouts))
        split = np.array_split(order, min(options.num_steps_per_rollout, max(len(order), 1)))
        parts = [rows for part in split if (rows := self._rows([rollouts[i] for i in part]))]
        # The first part's log-probs are compared by its update, at no cost.
        later = [row for rows in parts[1:] for row in rows]
        difference = max_difference(later, self.updater.logprobs(later))
        self._check_difference(difference, step)
        updates: list[UpdateMetrics] = []
        for rows in parts:
            updates.append(self.updater.update(rows))
            if len(updates) == 1:
                difference = max(difference, updates[0].max_logprob_difference)
                self._check_difference(difference, step)
        return updates, difference

    def _check_difference(self, difference: float, step: int) -> None:
        what = "the log-prob of a sampled token"
        if said := logprobs_differ(difference, self.options.logprob_limits()[0], what):
            raise RunError(f"step {step}: {said}")

    def _rows(self, rollouts: Sequence[tuple[Episode, float]]) -> list[TrainRow]:
        options = self.options
        dealt = [
            (segment, episode.rollout_id, advantage)
            for episode, advantage in rollouts
            for segment in episode.segments
            if segment.trained_tokens
        ]
        if not dealt:
            return []
        samples, rollout_S, advantages_S = zip(*dealt, strict=True)
        weights_S = token_weights(
            [sample.trained_tokens for sample in samples],
            rollout_S,
            self._objective,
        )
        rows = train_rows(samples, advantages_S, weights_S, max_tokens=options.max_tokens_per_gpu)
        if self._reference is None:
            return rows
        references = trained_logprobs(
            self._reference, rows, temperature=options.rollout_temperature
        )
        return [
            replace(row, ref_logprobs=reference)
            for row, reference in zip(rows, references, strict=True)
        ]


def prompt_order(count: int, batch: int, step: int, seed: int) -> list[int]:
    """The prompts of a step: every prompt once per epoch, each epoch in an order of its own.

    Args:
        count: Prompts in all, at least 1.
        batch: Prompts a step; may exceed `count`.
        step: Counted from 1.
        seed: The run's.
    """
    picked = []
    for place in range((step - 1) * batch, step * batch):
        epoch, within = divmod(place, count)
        order = np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(count)
        picked.append(int(order[within]))
    return picked


def kept_rollouts(groups: Sequence[Group]) -> list[tuple[Episode, float]]:
    """The scored rollouts of the groups that are trained on, with their advantages."""
    return [
        (episode, float(advantage))
        for group in groups
        if group.drop is None
        for episode, advantage in zip(group.episodes, group.advantages_G, strict=True)
        if not np.isnan(advantage) and episode.segments
    ]


def drops(groups: Sequence[Group]) -> dict[str, int]:
    """How many groups were left out, by reason."""
    return dict(Counter(group.drop.value for group in groups if group.drop is not None))
