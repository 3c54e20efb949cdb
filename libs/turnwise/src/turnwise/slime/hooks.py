"""`generate`: one episode for slime, from a `Sample` to one or more.

1. The row becomes a task and is played as on every backend (`turnwise.method.play`): the method
   gets a `Policy` whose engine speaks to slime's router, and a seed that depends on
   `--rollout-seed` and the sample's index alone. What all episodes have in common is in
   `turnwise.slime.shared`.
2. slime's abort ends an episode before its next turn; with `--partial-rollout` the sample keeps
   what the next `generate` goes on from (`turnwise.slime.replay`).
3. Whatever fails beyond the policy makes a lost episode, an error in our own code included: it is
   logged with its traceback, entered under `environment`, and harms no other episode. So it is
   with what the server says beside the tokens, entered under `engine`. A configuration error is
   raised, for no episode could be right, and so is the end of a budget (`StopRun`): the job fails
   instead of sampling groups that are all dropped.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from slime.observability.trace_utils import (  # type: ignore[import-not-found]
    build_sglang_meta_trace_attrs,  # pants: no-infer-dep
    trace_span,  # pants: no-infer-dep
)
from slime.rollout import sglang_rollout  # type: ignore[import-not-found]  # pants: no-infer-dep

from turnwise.config import ConfigError
from turnwise.engine import SamplingParams
from turnwise.engine.sglang import SGLangEngine
from turnwise.episode import Boundary, BoundaryError, Ending
from turnwise.method import play
from turnwise.own_code import row_task
from turnwise.policy import Policy
from turnwise.rollout import Rollout, derive_seed, unplayed
from turnwise.rows import Row
from turnwise.run.jsonl import dump
from turnwise.slime import accounts
from turnwise.slime.replay import EpisodeReplay, ReplayEngine
from turnwise.slime.samples import CREDIT, DROPPED, FACTS, REPLAY, to_samples
from turnwise.slime.settings import max_context_tokens, read_sampling
from turnwise.slime.shared import Shared, close_shared, get_shared
from turnwise.slime.training import mark_turns

ENGINE_DEADLINE_S = 3600.0
"""Beyond any deadline of a method, which sets its own."""
MAX_TASK_NAME = 60

logger = logging.getLogger(__name__)


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    """slime's `--custom-generate-function-path`: plays the episode of one sample.

    Returns:
        `sample`, filled; for a method that fans out a list of samples that share its
        `rollout_id`, one per segment, even where there is one.

    Raises:
        ConfigError: the arguments or the row can't be played.
        PreflightError: a service of the method does not answer at the start.
        StopRun: no further episode could be played.
    """
    shared = await get_shared(args)
    kind = "eval" if evaluation else "train"
    books = accounts.EVAL if evaluation else accounts.TRAIN
    row = read_row(sample)
    task = row_task(shared.method, row)
    if shared.control is not None:
        await shared.control.gate(evaluation=evaluation)
    replay = EpisodeReplay((sample.metadata or {}).get(REPLAY))
    async with books.account(f"{kind}/{sample.index}") as rollout_id:
        policy = _make_policy(args, shared, sampling_params, evaluation=evaluation)
        rollout = Rollout(
            task=task,
            task_id=_task_name(row, task),
            rollout_id=rollout_id,
            group_id=f"{kind}/{_first(sample.group_index, sample.index)}",
            seed=derive_seed(getattr(args, "rollout_seed", 0), kind, sample.index or 0),
            replay=replay.services if getattr(args, "partial_rollout", False) else None,
        )
        policy = _with_replay(args, policy, sample, replay, rollout_id)
        if _is_dropped(shared, rollout, evaluation=evaluation):
            episode = replace(unplayed(rollout, Ending.cancelled()), info={DROPPED: True})
            replay = EpisodeReplay()
        else:
            episode = await play(shared.method, rollout, policy)
        write = partial(to_samples, args, sample, profile=shared.profile, evaluation=evaluation)
        try:
            samples = write(episode, replay)
        except ConfigError:
            raise
        except Exception as error:
            logger.exception("episode %s can't be converted", rollout_id)
            what = f"what the server said beside the tokens does not fit them: {error!r}"
            episode = unplayed(rollout, Ending.lost(BoundaryError(Boundary.ENGINE, what)))
            samples = write(episode, EpisodeReplay())
        books.settle(episode)
    if shared.method.options.objective == "turn-mean":
        mark_turns(samples)
    if shared.lists:
        return samples
    if len(samples) > 1:
        raise ConfigError(
            f"turnwise.method {shared.settings.method} made {len(samples)} segments of one "
            "episode, but its fans_out is false"
        )
    return sample


async def close() -> None:
    """Closes this event loop's methods and connections. A later episode opens them again."""
    await close_shared()


def _is_dropped(shared: Shared, rollout: Rollout[Any], *, evaluation: bool) -> bool:
    """Whether somebody asked for its task to be played no more; its group is then left out."""
    control = shared.control
    return control is not None and not evaluation and not control.takes(rollout.task_id)


def read_row(sample: Any) -> Row:
    """slime's sample as a data row. `metadata["id"]` names it, else its content does."""
    ours = (CREDIT, FACTS, REPLAY)
    metadata = {key: value for key, value in (sample.metadata or {}).items() if key not in ours}
    return Row(
        prompt=sample.prompt,
        label=sample.label,
        metadata=metadata,
        id=str(metadata.get("id") or _name(sample, metadata)),
        where=f"the row of sample {sample.index}",
    )


def _task_name(row: Row, task: object) -> str:
    """The row's own name, else the task's where it has one."""
    own = getattr(task, "id", None)
    return own if isinstance(own, str) and "id" not in row.metadata else row.id


def _name(sample: Any, metadata: Mapping[str, Any]) -> str:
    # slime adds this to what was aborted.
    given = {key: value for key, value in metadata.items() if key != "start_rollout_id"}
    content = dump([sample.prompt, sample.label, given])
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    words = sample.prompt if isinstance(sample.prompt, str) else dump(sample.prompt)
    return f"{' '.join(words.split())[:MAX_TASK_NAME]} ({digest})"


def _make_policy(
    args: Any, shared: Shared, sampling_params: Mapping[str, Any], *, evaluation: bool
) -> Policy:
    sampling, rest = read_sampling(sampling_params)
    context = max_context_tokens(args, evaluation=evaluation)
    engine = SGLangEngine(
        f"http://{args.sglang_router_ip}:{args.sglang_router_port}",
        pool=shared.pool,
        deadline_s=ENGINE_DEADLINE_S,
        sampling=rest,
        return_routed_experts=bool(getattr(args, "use_rollout_routing_replay", False)),
        send_seed=bool(getattr(args, "sglang_enable_deterministic_inference", False)),
        max_context_tokens=context,
    )
    return Policy(
        engine=engine,
        profile=shared.profile,
        max_context_tokens=context,
        tool_format=shared.tool_format,
        sampling=sampling,
        on_rewrite=shared.method.options.on_rewrite,
    )


def _with_replay(
    args: Any, policy: Policy, sample: Any, replay: EpisodeReplay, rollout_id: str
) -> Policy:
    engine = ReplayEngine(
        policy.engine,
        replay,
        rollout_id=rollout_id,
        routing_key=sample.session_id or uuid.uuid4().hex,
        aborted=lambda: bool(sglang_rollout.GenerateState(args).aborted),
        span=lambda params: _trace(sample, params),
    )
    return replace(policy, engine=engine)


def _trace(sample: Any, params: SamplingParams) -> AbstractContextManager[Any]:
    @contextmanager
    def span() -> Iterator[Any]:
        attrs = {"max_new_tokens": params.max_new_tokens}
        with trace_span(sample, "sglang_generate", attrs=attrs) as opened:
            # slime gives the sample itself where it can't trace.
            update = getattr(opened, "update", lambda attrs: None)
            yield lambda meta: update(build_sglang_meta_trace_attrs(dict(meta)))

    return span()


def _first(*values: object) -> object:
    return next((value for value in values if value is not None), None)
