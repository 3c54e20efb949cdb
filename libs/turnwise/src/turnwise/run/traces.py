"""Episodes as rows of `episodes.jsonl`: everything that is needed to look at one token by token.

What is kept, so that the file stays readable (`TraceChoice`): of a training step its best, worst
and longest episode and one of each ending that is not the policy's doing; of an evaluation those
and a few others spread over its episodes. Together they have at most `MAX_TOKENS` tokens, the first
excepted. The scores of all episodes are in the metrics row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import tokendelta
from numpy.typing import NDArray

from turnwise.episode import Episode
from turnwise.run.authors import Run, author_runs
from turnwise.run.jsonl import Row

SCHEMA_VERSION = 1
EVAL_TRACES = 12
"""Episodes that one evaluation keeps whole."""
MAX_TOKENS = 65_536
"""Tokens that the episodes kept of one step or evaluation have together."""
MAX_PENDING = 8
"""Tokens waited for to complete a character, which has at most 4 bytes of UTF-8."""


class SegmentTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One token sequence of an episode; n tokens, the first `prompt_length` of them context.

    Attributes:
        ids: n token ids.
        texts: n texts that joined are the decoded segment; of tokens that share a character the
            last has it and the others are empty.
        loss_mask: n - prompt_length numbers, 1 where the token is trained.
        logprobs: n - prompt_length natural logarithms, None where the token is not trained.
        spans: `[kind, turn, start, stop]` over all n tokens, as tokendelta has them.
        authors: `[author, start, stop]` over all n tokens (`turnwise.run.authors`).
        weight: The part of the episode's trained tokens that lies here.
        advantage: Of the segment; None where it is not trained on, or the backend does not say.
        trainer_logprobs: As `logprobs`, of the trainer before the step's first update; empty where
            the trainer's numbers are not known, as are the following.
        ratios: n - prompt_length, the policy's probability at its optimiser step over the old one.
        clipped: Places in `ids` of tokens whose clip was active there.
        gap: Largest difference between `logprobs` and `trainer_logprobs`.
    """

    ids: list[int]
    texts: list[str]
    prompt_length: int
    loss_mask: list[int]
    logprobs: list[float | None]
    spans: list[tuple[str, int, int, int]]
    authors: list[Run]
    weight: float
    advantage: float | None = None
    trainer_logprobs: list[float | None] = []
    ratios: list[float | None] = []
    clipped: list[int] = []
    gap: float | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `episodes.jsonl`: an `Episode`, when it was played and why it was kept.

    Attributes:
        step: Training steps that the weights had seen.
        kind: `train` or `eval`.
        why: `best`, `worst`, `longest`, `sample` or the label of an ending; several joined by `+`.
        ending: `Ending.label`; `error` is what was lost, in words.
    """

    schema: int = SCHEMA_VERSION
    step: int
    kind: str
    why: str
    rollout_id: str
    group_id: str
    task_id: str
    ending: str
    error: str | None
    score: float | None
    wall_s: float
    metrics: dict[str, float | None]
    info: dict[str, Any]
    transcript: list[dict[str, Any]]
    segments: list[SegmentTrace]


def trace_row(
    episode: Episode,
    tokenizer: Any,
    *,
    step: int,
    kind: str,
    why: str,
    version_shift: int = 0,
    trained: Trained = MappingProxyType({}),
) -> Row:
    """One episode as a JSON-able row, a `Trace`.

    Args:
        tokenizer: Turns token ids into text: `decode(ids, skip_special_tokens=...,
            clean_up_tokenization_spaces=...)`.
        step: Training steps that the weights had seen.
        kind: `train` or `eval`.
        why: `best`, `worst`, `longest`, `sample` or the label of an ending.
        version_shift: Added to the engine's versions of its weights, which begin anew with each
            process: what makes them the training steps that the weights had seen.
        trained: What the trainer found, where it is known.
    """
    trace = Trace(
        step=step,
        kind=kind,
        why=why,
        rollout_id=episode.rollout_id,
        group_id=episode.group_id,
        task_id=episode.task_id,
        ending=episode.ending.label,
        error=episode.ending.error,
        score=episode.score,
        wall_s=round(episode.wall_s, 4),
        metrics=dict(episode.metrics),
        info=_shifted(episode.info, version_shift),
        transcript=[dict(message) for message in episode.transcript],
        segments=[
            _segment(episode, number, tokenizer, trained.get((episode.rollout_id, number)))
            for number in range(len(episode.segments))
        ],
    )
    return msgspec.structs.asdict(trace) | {
        "segments": [msgspec.structs.asdict(segment) for segment in trace.segments]
    }


def parse_trace(row: Row) -> Trace:
    """The typed row.

    Raises:
        ValueError: saying which field is missing or of the wrong type, or which schema was found.
    """
    if row.get("schema") != SCHEMA_VERSION:
        raise ValueError(
            f"schema: this version reads {SCHEMA_VERSION}, found {row.get('schema')!r}"
        )
    try:
        return msgspec.convert(row, Trace)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNumbers:
    """What a training step found of the trained tokens of a segment, N of them.

    Attributes:
        advantage: Of the segment.
        logprobs: float32[N], the trainer's before the step's first update.
        ratios: float32[N], the policy's probability at its optimiser step over the old one.
        clipped: bool[N], where the clip was active.
    """

    advantage: float
    logprobs: NDArray[np.float32]
    ratios: NDArray[np.float32]
    clipped: NDArray[np.bool_]


Trained = Mapping[tuple[str, int], TrainerNumbers]
"""By rollout and the number of its segment."""


class TraceChoice:
    """Chooses the episodes of a step or an evaluation that are kept whole, as they end.

    Of those that it was given it holds what it may choose, and not the others.
    """

    def __init__(self, *, spread: bool = False) -> None:
        """
        Args:
            spread: Whether others, spread evenly over all, are kept beside the notable ones.
        """
        self._spread = spread
        self._count = 0
        self._stride = 1
        self._evenly: dict[int, Episode] = {}
        self._best: Episode | None = None
        self._worst: Episode | None = None
        self._longest: Episode | None = None
        self._unscored: dict[str, Episode] = {}

    def add(self, episode: Episode) -> None:
        """Looks at the next episode."""
        number, self._count = self._count, self._count + 1
        if self._spread and number % self._stride == 0:
            self._evenly[number] = episode
            if len(self._evenly) > 2 * EVAL_TRACES:
                self._stride *= 2
                self._evenly = {
                    at: kept for at, kept in self._evenly.items() if at % self._stride == 0
                }
        if not episode.ending.by_policy:
            self._unscored.setdefault(episode.ending.label, episode)
        elif episode.segments or episode.transcript:
            self._compare(episode)

    def chosen(self) -> list[tuple[str, Episode]]:
        """The episodes with the reason for each, several reasons joined by `+`."""
        notable = (("best", self._best), ("worst", self._worst), ("longest", self._longest))
        found = [(why, episode) for why, episode in notable if episode is not None]
        found += self._unscored.items()
        if not self._spread:
            return _within_bounds(_once(found))
        taken = {episode.rollout_id for _, episode in found}
        room = max(0, EVAL_TRACES - len(taken))
        others = [one for one in self._evenly.values() if one.rollout_id not in taken]
        if len(others) > room:
            others = [others[place * len(others) // room] for place in range(room)]
        found += [("sample", episode) for episode in others]
        return _within_bounds(_once(found)[:EVAL_TRACES])

    def _compare(self, episode: Episode) -> None:
        score = episode.score
        assert score is not None
        if self._best is None or score > (self._best.score or 0.0):
            self._best = episode
        if self._worst is None or score < (self._worst.score or 0.0):
            self._worst = episode
        if self._longest is None or _tokens(episode) > _tokens(self._longest):
            self._longest = episode


def choose_traces(episodes: Iterable[Episode]) -> list[tuple[str, Episode]]:
    """The episodes of a training step that are kept whole, each with the reason."""
    return _choose(episodes, spread=False)


def choose_eval_traces(episodes: Iterable[Episode]) -> list[tuple[str, Episode]]:
    """The episodes of an evaluation that are kept whole: the notable ones, then others."""
    return _choose(episodes, spread=True)


def _choose(episodes: Iterable[Episode], *, spread: bool) -> list[tuple[str, Episode]]:
    choice = TraceChoice(spread=spread)
    for episode in episodes:
        choice.add(episode)
    return choice.chosen()


def token_texts(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """A text for each token, which joined are the decoded ids (long runs of no UTF-8 aside).

    A token's text depends on the tokens before it (a character in several byte tokens, the space
    before a word), so each is what decoding the ids up to it adds.
    """
    texts: list[str] = []
    start = known = 0
    for stop in range(1, len(ids) + 1):
        before = _decode(tokenizer, ids[start:known])
        after = _decode(tokenizer, ids[start:stop])
        if after.endswith("\ufffd") and stop - known < MAX_PENDING and stop < len(ids):
            texts.append("")
            continue
        texts.append(after[len(before) :])
        start, known = known, stop
    return texts


def _shifted(info: Mapping[str, Any], shift: int) -> dict[str, Any]:
    versions = info.get("weight_versions")
    if not shift or not isinstance(versions, list | tuple):
        return dict(info)
    return {**info, "weight_versions": [version + shift for version in versions]}


def _segment(
    episode: Episode, number: int, tokenizer: Any, found: TrainerNumbers | None
) -> SegmentTrace:
    sample = episode.segments[number]
    trained = sum(segment.trained_tokens for segment in episode.segments)
    ids = sample.ids.tolist()
    texts = token_texts(ids, tokenizer)
    return SegmentTrace(
        ids=ids,
        texts=texts,
        prompt_length=sample.prompt_length,
        loss_mask=sample.loss_mask.tolist(),
        logprobs=_rounded(sample.logprobs),
        spans=[(span.kind, span.turn, span.start, span.stop) for span in sample.spans],
        authors=author_runs(number, sample, texts, episode.transcript),
        weight=sample.trained_tokens / trained if trained else 0.0,
        **({} if found is None else _trainer_fields(sample, found)),
    )


def _trainer_fields(sample: tokendelta.Sample, found: TrainerNumbers) -> dict[str, Any]:
    places = np.flatnonzero(sample.loss_mask)
    wide = np.full((2, len(sample.loss_mask)), np.nan, dtype=np.float32)
    wide[:, places] = found.logprobs, found.ratios
    differences = np.abs(found.logprobs - sample.logprobs[places])
    return {
        "advantage": round(found.advantage, 4),
        "trainer_logprobs": _rounded(wide[0]),
        "ratios": _rounded(wide[1]),
        "clipped": (sample.prompt_length + places[found.clipped]).tolist(),
        "gap": float(f"{differences.max(initial=0.0):.4g}"),
    }


def _rounded(values: NDArray[np.float32]) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 4) for value in values.tolist()]


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def _tokens(episode: Episode) -> int:
    """The episode's tokens; estimated from its messages where none are known."""
    if episode.segments:
        return sum(len(segment.ids) for segment in episode.segments)
    return sum(len(str(message.get("content") or "")) for message in episode.transcript) // 4


def _once(chosen: Iterable[tuple[str, Episode]]) -> list[tuple[str, Episode]]:
    """Each episode once, with all its reasons; `sample` is none beside another."""
    kept: dict[str, tuple[str, Episode]] = {}
    for why, episode in chosen:
        known = kept.get(episode.rollout_id)
        if known is None:
            kept[episode.rollout_id] = (why, episode)
        elif why != "sample":
            kept[episode.rollout_id] = (f"{known[0]}+{why}", episode)
    return list(kept.values())


def _within_bounds(chosen: Sequence[tuple[str, Episode]]) -> list[tuple[str, Episode]]:
    kept: list[tuple[str, Episode]] = []
    total = 0
    for why, episode in chosen:
        total += _tokens(episode)
        if total > MAX_TOKENS and kept:
            total -= _tokens(episode)
            continue
        kept.append((why, episode))
    return kept
