"""One MemAgent episode: the loop for training and evaluation, on every backend.

After Yu et al. 2025 (MemAgent, arXiv:2507.02259):

1. The text is encoded once and cut into sections of `chunk_tokens` ids.
2. For each section in order a turn of its own: problem, memory and section are shown, and what the
   policy writes is the next memory.
3. A last turn sees problem and memory alone, and answers.
4. The score is that of the answer. Every turn is a segment, and all are trained with the episode's
   advantage.

Deviations from the paper and the code that came with it:
1. Sections and memories are ids from end to end, in evaluation too: nothing is decoded and encoded
   again, so that no border moves, no character breaks and no memory grows beyond its limit.
2. A text of too many sections is refused unless a cut is asked for, and what was cut is counted.
3. A memory that was cut, is empty or repeats itself is counted, and `on_bad_memory` is the rule.
4. Answers are compared after SQuAD's normalisation, not as strings of LaTeX.

Beyond the paper, each off by default:
5. `step_credit`: a turn earns beside the answer's reward what its memory holds of the gold facts
   more than the one before (less: it pays), compared with the group's turns on the same section,
   or at the same callback. The answer's turn earns the reward alone and is compared with none.
6. `callbacks`: after the last section so many earlier ones are read once more, each the one that
   BM25 finds for the problem and the memory then.

| what happens                                              | ending           | score            |
|-----------------------------------------------------------|------------------|------------------|
| the last turn ends by itself                              | finished         | of the answer    |
| the last turn is cut at its limit                         | stopped(tokens)  | of the answer    |
| a bad memory, `on_bad_memory` stop                        | stopped(format)  | 0                |
| a prompt leaves no room in `max_context_tokens`           | stopped(context) | 0                |
| the engine gives a turn back unfinished (`abort`)         | cancelled        | none             |
| the engine fails or misses its deadline                   | lost(engine)     | none             |

A memory that is cut by the context in place of its own limit counts as cut. An answer is worth 1 or
0, less `memory_price` in proportion to the memories' mean length and `bad_memory_penalty` for each
bad memory where that is the rule, and at least 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from turnwise.answers import normalise
from turnwise.config import ConfigError
from turnwise.conversation import Conversation, Overflow, Turn
from turnwise.episode import Ending, Episode, Limit
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout

from apps.trainers.memagent.callbacks import Earlier
from apps.trainers.memagent.memory import fault
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.reader import Reader
from apps.trainers.memagent.reward import is_right, read_answer
from apps.trainers.memagent.sections import TooLong
from apps.trainers.memagent.task import Task

PartT = TypeVar("PartT")
FAULTS = ("cut", "empty", "repeats")


async def run_episode(
    rollout: Rollout[Task], policy: AnyPolicy, reader: Reader[PartT], options: MemAgentOptions
) -> Episode:
    """Plays one episode. Raises nothing on what the policy wrote.

    Args:
        rollout: The task; its seed fixes every draw of the episode.
        policy: Reads and answers.
        reader: How it does.
        options: Limits and rules.

    Raises:
        BoundaryError: the engine failed.
        ConfigError: the text has too many sections.
    """
    async with Conversation(policy, rollout, deadline_s=options.engine_deadline_s) as talk:
        run = _Run(talk, rollout.task, reader, options)
        try:
            ending = await run.play()
        except TooLong as error:
            raise ConfigError(
                f"{rollout.task.where}: {error}; the method reads at most {options.max_chunks}"
                f" sections of {options.chunk_tokens} tokens: raise --memagent.max-chunks, or give"
                " --memagent.on-overlong centre, which cuts"
            ) from None
        return talk.episode(
            ending,
            run.score(ending),
            metrics=run.metrics(),
            info=run.info(),
            credit=run.credit,
        )


class _Run(Generic[PartT]):
    """State of one episode."""

    def __init__(
        self, talk: Conversation, task: Task, reader: Reader[PartT], options: MemAgentOptions
    ) -> None:
        self.talk, self.task, self.reader, self.options = talk, task, reader, options
        self.memory = reader.nothing
        self.sections = self.updates = self.lost = self.written = self.unchanged = 0
        self.bad: Counter[str] = Counter()
        self.answer = ""
        self.earlier = Earlier(reader.text) if options.callbacks else None
        self.credit: list[float | None] = []
        self.held = task.held(reader.text(self.memory)) if options.step_credit else 0.0

    async def play(self) -> Ending:
        """Reads, reads again where asked, then answers."""
        opened = await self.reader.open(self.task)
        self.lost = opened.lost
        async for section in opened.sections:
            self.sections += 1
            if self.earlier is not None:
                self.earlier.add(section)
            if (ending := await self.read(opened.problem, section)) is not None:
                return ending
        for _ in range(self.options.callbacks):
            found = await self.call_back()
            if found is None:
                break
            if (ending := await self.read(opened.problem, found)) is not None:
                return ending
        turn = await self.reader.final(self.talk, opened.problem, self.memory)
        if isinstance(turn, Turn):
            self.credit += [None] if self.options.step_credit else []
            if turn.finish != "abort":
                self.answer = read_answer(turn.text, self.options.answer)
        return turn.ending or Ending.finished()

    async def read(self, problem: PartT, section: PartT) -> Ending | None:
        """A turn for the memory; the ending where that is the end."""
        self.updates += 1
        turn = await self.reader.update(self.talk, problem, self.memory, section)
        return turn.ending if isinstance(turn, Overflow) else self.remember(turn)

    async def call_back(self) -> PartT | None:
        """An earlier section that the problem or the memory speaks of."""
        assert self.earlier is not None
        return await self.earlier.find(f"{self.task.problem} {self.reader.text(self.memory)}")

    def remember(self, turn: Turn) -> Ending | None:
        """Takes a turn for the memory; the ending where the rule says so."""
        if turn.finish == "abort":
            return Ending.cancelled()
        ending = self.keep(turn)
        if self.options.step_credit:
            before, self.held = self.held, self.task.held(self.reader.text(self.memory))
            self.credit.append(self.options.step_credit * (self.held - before))
        return ending

    def keep(self, turn: Turn) -> Ending | None:
        """Puts what a turn wrote in the memory's place, unless the rule says otherwise."""
        new = self.reader.memory(turn)
        self.written += turn.tokens
        wrong = fault(new, cut=turn.finish == "length")
        if wrong is not None:
            self.bad[wrong] += 1
            if self.options.on_bad_memory == "stop":
                return Ending.stopped(Limit.FORMAT)
            if wrong == "empty" or self.options.on_bad_memory == "previous":
                self.unchanged += 1
                return None
        self.unchanged += bool(self.reader.text(new) == self.reader.text(self.memory))
        self.memory = new
        return None

    def score(self, ending: Ending) -> float | None:
        """The reward; None where the ending is not the policy's."""
        if not ending.by_policy:
            return None
        options = self.options
        worth = float(is_right(self.answer, self.task.answers))
        filled = self.written / (max(self.updates, 1) * options.max_memory_tokens)
        worth -= options.memory_price * min(filled, 1.0)
        if options.on_bad_memory == "penalty":
            worth -= options.bad_memory_penalty * self.bad.total()
        return max(0.0, worth)

    def metrics(self) -> Mapping[str, float]:
        """Counts of the episode; `answer_kept` is whether the last memory holds an answer."""
        kept = normalise(self.reader.text(self.memory))
        more = {}
        if self.options.callbacks:
            more["callbacks"] = float(self.updates - self.sections)
        return {
            "sections": float(self.sections),
            "lost_tokens": float(self.lost),
            "memory_tokens": self.written / max(self.updates, 1),
            "memory_unchanged": float(self.unchanged),
            **{f"memory_{name}": float(self.bad[name]) for name in FAULTS},
            "answer_kept": float(
                any(f" {normalise(one)} " in f" {kept} " for one in self.task.answers)
            ),
            "right": float(is_right(self.answer, self.task.answers)),
            **more,
        }

    def info(self) -> Mapping[str, Any]:
        """What it answered, what is right, and the last memory."""
        return {
            "answer": self.answer,
            "truths": list(self.task.answers),
            "memory": self.reader.text(self.memory),
            **({"credit": list(self.credit)} if self.credit else {}),
        }
