"""One training step and one evaluation of the embedded backend.

A step, as in `turnwise.group` and `turnwise.objective`:
1. take the step's prompts from a seeded order, and sample every rollout of every prompt at once;
2. check the ledger: each rollout has an ending;
3. group by prompt; leave out groups with too few scored members or no spread, counted by reason;
4. compare engine and trainer on every token that is trained on, and update
   (`turnwise.local.learner`);
5. copy the weights into the engine.

With `rollout_lag` 1 the rollouts of step k + 1 are sampled while step k is updated, by the weights
that step k - 1 left. Both are done before 5, so no turn meets two policies and nothing depends on
which was faster.

Everything random is drawn from seeds that name the step, so that step k of a resumed run is step
k of the unbroken one, bit for bit, on the same machine with the same thread count.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from turnwise.command import RunError
from turnwise.engine.torch_engine import TorchEngine
from turnwise.episode import Episode
from turnwise.group import Group, make_groups, scored_by_group
from turnwise.ledger import Ledger
from turnwise.local.adapters import trained
from turnwise.local.experiment import Experiment, objective
from turnwise.local.forward import kernel_of
from turnwise.local.lag import LagMonitor
from turnwise.local.learner import Learner
from turnwise.local.memory import ModelShape, predict_memory
from turnwise.local.options import TrainOptions
from turnwise.local.update import UpdateMetrics
from turnwise.local.weights import merged
from turnwise.method import play_recorded
from turnwise.rollout import Rollout, derive_seed, run_rollouts, waiting_s
from turnwise.run.traces import Trained
from turnwise.trials import Estimate, Trial, by_task, mean_score

TaskT = TypeVar("TaskT")
Table = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The scored rollouts of a step; the lag is the event loop's, times are in seconds."""

    episodes: list[Episode]
    ledger: Ledger
    sampled_tokens: int
    rollout_s: float
    engine_busy_s: float
    waiting_s: float
    restarts_before: int
    lag: LagMonitor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A training step: what it did, and how long each stage took in seconds.

    Attributes:
        engine_busy_s: Of `rollout_s`, those in which the engine sampled.
        waiting_s: Of the rollouts, for the longest of them (`turnwise.rollout.waiting_s`).
        restarts_before: Of the engine, when the rollouts began.
        lag: Of the event loop.
        trained: What was found of the trained tokens.
        peak_memory: The most bytes that torch has held on the GPU so far; None on a CPU.
        predicted_memory: What was expected of it; None likewise.
    """

    episodes: list[Episode]
    groups: list[Group]
    ledger: Ledger
    updates: list[UpdateMetrics]
    max_logprob_diff: float
    mean_logprob_diff: float
    rollout_s: float
    engine_busy_s: float
    waiting_s: float
    train_s: float
    sampled_tokens: int
    restarts_before: int
    lag: LagMonitor
    trained: Trained
    peak_memory: int | None
    predicted_memory: int | None


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
        """
        Raises:
            ConfigError: the options need a package that is not installed.
        """
        self.options, self.experiment, self.model = options, experiment, model
        self.learner = Learner(options, objective(options, experiment.method), model)
        self.updater = self.learner.updater
        self.engine = experiment.engine
        self._embedded = isinstance(self.engine, TorchEngine)
        self._memory = predict_memory(
            ModelShape.of(model.config), options, embedded_engine=self._embedded
        )
        self._ahead: asyncio.Task[Sampled] | None = None

    async def train_step(self, step: int) -> StepResult:
        """Runs training step `step`, counted from 1.

        Raises:
            RunError: if engine and trainer disagree on a sampled token's log-prob, or a loss is
                not finite.
        """
        sampled = await self._rollouts_of(step)
        started = time.perf_counter()
        groups = make_groups(
            sampled.episodes, std_normalization=not self.options.disable_grpo_std_normalization
        )
        self._sample_ahead(step + 1)
        try:
            if self.options.offload_rollout:
                await self.engine.release_memory()
            updated = await asyncio.to_thread(self.learner.learn, groups, step)
            if self.options.offload_rollout:
                await self.engine.resume_memory()
            waited = time.perf_counter()
            await self._await_ahead()
            started += time.perf_counter() - waited
        except BaseException:
            await self._drop_ahead()
            raise
        await self._hand_over()
        on_gpu = self.model.device.type == "cuda"
        return StepResult(
            episodes=sampled.episodes,
            groups=groups,
            ledger=sampled.ledger,
            updates=updated.updates,
            max_logprob_diff=updated.max_logprob_diff,
            mean_logprob_diff=updated.mean_logprob_diff,
            rollout_s=sampled.rollout_s,
            engine_busy_s=sampled.engine_busy_s,
            waiting_s=sampled.waiting_s,
            train_s=time.perf_counter() - started,
            sampled_tokens=sampled.sampled_tokens,
            restarts_before=sampled.restarts_before,
            lag=sampled.lag,
            trained=updated.trained,
            peak_memory=torch.cuda.max_memory_allocated(self.model.device) if on_gpu else None,
            predicted_memory=self._memory.total if on_gpu else None,
        )

    def about(self) -> str:
        """How it trains, one line; "" where that is the plain way: float32 on a CPU."""
        options, kernel = self.options, kernel_of(self.model)
        if (self.model.device.type, options.weight_dtype()) == ("cpu", "float32"):
            return ""
        ways = [options.weight_dtype(), f"{kernel} attention over packed rows"]
        ways += ["float32 masters"] if options.weight_dtype() == "bfloat16" else []
        ways += ["activations recomputed"] if options.recompute_granularity else []
        ways += ["moments in 8 bits"] if options.optimizer == "adam8bit" else []
        ways += ["optimiser on the host"] if options.optimizer_cpu_offload else []
        ways += [f"adapters of rank {options.lora_rank}"] if options.lora_rank else []
        return f"Trainer: {', '.join(ways)}; expected memory {self._memory}."

    async def restored(self, step: int, sampler: Sequence[Tensor] | None) -> None:
        """Brings the engine to where it was after `step`, whose weights the model has.

        Args:
            sampler: As of `Learner` then.
        """
        if sampler is not None and self.options.rollout_lag:
            with self._weights(sampler):
                await self._hand_over()
                self._sample_ahead(step + 1)
                await self._await_ahead()
        await self._hand_over()

    async def _rollouts_of(self, step: int) -> Sampled:
        """Those that were sampled ahead, whose failure is this step's, or fresh ones."""
        if self._ahead is None:
            return await self._sample(step)
        ahead, self._ahead = self._ahead, None
        return await ahead

    def _sample_ahead(self, step: int) -> None:
        if self.options.rollout_lag and step <= self.options.num_rollout:
            self._ahead = asyncio.create_task(self._sample(step))

    async def _await_ahead(self) -> None:
        """Waits for it to end, however it does."""
        if self._ahead is not None:
            await asyncio.wait([self._ahead])
            if not self._ahead.cancelled():
                # Told, so that asyncio does not complain where no step asks any more.
                self._ahead.exception()

    async def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
            self._ahead = None

    async def _hand_over(self) -> None:
        # The embedded engine reads modules; a server is sent tensors, merged one by one.
        with merged(self.model) if self._embedded else nullcontext():
            await self.engine.update_weights(self.model)

    @contextmanager
    def _weights(self, trained_weights: Sequence[Tensor]) -> Iterator[None]:
        """Others in the place of the trained ones for a while."""
        own = [weight for _, weight in trained(self.model)]
        kept = [weight.data for weight in own]
        try:
            for weight, other in zip(own, trained_weights, strict=True):
                weight.data = other.to(weight.device)
            yield
        finally:
            for weight, data in zip(own, kept, strict=True):
                weight.data = data

    async def _sample(self, step: int) -> Sampled:
        started = time.perf_counter()
        ledger = Ledger()
        restarts = self.engine.restarts
        await self.engine.clear()
        before = self.engine.stats
        ended: list[float] = []
        policy = self.experiment.policy
        async with LagMonitor() as lag:
            episodes = await run_rollouts(
                self._train_rollouts(step),
                lambda rollout: play_recorded(self.experiment.method, rollout, policy),
                ledger=ledger,
                concurrency=self.options.concurrency,
                on_episode=lambda _: ended.append(time.perf_counter()),
                work=self.experiment.method.work,
            )
        ledger.check()
        return Sampled(
            episodes=self._scored(episodes, step),
            ledger=ledger,
            sampled_tokens=self.engine.stats.sampled_tokens - before.sampled_tokens,
            rollout_s=time.perf_counter() - started,
            engine_busy_s=self.engine.stats.busy_s - before.busy_s,
            waiting_s=waiting_s(ended, self.options.concurrency),
            restarts_before=restarts,
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
        return await self._evaluate(
            self.experiment.eval_tasks, self.options.n_samples_per_eval_prompt
        )

    async def curve(self, points: Mapping[str, Mapping[str, TaskT]]) -> dict[str, EvalResult]:
        """Plays the tasks of each point once."""
        return {name: await self._evaluate(tasks, 1) for name, tasks in points.items()}

    async def _evaluate(self, tasks: Mapping[str, TaskT], trials: int) -> EvalResult:
        started = time.perf_counter()
        options, method = self.options, self.experiment.method
        policy = self.experiment.policy
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
            for trial in range(trials)
        ]
        ledger = Ledger()
        await self.engine.clear()
        episodes = await run_rollouts(
            rollouts,
            lambda rollout: play_recorded(method, rollout, policy),
            ledger=ledger,
            concurrency=options.concurrency,
            work=method.work,
        )
        ledger.check()
        played = (
            Trial(episode.group_id, int(episode.rollout_id.rpartition("#")[2]), episode.score)
            for episode in episodes
        )
        table = by_task(played, list(tasks), trials)
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


def drops(groups: Sequence[Group]) -> dict[str, int]:
    """How many groups were left out, by reason."""
    return dict(Counter(group.drop.value for group in groups if group.drop is not None))
