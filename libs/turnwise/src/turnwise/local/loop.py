"""Training on this machine, from the first evaluation to the verdict.

1. evaluate the policy on the held-out tasks;
2. for each step: sample, score, group, update (`turnwise.local.trainer`); write the row; save a
   checkpoint and evaluate at their intervals;
3. evaluate again, play what else the method wants to see at the end (`Method.curves`), and say what
   the difference is.

Between two steps it does what people ask for (`turnwise.local.control`).

Everything is on disk when it is known. The first interrupt finishes the step or the evaluation
under way, saves it and ends with exit code 130; the second stops at once, or as soon as the
optimiser step under way is done, and leaves what was saved.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from turnwise.command import PreflightError, RunError, StopRun
from turnwise.config import ConfigError
from turnwise.local.checkpoint import (
    STATE,
    checkpoint_bytes,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)
from turnwise.local.control import LocalControl
from turnwise.local.experiment import Experiment
from turnwise.local.options import TrainOptions
from turnwise.local.policy import LoadedPolicy
from turnwise.local.record import Recorder
from turnwise.local.trainer import EvalResult, Table, Trainer
from turnwise.rounds import keep_what_is_loaded
from turnwise.run.folder import RunFolder, require_space
from turnwise.run.summary import Summary
from turnwise.stopping import LostGroups, first_prompt, never_sampled, nothing_scored

TaskT = TypeVar("TaskT")


class Interrupted(KeyboardInterrupt):
    """A person asked the run to end; what was done is saved."""


async def train(
    options: TrainOptions,
    experiment: Experiment[TaskT],
    policy: LoadedPolicy,
    folder: RunFolder,
) -> Summary:
    """Runs the experiment to its end.

    Raises:
        RunError: if the run can't go on; metrics and checkpoints so far are whole.
        StopRun: if no episode can be played any more; the steps done are saved.
        Interrupted: after the first interrupt, once the step under way is saved.
    """
    require_space(folder.path, checkpoint_bytes(policy.model), "a checkpoint")
    trainer = Trainer(options, experiment, policy.model)
    if said := trainer.about():
        print(said)
    done = saved = await _restore(folder, trainer) if options.resume else 0
    shift = done - trainer.engine.weight_version
    recorder = Recorder(options, experiment, policy.tokenizer, folder, done, shift)
    lost_groups = LostGroups(options.rollout_batch_size)
    keep_what_is_loaded()
    with _interruptible(recorder.progress.say) as signalled:
        try:
            with (
                recorder.progress,
                LocalControl(folder, trainer, recorder.progress, done) as control,
            ):

                def interrupted() -> bool:
                    return signalled() or control.stopping is not None

                async def evaluate() -> str:
                    if recorder.evaluation(done) is not None:
                        return f"the evaluation after step {done} is on record already"
                    await _evaluate(trainer, recorder, done)
                    return f"evaluated after step {done}"

                def save() -> str:
                    nonlocal saved
                    if done > saved:
                        _save(folder, done, trainer, policy.tokenizer)
                        saved = done
                    return f"step {done} is saved" if done else "no step is done yet"

                before = recorder.evaluation(0)
                if before is None and done:
                    recorder.progress.say("the first evaluation is not on record: no verdict")
                elif before is None:
                    before = await _evaluate(trainer, recorder, 0)
                if done and _is_due(options, done) and recorder.evaluation(done) is None:
                    await _evaluate(trainer, recorder, done)
                for step in range(done + 1, options.num_rollout + 1):
                    await control.between(done, interrupted, evaluate=evaluate, save=save)
                    if interrupted():
                        save()
                        raise Interrupted(f"before step {step}")
                    recorder.progress.stage(f"step {step}")
                    result = await trainer.train_step(step)
                    if trainer.engine.failure and not result.updates:
                        raise StopRun(f"step {step}: {trainer.engine.failure}")
                    recorder.stepped(step, result)
                    control.writer.step = done = step
                    last = step == options.num_rollout
                    if last or step % options.save_interval == 0 or interrupted():
                        save()
                    if interrupted():
                        raise Interrupted(f"after step {step}")
                    lost_groups.count_groups(result.groups)
                    problem = nothing_scored(result.episodes)
                    if trainer.engine.restarts > result.restarts_before:
                        # What an engine lost that was started again since says nothing of the next.
                        problem = ""
                    if problem := trainer.engine.failure or problem:
                        raise StopRun(f"step {step}: {problem}")
                    if not last and _is_due(options, step):
                        await _evaluate(trainer, recorder, step)
                final = options.num_rollout
                after = recorder.evaluation(final) or await _evaluate(trainer, recorder, final)
                if interrupted():
                    raise Interrupted(f"after the evaluation of step {final}")
                curves = await _play_curves(trainer, recorder)
        except StopRun as stop:
            # No episode of the step that broke off was trained on: the weights are those of `done`.
            if done > saved:
                _save(folder, done, trainer, policy.tokenizer)
            raise StopRun(
                f"{stop}; {done} of {options.num_rollout} steps are done and saved, go on with"
                f" --resume --run-dir {folder.path}"
            ) from None
        finally:
            await trainer.engine.close()
            await asyncio.to_thread(recorder.close)
        return recorder.summarise(before, after, curves)


def _is_due(options: TrainOptions, step: int) -> bool:
    return options.eval_interval is not None and step % options.eval_interval == 0


async def _evaluate(trainer: Trainer[TaskT], recorder: Recorder, step: int) -> Table:
    recorder.progress.stage("evaluating")
    restarts = trainer.engine.restarts
    result = await trainer.evaluate()
    if trainer.engine.restarts > restarts and not trainer.engine.failure:
        # Episodes were lost to the engine, and the weights are the same still.
        result = await trainer.evaluate()
    if problem := trainer.engine.failure:
        raise StopRun(f"evaluation after step {step}: {problem}")
    recorder.evaluated(step, result)
    problem = nothing_scored(result.episodes)
    scored = [first_prompt(one) for one in result.episodes if one.score is not None]
    unsampled = never_sampled(scored, "--rollout-max-context-len")
    if problem := problem or (unsampled if None not in scored else ""):
        raise StopRun(f"evaluation after step {step}: {problem}")
    if unsampled:
        recorder.progress.say(f"evaluation after step {step}: {unsampled}")
    return result.table


async def _play_curves(
    trainer: Trainer[TaskT], recorder: Recorder
) -> dict[str, dict[str, EvalResult]]:
    """By what the points differ in, then by point."""
    found = {}
    for name, points in trainer.experiment.curves.items():
        recorder.progress.stage(f"playing the curve by {name}")
        found[name] = await trainer.curve(points)
        if problem := trainer.engine.failure:
            raise StopRun(f"the curve by {name}: {problem}")
    return found


def _save(folder: RunFolder, step: int, trainer: Trainer[TaskT], tokenizer: Any) -> None:
    try:
        save_checkpoint(
            folder.checkpoints,
            step,
            model=trainer.model,
            tokenizer=tokenizer,
            optimizer=trainer.updater.optimizer,
            state={"step": step},
            sampler=trainer.learner.sampler,
        )
    except (PreflightError, RunError) as error:
        raise RunError(
            f"step {step} can't be saved: {error}; earlier checkpoints are whole"
        ) from error


async def _restore(folder: RunFolder, trainer: Trainer[TaskT]) -> int:
    """Loads the newest complete checkpoint and forgets later rows; returns its step."""
    checkpoint = _newest_whole(folder)
    if checkpoint is None:
        print(f"resuming from the start: no complete checkpoint; {folder.cut_after(0)}")
        return 0
    state, sampler = load_checkpoint(
        checkpoint, model=trainer.model, optimizer=trainer.updater.optimizer
    )
    step = state.get("step")
    if type(step) is not int or step < 0:
        raise ConfigError(
            f"{checkpoint / STATE}: step: expected the training steps done, found {step!r:.80}"
        )
    if step > trainer.options.num_rollout:
        raise ConfigError(
            f"--num-rollout {trainer.options.num_rollout}: the run in {folder.path} is at step"
            f" {step} already"
        )
    print(f"resuming after step {step}; {folder.cut_after(step)}")
    await trainer.restored(step, sampler)
    return step


def _newest_whole(folder: RunFolder) -> Path | None:
    """The newest checkpoint whose files are as they were written."""
    for checkpoint in reversed(list_checkpoints(folder.checkpoints)):
        try:
            verify_checkpoint(checkpoint)
        except ConfigError as error:
            print(f"{error}; going back to the checkpoint before it", file=sys.stderr)
        else:
            return checkpoint
    return None


@contextmanager
def _interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Counts interrupts: the first is noted, the second cancels the calling task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    count = 0

    def on_interrupt() -> None:
        nonlocal count
        count += 1
        if count == 1:
            say("interrupted: finishing what is under way; press Ctrl-C again to stop at once")
        else:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield lambda: count > 0
    except asyncio.CancelledError:
        if count > 1:
            raise Interrupted("at once") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
