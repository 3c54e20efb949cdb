"""Episodes as slime's `Sample`s.

| episode                    | samples                   | status    | reward | in the loss     |
|----------------------------|---------------------------|-----------|--------|-----------------|
| finished, stopped(format)  | one per segment           | COMPLETED | score  | yes             |
| stopped(any other limit)   | one per segment           | TRUNCATED | score  | yes             |
| ... without a sampled turn | a placeholder             | the same  | score  | `remove_sample` |
| cancelled                  | its finished turns in one | ABORTED   | none   | `remove_sample` |
| lost                       | a placeholder             | ABORTED   | none   | `remove_sample` |

Samples of one episode share `rollout_id` and reward. slime gives an ABORTED sample no reward, and
masks a `remove_sample`; a placeholder holds two stop tokens, because an empty row can't be trained
on. In evaluation with a reward key a sample without a reward carries {key: None}: slime looks the
key up in every sample there.

`metadata["turnwise"]` says how the episode ended (`facts`). `metadata["turnwise_credit"]` is the
place of the segment in its episode and what it earns beside the score, where the method says so.
`metadata["turnwise_replay"]` is what an aborted one goes on from with `--partial-rollout`
(`turnwise.slime.replay`).
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import tokendelta
from numpy.typing import NDArray

from turnwise.config import ConfigError
from turnwise.episode import Boundary, Ending, Episode, Limit
from turnwise.run.jsonl import plain
from turnwise.slime.replay import EpisodeReplay, KeptTurn

IntArray = NDArray[np.int32]
FACTS = "turnwise"
REPLAY = "turnwise_replay"
CREDIT = "turnwise_credit"
DROPPED = "dropped"
"""In the info of an episode whose task somebody asked to drop."""
TOP_P_KEYS = (
    ("top_p_token_ids", "top_p_token_offsets"),
    ("top_p_kept_token_ids", "top_p_kept_token_offsets"),
)


def to_samples(
    args: Any,
    sample: Any,
    episode: Episode,
    replay: EpisodeReplay,
    profile: tokendelta.Profile,
    *,
    evaluation: bool,
) -> list[Any]:
    """Writes an episode into `sample`; returns it and a further sample for each further segment.

    Args:
        args: slime's.
        sample: The `Sample` that slime gave. What it says about the prompt is kept.
        episode: What became of it.
        replay: The turns, with what the server said about each.
        profile: For the tokenizer and a stop token.
        evaluation: Whether slime evaluates.

    Raises:
        ConfigError: several segments, and neither `rollout_id` nor `index` to share.
        ValueError, TypeError, KeyError: top-p spans, routed experts or counts do not fit the
            tokens.
    """
    sample.metadata = {**(sample.metadata or {}), FACTS: facts(episode)}
    for stale in (REPLAY, CREDIT):
        sample.metadata.pop(stale, None)
    if sample.rollout_id is None:
        sample.rollout_id = sample.index
    if not episode.ending.by_policy:
        _write_unscored(args, sample, episode, replay, profile, evaluation=evaluation)
        return [sample]
    segments = episode.segments
    if len(segments) > 1 and sample.rollout_id is None:
        raise ConfigError(f"{len(segments)} segments, and the sample has no index to share")
    masks_old = _masks_old_turns(args) and not evaluation
    samples = [sample, *(_sibling(sample) for _ in segments[1:])]
    unwritten = list(replay.turns.values())
    for one, segment in zip(samples, segments, strict=False):
        _write_segment(args, one, segment, unwritten, masks_old=masks_old)
        one.response = _text(profile, one.tokens[segment.prompt_length :])
    for place, (one, credit) in enumerate(zip(samples, episode.credit, strict=False)):
        if credit is not None:
            one.metadata[CREDIT] = [place, credit]
    if not segments:
        _write_placeholder(args, sample, profile)
    cut = episode.ending.limit not in (None, Limit.FORMAT)
    for one in samples:
        one.status = type(sample).Status.TRUNCATED if cut else type(sample).Status.COMPLETED
        one.reward = reward_for(args, episode.score, evaluation=evaluation)
        one.non_generation_time = episode.wall_s - episode.metrics.get("engine_s", 0.0)
    return samples


def facts(episode: Episode) -> dict[str, Any]:
    """What `metadata["turnwise"]` holds: JSON-able, and all that `read_episode` gives back."""
    ending = episode.ending
    return {
        "rollout_id": episode.rollout_id,
        "group_id": episode.group_id,
        "task_id": episode.task_id,
        "ending": ending.label,
        "boundary": ending.boundary.value if ending.boundary else None,
        "limit": ending.limit.value if ending.limit else None,
        "error": ending.error,
        "score": episode.score,
        "wall_s": episode.wall_s,
        "metrics": dict(episode.metrics),
        "info": plain(episode.info),
    }


def read_episode(facts: Mapping[str, Any]) -> Episode:
    """The episode of such facts, without its segments and transcript."""
    boundary, limit = facts["boundary"], facts["limit"]
    ending = Ending(
        facts["ending"].partition(":")[0],
        limit=Limit(limit) if limit else None,
        boundary=Boundary(boundary) if boundary else None,
        error=facts["error"],
    )
    return Episode(
        rollout_id=facts["rollout_id"],
        group_id=facts["group_id"],
        task_id=facts["task_id"],
        segments=(),
        ending=ending,
        score=facts["score"],
        transcript=(),
        metrics=facts["metrics"],
        info=facts["info"],
        wall_s=facts["wall_s"],
    )


def score_of(sample: Any) -> float | None:
    """The episode's score; for a sample that these hooks did not make, its reward as a number."""
    found = (sample.metadata or {}).get(FACTS)
    if found is not None:
        score = found["score"]
        return None if score is None else float(score)
    reward = sample.reward
    return float(reward) if isinstance(reward, (int, float)) else None


def clear(sample: Any) -> None:
    """Empties what generation writes, so that the sample can be generated anew."""
    sample.tokens = []
    sample.response = ""
    sample.response_length = 0
    sample.loss_mask = None
    sample.rollout_log_probs = None
    sample.rollout_top_p_token_ids = None
    sample.rollout_top_p_token_offsets = None
    sample.rollout_routed_experts = None
    sample.weight_versions = []
    sample.spec_info = type(sample.spec_info)()
    sample.prefix_cache_info = type(sample.prefix_cache_info)()
    sample.reward = None
    sample.remove_sample = False
    sample.non_generation_time = 0.0
    sample.status = type(sample).Status.PENDING


def _write_unscored(
    args: Any,
    sample: Any,
    episode: Episode,
    replay: EpisodeReplay,
    profile: tokendelta.Profile,
    *,
    evaluation: bool,
) -> None:
    cancelled = episode.ending.boundary is None
    clear(sample)
    if cancelled and getattr(args, "partial_rollout", False) and (state := replay.state()):
        sample.metadata[REPLAY] = state
    turns = list(replay.turns.values())
    if cancelled and turns and _is_one_history(turns):
        _write_turns(args, sample, turns)
        sample.response = _text(profile, sample.tokens[len(turns[0].prompt) :])
    else:
        _write_placeholder(args, sample, profile)
    sample.remove_sample = True
    sample.reward = reward_for(args, None, evaluation=evaluation)
    sample.status = type(sample).Status.ABORTED


def _write_segment(
    args: Any,
    sample: Any,
    segment: tokendelta.Sample,
    unwritten: list[KeptTurn],
    *,
    masks_old: bool,
) -> None:
    """Takes the turns that it writes out of `unwritten`."""
    clear(sample)
    sample.tokens = segment.ids[: segment.prompt_length].tolist()
    old: list[tuple[int, int]] = []
    for start, stop, trained in _runs(segment):
        ids = segment.ids[start:stop].tolist()
        if not trained:
            sample.append_response_tokens(args, tokens=ids, trainable=False)
            continue
        place = start - segment.prompt_length
        logprobs = segment.logprobs[place : place + len(ids)].tolist()
        turn = _take_turn(segment.ids[:start], segment.ids[start:stop], unwritten)
        sample.append_response_tokens(
            args,
            tokens=ids,
            log_probs=logprobs,
            trainable=True,
            meta_info=_meta_for(turn, len(ids)),
        )
        if turn.replayed and masks_old:
            old.append((place, place + len(ids)))
    assert sample.tokens == segment.ids.tolist()
    assert sample.loss_mask == segment.loss_mask.tolist()
    for start, stop in old:
        sample.loss_mask[start:stop] = [0] * (stop - start)


def _runs(segment: tokendelta.Sample) -> Iterator[tuple[int, int, bool]]:
    """[start, stop) of the response region in order, and whether it is a trained turn."""
    response = [span for span in segment.spans if span.start >= segment.prompt_length]
    for turn, group in groupby(response, key=lambda span: span.turn if span.trained else None):
        spans = list(group)
        yield spans[0].start, spans[-1].stop, turn is not None


def _take_turn(before: IntArray, ids: IntArray, unwritten: list[KeptTurn]) -> KeptTurn:
    """Takes out the first turn that was sampled so after these tokens. A method may ask the engine
    for turns that it does not train on."""
    for place, turn in enumerate(unwritten):
        sampled = turn.completion.ids[: len(ids)]
        if np.array_equal(turn.prompt, before) and np.array_equal(sampled, ids):
            return unwritten.pop(place)
    raise ValueError(f"a trained run of {len(ids)} tokens is no turn of the engine")


def _is_one_history(turns: Sequence[KeptTurn]) -> bool:
    """Whether each turn continues the one before."""
    return all(
        turn.session == before.session and turn.after == before.place
        for before, turn in pairwise(turns)
    )


def _write_turns(args: Any, sample: Any, turns: Sequence[KeptTurn]) -> None:
    """The turns of an unfinished episode, each prompt a continuation of what came before."""
    sample.tokens = turns[0].prompt.tolist()
    for number, turn in enumerate(turns):
        if number:
            since = turn.prompt[len(turns[number - 1].tokens) :]
            sample.append_response_tokens(args, tokens=since.tolist(), trainable=False)
        sample.append_response_tokens(
            args,
            tokens=turn.completion.ids.tolist(),
            log_probs=turn.completion.logprobs.tolist(),
            trainable=True,
            meta_info=_meta_for(turn, len(turn.completion.ids)),
        )


def _meta_for(turn: KeptTurn, count: int) -> dict[str, Any]:
    """The turn's `meta_info` for its first `count` tokens, those that are trained."""
    meta = dict(turn.meta)
    if count == len(turn.completion.ids):
        return meta
    for ids_key, offsets_key in TOP_P_KEYS:
        if meta.get(ids_key) is not None and meta.get(offsets_key) is not None:
            offsets = _int32(meta[offsets_key])[: count + 1]
            meta[offsets_key] = offsets
            meta[ids_key] = _int32(meta[ids_key])[: offsets[-1]]
    return meta


def _int32(value: object) -> list[int]:
    """An array as SGLang sends it: base64 of little-endian int32, or a list."""
    if isinstance(value, str):
        array = np.frombuffer(base64.b64decode(value), dtype="<i4")
    else:
        array = np.asarray(value, dtype=np.int32).reshape(-1)
    return [int(number) for number in array]


def _write_placeholder(args: Any, sample: Any, profile: tokendelta.Profile) -> None:
    clear(sample)
    stop = min(profile.stop_ids)
    sample.tokens = [stop, stop]
    sample.response_length = 1
    sample.loss_mask = [0]
    sample.rollout_log_probs = [0.0]
    sample.remove_sample = True
    if getattr(args, "rollout_top_p", 1.0) != 1.0:
        sample.rollout_top_p_token_ids = []
        sample.rollout_top_p_token_offsets = [0, 0]
    if getattr(args, "use_rollout_routing_replay", False):
        row = [[0] * args.moe_router_topk for _ in range(args.num_layers)]
        sample.rollout_routed_experts = [row]


def _sibling(sample: Any) -> Any:
    sibling = copy.copy(sample)
    sibling.metadata = copy.copy(sample.metadata)
    # Its requests are the first sample's already; slime would count them again.
    if hasattr(sibling, "trace"):
        del sibling.trace
    return sibling


def reward_for(args: Any, score: float | None, *, evaluation: bool) -> Any:
    """A score as slime has rewards: under its reward key where it has one."""
    names = ("reward_key", "eval_reward_key") if evaluation else ("reward_key",)
    keys = [key for name in names if (key := getattr(args, name, None))]
    if not keys or (score is None and not evaluation):
        return score
    return dict.fromkeys(keys, score)


def _masks_old_turns(args: Any) -> bool:
    return bool(
        getattr(args, "partial_rollout", False)
        and getattr(args, "mask_offpolicy_in_partial_rollout", False)
    )


def _text(profile: tokendelta.Profile, ids: Sequence[int]) -> str:
    tokenizer: Any = profile.tokenizer
    return str(tokenizer.decode(ids, skip_special_tokens=False))
