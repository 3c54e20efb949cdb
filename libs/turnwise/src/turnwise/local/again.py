"""Plays a recorded episode again, from its line of episodes.jsonl and without a model.

1. The policy says what was recorded. Each of its turns is found by the prompt before it, token by
   token: a prompt that no recorded turn follows is where the replay differs.
2. Services that the method asks through `turnwise.replay` answer what was recorded; others are
   asked.
3. Everything else is what the code of today does: environment, tools, parsing, reward.

Nothing is written into the run folder.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config import ConfigError
from turnwise.engine import Completion, SamplingParams
from turnwise.episode import Boundary, BoundaryError, Episode
from turnwise.local.experiment import read_tasks, tool_format
from turnwise.local.options import SHIPPED, SMOLLM2, TrainOptions
from turnwise.local.policy import audited, load_policy, load_tokenizer
from turnwise.method import Method, Services, play
from turnwise.policy import Policy, model_vocabulary
from turnwise.printable import tell
from turnwise.replay import CALLS, Replay
from turnwise.rollout import Rollout
from turnwise.run.authors import SAMPLED
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import parse_line, read_lines
from turnwise.run.traces import SegmentTrace, Trace, parse_trace

Ids = NDArray[np.int32]
EXIT_DIFFERS = 4


def replay_episode(options: TrainOptions, method: Method[Any, Any]) -> int:
    """Plays line `options.replay` of the run in `options.run_dir` again and says what differs.

    Returns:
        0 where ending, score and tokens are those recorded; 4 where one is not.

    Raises:
        ConfigError: there is no such episode, or not enough of it was recorded.
        PreflightError: a service of the method does not answer.
    """
    assert options.run_dir is not None and options.replay is not None
    folder = RunFolder.open(options.run_dir)
    trace = read_trace(folder, options.replay)
    episode = asyncio.run(_play(options, method, trace, _task(options, method, trace)))
    tell(f"{folder.episodes}:{options.replay}: {trace.task_id}, rollout {trace.rollout_id}")
    findings = compare(trace, episode, grouped=_is_grouped(method))
    for one in findings:
        tell(one.text())
    return 0 if all(one.same for one in findings) else EXIT_DIFFERS


def read_trace(folder: RunFolder, number: int) -> Trace:
    """The episode on a line, counted from 1.

    Raises:
        ConfigError: there is none, or it can't be played again.
    """
    where = f"{folder.episodes}:{number}"
    for at, line in enumerate(read_lines(folder.episodes), start=1):
        if at == number:
            try:
                trace = parse_trace(parse_line(folder.episodes, number, line))
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from None
            break
    else:
        raise ConfigError(f"{where}: there is no such line; the page shows those that there are")
    if not trace.segments or not isinstance(trace.info.get("seed"), int):
        raise ConfigError(f"{where}: can't be played again: no tokens or no seed were recorded")
    return trace


class RecordedEngine:
    """Says what the policy said after the same prompt. Implements `Engine`.

    Turns that are not trained, as those sampled under a grammar, are said too; their log-probs were
    not recorded and are 0.
    """

    takes_grammar = True

    def __init__(self, segments: Sequence[SegmentTrace]) -> None:
        self._prompts: list[Ids] = []
        known: set[tuple[int, bytes]] = set()
        self._turns: defaultdict[bytes, deque[tuple[Ids, NDArray[np.float32]]]] = defaultdict(deque)
        for segment in segments:
            ids = np.array(segment.ids, dtype=np.int32)
            logprobs = np.array(segment.logprobs, dtype=np.float32)
            logprobs = np.concatenate([np.zeros(segment.prompt_length), np.nan_to_num(logprobs)])
            for turn, start, stop in _turns(segment):
                # A turn that others go on from is in the segment of each of them.
                key = turn, ids[:stop].tobytes()
                if key in known:
                    continue
                known.add(key)
                said = ids[start:stop], logprobs[start:stop].astype(np.float32)
                self._prompts.append(ids[:start])
                self._turns[ids[:start].tobytes()].append(said)

    async def generate(
        self, prompt_ids: NDArray[np.int32], params: SamplingParams, *, session_id: str
    ) -> Completion:
        """See `Engine`. Raises BoundaryError where no turn was recorded after this prompt."""
        prompt = np.ascontiguousarray(prompt_ids, dtype=np.int32)
        turns = self._turns.get(prompt.tobytes())
        if not turns:
            alike = max((_common(prompt, other) for other in self._prompts), default=0)
            raise BoundaryError(
                Boundary.ENGINE,
                f"no turn was recorded after this prompt of {len(prompt)} tokens; the first {alike}"
                " are those of a recorded one (turns behind a segment's last trained one are in no"
                " record)",
            )
        ids, logprobs = turns.popleft()
        stopped = len(ids) > 0 and int(ids[-1]) in params.stop_token_ids
        return Completion(ids, logprobs, "stop" if stopped else "length")

    async def release(self, session_id: str) -> None:
        """See `Engine`."""

    async def close(self) -> None:
        """See `Engine`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out now and what was recorded."""

    what: str
    now: str
    recorded: str
    same: bool

    def text(self) -> str:
        told = "as recorded" if self.same else f"recorded {self.recorded}"
        return f"{self.what:<8} {self.now}, {told}"


def compare(trace: Trace, episode: Episode, *, grouped: bool) -> list[Finding]:
    """Ending, score and tokens of a replay against the record.

    Args:
        grouped: Whether the recorded score is the group's business, so that it is not compared.
    """
    ending = episode.ending.label
    now = f"{ending} ({episode.ending.error})" if episode.ending.error else ending
    found = [Finding("ending", now, trace.ending, ending == trace.ending)]
    if not grouped:
        same = episode.score == trace.score
        found.append(Finding("score", _number(episode.score), _number(trace.score), same))
    ours, theirs = (
        [one.ids.tolist() for one in episode.segments],
        [one.ids for one in trace.segments],
    )
    found.append(Finding("tokens", _sizes(ours), _sizes(theirs), ours == theirs))
    return found


def _task(options: TrainOptions, method: Method[Any, Any], trace: Trace) -> Any:
    train, evaluation, _ = read_tasks(options, method)
    tasks = train if trace.kind == "train" else evaluation
    if trace.task_id not in tasks:
        raise ConfigError(f"task {trace.task_id!r}: the rows have none of this name any more")
    return tasks[trace.task_id]


async def _play(
    options: TrainOptions, method: Method[Any, Any], trace: Trace, task: Any
) -> Episode:
    tokenizer, name = _tokenizer(options, method)
    tools = list(method.tools())
    policy = Policy(
        engine=RecordedEngine(trace.segments),
        profile=audited(name, tokenizer, tools, model_vocabulary(Path(name))),
        max_context_tokens=options.rollout_max_context_len,
        tool_format=tool_format(method, tokenizer),
        sampling=options.sampling() if trace.kind == "train" else options.eval_sampling(),
        on_rewrite=method.options.on_rewrite,
    )
    calls = trace.info.get(CALLS)
    rollout = Rollout(
        task=task,
        task_id=trace.task_id,
        rollout_id=trace.rollout_id,
        group_id=trace.group_id,
        seed=trace.info["seed"],
        replay=Replay(calls if isinstance(calls, Mapping) else None),
    )
    try:
        await method.open(Services(policy=policy))
        return await play(method, rollout, policy)
    finally:
        await method.close()


def _tokenizer(options: TrainOptions, method: Method[Any, Any]) -> tuple[Any, str]:
    name = options.hf_checkpoint
    if name == SMOLLM2:
        return load_policy(name, require_tools=False).tokenizer, name
    if name == SHIPPED:
        name = str(method.shipped)
    return load_tokenizer(name), name


def _turns(segment: SegmentTrace) -> list[tuple[int, int, int]]:
    """The number of each sampled turn and its [start, stop).

    A stop token directly behind another turn is the template's: it has the number of the prompt
    that it begins.
    """
    turns: list[tuple[int, int, int]] = []
    before = -1
    for kind, turn, start, stop in segment.spans:
        if kind in (*SAMPLED, "stop") and turn == before:
            if turns and turns[-1][2] == start:
                start = turns.pop()[1]
            turns.append((turn, start, stop))
        before = turn
    return turns


def _is_grouped(method: Method[Any, Any]) -> bool:
    return type(method).group_scores is not Method.group_scores


def _common(one: Ids, other: Ids) -> int:
    size = min(len(one), len(other))
    differing = np.flatnonzero(one[:size] != other[:size])
    return int(differing[0]) if differing.size else size


def _number(score: float | None) -> str:
    return "none" if score is None else f"{score:g}"


def _sizes(segments: Sequence[Sequence[int]]) -> str:
    total = sum(map(len, segments))
    return f"{total:,} in {len(segments)} segment{'s' * (len(segments) != 1)}"
