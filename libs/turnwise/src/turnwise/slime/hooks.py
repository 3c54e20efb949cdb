"""`generate`: one episode for slime, from a `Sample` to one or more.

1. What does not change between episodes (tokenizer, audited template, method) is built once, in a
   thread; connections to the router are kept per event loop.
2. The episode is the local backend's: the method gets a `Policy` whose engine speaks to slime's
   router, and a seed that depends on `--rollout-seed` and the sample's index alone.
3. slime's abort ends an episode before its next turn; the sample keeps a record from which the
   next `generate` goes on (`turnwise.slime.record`).
4. Whatever fails beyond the policy makes a lost episode, an error in our own code included: it is
   logged with its traceback, entered under `environment`, and harms no other episode. So it is
   with what the server says beside the tokens, entered under `engine`. A configuration error is
   raised, for no episode could be right, and so is the end of a budget (`StopRun`): the job fails
   instead of sampling groups that are all dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import tokendelta
import toolparse
from slime.observability.trace_utils import (  # type: ignore[import-not-found]
    build_sglang_meta_trace_attrs,  # pants: no-infer-dep
    trace_span,  # pants: no-infer-dep
)
from slime.rollout import sglang_rollout  # type: ignore[import-not-found]  # pants: no-infer-dep

from turnwise.command import StopRun
from turnwise.config import ConfigError
from turnwise.engine import SamplingParams
from turnwise.engine.http import HttpPool
from turnwise.engine.sglang import SGLangEngine
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.method import Job, Method
from turnwise.policy import Policy
from turnwise.rollout import derive_seed
from turnwise.slime import books
from turnwise.slime.record import Record, RecordingEngine, RecordingUser
from turnwise.slime.samples import RECORD, to_samples
from turnwise.slime.settings import (
    Settings,
    fans_out,
    make_method,
    max_context_tokens,
    model_url,
    read_sampling,
    read_settings,
)
from turnwise.slime.turns import mark_turns

ENGINE_DEADLINE_S = 3600.0
"""Beyond any deadline of a method, which sets its own."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all episodes of a process have in common.

    Attributes:
        settings: `args.turnwise`.
        profile: The audited template.
        method: Plays the episodes.
        lists: Whether each comes back as a list of samples.
    """

    settings: Settings
    profile: tokendelta.Profile
    method: Method
    lists: bool


_shared: dict[str, Shared] = {}
_building = threading.Lock()
_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, HttpPool] = WeakKeyDictionary()


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    """slime's `--custom-generate-function-path`: plays the episode of one sample.

    Returns:
        `sample`, filled; for a method that fans out a list of samples that share its
        `rollout_id`, one per segment, even where there is one.

    Raises:
        ConfigError: the arguments or the row can't be played.
        StopRun: no further episode could be played.
    """
    shared = await _get_shared(args)
    kind = "eval" if evaluation else "train"
    accounts = books.EVAL if evaluation else books.TRAIN
    record = Record((sample.metadata or {}).get(RECORD))
    policy = _make_policy(args, shared, sampling_params, evaluation=evaluation)
    async with accounts.account(f"{kind}/{sample.index}") as rollout_id:
        session_id = sample.session_id or uuid.uuid4().hex
        job = Job(
            prompt=sample.prompt,
            label=sample.label,
            metadata=sample.metadata or {},
            policy=_record_turns(args, policy, sample, record, session_id),
            wrap_user=lambda make: lambda: RecordingUser(make(), record),
            rollout_id=rollout_id,
            group_id=f"{kind}/{_first(sample.group_index, sample.index)}",
            seed=derive_seed(getattr(args, "rollout_seed", 0), kind, sample.index or 0),
        )
        episode = await _play(shared.method, job)
        write = partial(to_samples, args, sample, profile=shared.profile, evaluation=evaluation)
        try:
            samples = write(episode, record)
        except ConfigError:
            raise
        except Exception as error:
            logger.exception("episode %s can't be converted", rollout_id)
            what = f"what the server said beside the tokens does not fit them: {error!r}"
            episode = _lost(job, BoundaryError(Boundary.ENGINE, what))
            samples = write(episode, Record())
        accounts.settle(episode)
    if shared.settings.objective == "turn-mean":
        mark_turns(samples)
    if shared.lists:
        return samples
    if len(samples) > 1:
        raise ConfigError(
            f"turnwise.method {shared.settings.method} made {len(samples)} segments of one "
            "episode, but its fans_out is false"
        )
    return sample


def service_metrics() -> dict[str, float]:
    """Numbers of the methods' services, totals since the process began."""
    return {name: value for one in _shared.values() for name, value in one.method.metrics().items()}


async def close() -> None:
    """Closes this event loop's connections. A later episode opens them again."""
    for one in _shared.values():
        await one.method.close()
    pool = _pools.pop(asyncio.get_running_loop(), None)
    if pool is not None:
        await pool.close()


async def _play(method: Method, job: Job) -> Episode:
    try:
        return await method.run(job)
    except (ConfigError, StopRun):
        raise
    except BoundaryError as error:
        return _lost(job, error)
    except Exception as error:
        logger.exception("episode %s failed in our own code", job.rollout_id)
        what = f"{type(error).__name__}: {error}"
        return _lost(job, BoundaryError(Boundary.ENVIRONMENT, what))


def _lost(job: Job, error: BoundaryError) -> Episode:
    return Episode(
        rollout_id=job.rollout_id,
        group_id=job.group_id,
        task_id="",
        segments=(),
        ending=Ending.lost(error),
        score=None,
        transcript=(),
    )


async def _get_shared(args: Any) -> Shared:
    settings = read_settings(args)
    template = getattr(args, "apply_chat_template_kwargs", None) or {}
    switches = [getattr(args, name, False) for name in ("partial_rollout", "group_rm")]
    given = [args.hf_checkpoint, args.turnwise, template, switches]
    key = json.dumps(given, sort_keys=True, default=str)
    found = _shared.get(key)
    if found is not None:
        return found
    return await asyncio.to_thread(_build, key, args, settings, template)


def _build(key: str, args: Any, settings: Settings, template: Mapping[str, Any]) -> Shared:
    with _building:
        if key not in _shared:
            # Its lazy modules can't be imported by two threads at once.
            from transformers import AutoTokenizer

            formats = toolparse.formats()
            if settings.tool_format not in formats:
                raise ConfigError(
                    f"turnwise.tool_format: unknown format {settings.tool_format!r}; there are "
                    f"{', '.join(formats)}"
                )
            tokenizer = AutoTokenizer.from_pretrained(args.hf_checkpoint, trust_remote_code=True)
            profile = tokendelta.Profile.from_tokenizer(tokenizer, template_kwargs=dict(template))
            method = make_method(settings)
            method.connect(partial(model_url, args))
            _shared[key] = Shared(settings, profile, method, fans_out(args, settings, method))
        return _shared[key]


def _make_policy(
    args: Any, shared: Shared, sampling_params: Mapping[str, Any], *, evaluation: bool
) -> Policy:
    sampling, rest = read_sampling(sampling_params)
    context = max_context_tokens(args, evaluation=evaluation)
    engine = SGLangEngine(
        f"http://{args.sglang_router_ip}:{args.sglang_router_port}",
        pool=_pool(),
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
        tool_format=shared.settings.tool_format,
        sampling=sampling,
        on_rewrite=shared.settings.on_rewrite,
    )


def _record_turns(
    args: Any, policy: Policy, sample: Any, record: Record, session_id: str
) -> Policy:
    engine = RecordingEngine(
        policy.engine,
        record,
        session_id=session_id,
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


def _pool() -> HttpPool:
    # slime bounds the episodes under way by its own semaphore.
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = HttpPool()
    return pool


def _first(*values: object) -> object:
    return next((value for value in values if value is not None), None)
