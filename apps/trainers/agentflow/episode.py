"""One AgentFlow episode: the loop for training and evaluation, on every backend.

After Li et al. 2025 (AgentFlow, arXiv:2510.05592), in the form that trains on slime:

1. Analysis (planner, trained): what the question asks, which tools may help. Free text.
2. Next step (planner, trained): a sub-goal and a tool, of the tools and the steps that are left.
3. A frozen executor writes the arguments; the tool runs; the memory keeps what came of it.
4. A frozen verifier says whether that suffices; if not, and while the budgets last, back to 2.
5. A frozen model writes the final answer, and the judge compares that answer alone with the truth.

Deviations from the paper and the code that came with it:
1. The analysis is trained as well, as in the slime port; the paper trains next steps alone.
2. The planner is shown how many steps are left, and each tool's schema and limits.
3. A step that can't be read is never carried out as another one: see `on_malformed`.
4. Prompt and turn are one token sequence each, ids as they were sent and sampled; text for a later
   prompt is stripped of special tokens.

| what happens                                                     | ending           | score   |
|------------------------------------------------------------------|------------------|---------|
| the verifier says STOP                                           | finished         | verdict |
| `max_steps` steps and no STOP                                    | stopped(turns)   | verdict |
| `max_total_tokens` used before a step                            | stopped(tokens)  | verdict |
| the prompt of a step leaves no room in `max_context_tokens`      | stopped(context) | verdict |
| a step can't be read: `stop`; `retry` after `max_retries`        | stopped(format)  | 0       |
| the engine gives a turn back unfinished (`abort`)                | cancelled        | none    |
| planner's engine, a frozen model, a tool, sandbox or judge fails | lost(boundary)   | none    |
| `wall_s` seconds                                                 | lost(boundary)   | none    |
| the prompt of the analysis does not fit                          | lost(environment)| none    |

The verdict is 1 or 0. Where a budget ends the steps, the final answer is written from what there is
and graded: the planner chose to spend its budget so. Seconds are another matter, since they depend
on the machine and not on the policy: whoever was being waited for loses the episode.

`on_malformed`, the rule for a step that can't be read, which counts by kind whatever the rule:
`retry` asks again with the error shown, `max_retries` times in an episode, each a turn and no step;
`penalty` spends the step, tells the planner in the memory, and takes `malformed_penalty` off the
score, which stays at least 0; `stop` ends the episode.

A frozen model that does not keep its format is no failure of anyone's infrastructure: an
unreadable command is asked for again and then becomes a failed step, a verdict that can't be read
counts as CONTINUE; both are counted.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from turnwise.conversation import Conversation, Overflow, Turn
from turnwise.conversation.clock import play_within
from turnwise.episode import (
    Boundary,
    BoundaryError,
    Ending,
    Episode,
    Limit,
    crossing,
)
from turnwise.fences import after_thinking
from turnwise.judge import Verdict
from turnwise.models import FrozenModel
from turnwise.policy import AnyPolicy
from turnwise.printable import cut_middle
from turnwise.rollout import Rollout, derive_seed

from apps.trainers.agentflow.config import AgentFlowOptions
from apps.trainers.agentflow.executor import choose_arguments, run_tool, to_action
from apps.trainers.agentflow.helpers import Helpers
from apps.trainers.agentflow.memory import Action, Memory
from apps.trainers.agentflow.parse import Malformed, NextStep, read_step
from apps.trainers.agentflow.question import Question
from apps.trainers.agentflow.tools.tool import Tool, ToolResult
from apps.trainers.agentflow.verifier import is_enough

__all__ = ["run_episode"]


async def run_episode(
    rollout: Rollout[Question], policy: AnyPolicy, helpers: Helpers, options: AgentFlowOptions
) -> Episode:
    """Plays one episode. Raises nothing on what a model wrote or a service did.

    Args:
        rollout: The question; its seed fixes every draw of the episode.
        policy: The planner.
        helpers: Frozen models, tools and judge.
        options: Budgets and rules.

    Segment k of the episode is planner turn k. The transcript is as of `Conversation.transcript`,
    with the authors `prompt`, `policy`, `executor`, `tool:<name>`, `verifier` and `final`.
    """
    async with Conversation(
        policy, rollout, specials="escape", deadline_s=options.engine_deadline_s
    ) as talk:
        run = _Run(talk, rollout, helpers, options)
        ending = await play_within(options.wall_s, run.play, lambda: run.waiting_for)
    score = run.score() if ending.by_policy else None
    return talk.episode(ending, score, metrics=run.metrics(), info=run.info())


class _Run:
    """State of one episode."""

    def __init__(
        self,
        talk: Conversation,
        rollout: Rollout[Question],
        helpers: Helpers,
        options: AgentFlowOptions,
    ) -> None:
        self.talk, self.helpers, self.options = talk, helpers, options
        self.question, self.seed = rollout.task, rollout.seed
        self.memory = Memory(
            result_characters=options.result_characters, characters=options.memory_characters
        )
        self.text = self.plain(self.question.text)
        self.analysis = ""
        self.answer = ""
        self.verdict: Verdict | None = None
        self.reward = 0.0
        self.waiting_for = Boundary.ENVIRONMENT
        self.counts: Counter[str] = Counter()
        self.helper_tokens = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def plain(self, text: str) -> str:
        """Text for a later prompt: without what the planner's tokenizer makes special tokens of."""
        return self.talk.markers.plain(text)

    async def play(self) -> Ending:
        ending = await self._analyse()
        if ending is None:
            ending = await self._steps()
        if ending.by_policy and ending.limit is not Limit.FORMAT:
            await self._conclude()
        return ending

    async def _analyse(self) -> Ending | None:
        prompts = self.helpers.prompts
        prompt = prompts.analysis(self.text, self.helpers.toolbox, max_steps=self.options.max_steps)
        turn = await self._turn(prompt)
        if isinstance(turn, Overflow):
            has = f"a context of more than {turn.limit} tokens: its first prompt has {turn.needed}"
            raise BoundaryError(
                Boundary.ENVIRONMENT,
                f"the question needs {has if turn.limit else 'a longer context'}",
            )
        if turn.finish == "abort":
            return Ending.cancelled()
        text = self.plain(after_thinking(turn.text) or turn.text)
        self.analysis = cut_middle(text.strip(), prompts.max_analysis_characters)
        return None

    async def _steps(self) -> Ending:
        options = self.options
        for number in range(options.max_steps):
            if self.total_tokens >= options.max_total_tokens:
                return Ending.stopped(Limit.TOKENS)
            left = options.max_steps - number
            step = await self._next_step(left)
            if isinstance(step, Ending):
                return step
            self.counts["steps"] += 1
            if isinstance(step, Malformed):
                self._remember_malformed(step)
            elif await self._take(step, number, left - 1):
                return Ending.finished()
        return Ending.stopped(Limit.TURNS)

    async def _next_step(self, left: int) -> NextStep | Malformed | Ending:
        """What the planner chose; `Malformed` if the rule is to go on without."""
        helpers, options, problem = self.helpers, self.options, None
        while True:
            prompt = helpers.prompts.next_step(
                self.text,
                self.analysis,
                helpers.toolbox,
                self.memory,
                steps_left=left,
                problem=problem,
            )
            turn = await self._turn(prompt)
            if isinstance(turn, Overflow):
                return Ending.stopped(Limit.CONTEXT)
            if turn.finish == "abort":
                return Ending.cancelled()
            step = self._read(turn)
            if not isinstance(step, Malformed):
                return step
            self.counts["malformed"] += 1
            self.counts[f"malformed/{step.kind}"] += 1
            if options.on_malformed == "penalty":
                return step
            if options.on_malformed == "stop" or self.counts["retries"] >= options.max_retries:
                return Ending.stopped(Limit.FORMAT)
            self.counts["retries"] += 1
            problem = step

    def _read(self, turn: Turn) -> NextStep | Malformed:
        if turn.finish == "length":
            return Malformed("cut", f"the answer was cut after {turn.tokens} tokens")
        helpers = self.helpers
        return read_step(self.plain(turn.text), helpers.toolbox, helpers.prompts.labels)

    def _remember_malformed(self, problem: Malformed) -> None:
        words = f"The step could not be read: {problem.message}."
        self.memory.add(Action("", "", None, words, failed=problem.kind))

    async def _take(self, step: NextStep, number: int, left: int) -> bool:
        """Carries a step out; whether the verifier says that it was enough."""
        helpers = self.helpers
        arguments = await choose_arguments(
            lambda prompt: self._ask("executor", helpers.executor, prompt),
            helpers.prompts,
            self.text,
            step,
            retries=self.options.executor_retries,
            on_malformed=lambda problem: self._count("executor_malformed", problem.kind),
        )
        result = None
        if not isinstance(arguments, Malformed):
            result = await self._run(step.tool, arguments, number)
        self.memory.add(to_action(step, arguments, result))
        prompt = helpers.prompts.verdict(
            self.text, self.analysis, helpers.toolbox, self.memory, steps_left=left
        )
        return is_enough(
            await self._ask("verifier", helpers.verifier, prompt),
            on_malformed=lambda: self._count("verifier_malformed"),
        )

    async def _run(self, tool: Tool, arguments: Mapping[str, Any], number: int) -> ToolResult:
        self.waiting_for = Boundary.TOOL_SERVER
        self._count("tool_calls")
        self._count(f"tool/{tool.name}")
        started = time.perf_counter()
        try:
            result = await run_tool(tool, arguments, seed=derive_seed(self.seed, "tool", number))
        finally:
            self.seconds["tool_s"] += time.perf_counter() - started
        self.helper_tokens += result.read_tokens + result.written_tokens
        if result.failed is not None:
            self._count("tool_failed", result.failed)
        for author, text in result.steps:
            self._note("tool", self.plain(text), author)
        plain = ToolResult(self.plain(result.text), result.failed)
        self._note("tool", plain.text, f"tool:{tool.name}")
        return plain

    async def _conclude(self) -> None:
        """The final answer and its grade."""
        helpers = self.helpers
        prompt = helpers.prompts.final(self.text, self.analysis, self.memory)
        self.answer = await self._ask("final", helpers.final, prompt)
        self.waiting_for = Boundary.JUDGE
        started = time.perf_counter()
        try:
            async with crossing(Boundary.JUDGE):
                self.verdict = await helpers.judge.grade(
                    self.question.text, self.answer, self.question.answer
                )
                self.reward = self.verdict.score()
        finally:
            self.seconds["judge_s"] += time.perf_counter() - started

    async def _turn(self, prompt: str) -> Turn | Overflow:
        self.waiting_for = Boundary.ENGINE
        return await self.talk.fresh([{"role": "user", "content": self.plain(prompt)}])

    async def _ask(self, role: str, model: FrozenModel, prompt: str) -> str:
        """A frozen model's answer, without special tokens; its failure is at its own boundary."""
        self.waiting_for = Boundary.ENGINE
        asked = self.counts[f"asked/{role}"]
        self._count(f"asked/{role}")
        started = time.perf_counter()
        try:
            async with crossing(Boundary.ENGINE):
                answer = await model.ask(
                    [{"role": "user", "content": self.plain(prompt)}],
                    seed=derive_seed(self.seed, role, asked),
                )
        finally:
            self.seconds["helper_s"] += time.perf_counter() - started
        self.helper_tokens += answer.read_tokens + answer.written_tokens
        if answer.finish == "length":
            self._count("helper_cut", role)
        text = self.plain(after_thinking(answer.text) or "")
        self._note("tool", text, role)
        return text

    def _note(self, role: str, content: str, author: str) -> None:
        self.talk.note({"role": role, "name": author, "content": content}, author=author)

    def _count(self, name: str, kind: str | None = None) -> None:
        self.counts[name] += 1
        if kind is not None:
            self.counts[f"{name}/{kind}"] += 1

    @property
    def total_tokens(self) -> int:
        """Read and written so far, by all models."""
        counts = self.talk.counts
        return counts["prompt_tokens"] + counts["sampled_tokens"] + self.helper_tokens

    def score(self) -> float:
        """The verdict less the penalties, in [0, 1]."""
        penalty = 0.0
        if self.options.on_malformed == "penalty":
            penalty = self.options.malformed_penalty * self.counts["malformed"]
        return max(0.0, self.reward - penalty)

    def metrics(self) -> dict[str, float]:
        """Beside those of the conversation."""
        named = ("steps", "malformed", "retries", "tool_calls", "tool_failed")
        also = ("executor_malformed", "verifier_malformed", "helper_cut")
        tools = [f"tool/{name}" for name in self.helpers.toolbox.names]
        return {
            **dict.fromkeys((*named, *also, *tools), 0.0),
            **{name: float(count) for name, count in self.counts.items()},
            "total_tokens": float(self.total_tokens),
            "judged": float(self.verdict is not None and self.verdict.by == "judge"),
            **{name: self.seconds[name] for name in ("helper_s", "tool_s", "judge_s")},
        }

    def info(self) -> dict[str, Any]:
        """Beside that of the conversation."""
        return {
            "prompt": self.helpers.prompts.name,
            "tools": {tool.name: dict(tool.facts()) for tool in self.helpers.toolbox},
            "answer": self.answer,
            "truth": self.question.answer,
            "verdict": self.verdict.row() if self.verdict is not None else None,
            "on_malformed": self.options.on_malformed,
        }
