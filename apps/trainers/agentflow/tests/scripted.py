"""A tokenizer of bytes, scripted models, tools and judges, and short ways to play an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tokendelta
from apps.trainers.agentflow.services import Budgets, Question, Services
from pydantic import Field
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from turnwise.engine import SamplingParams
from turnwise.engine.scripted import Reply, ScriptedEngine, reply
from turnwise.episode import Episode
from turnwise.judge import Verdict
from turnwise.method import Job
from turnwise.models import Answer
from turnwise.policy import Policy

from apps.trainers.agentflow.episode import run_episode
from apps.trainers.agentflow.prompts import make_prompts
from apps.trainers.agentflow.toolbox import Toolbox
from apps.trainers.agentflow.tools.tool import Tool, ToolArguments, ToolParts, ToolResult

TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
QUESTION = Question("maths/1", "What is 6 times 7?", "42")
STOP, CONTINUE = "It is all there.\nConclusion: STOP", "Not yet.\nConclusion: CONTINUE"


@cache
def tokenizer() -> Any:
    """One token a byte, and the ChatML markers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    base = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    base.decoder = decoders.ByteLevel()
    base.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    make: Any = PreTrainedTokenizerFast
    wrapped = make(tokenizer_object=base, eos_token="<|im_end|>", pad_token="<|im_end|>")
    wrapped.chat_template = TEMPLATE
    return wrapped


@cache
def profile() -> tokendelta.Profile:
    return tokendelta.Profile.from_tokenizer(tokenizer())


def say(text: str, **options: Any) -> Reply:
    """A turn of that text and the stop token."""
    ids = tokenizer().encode(text, add_special_tokens=False)
    return reply([*ids, tokenizer().eos_token_id], **options)


def decode(ids: Any) -> str:
    return str(tokenizer().decode([int(token) for token in ids], skip_special_tokens=False))


def policy(
    *turns: str | Reply, max_context_tokens: int = 16_384, max_new_tokens: int = 1_024
) -> tuple[Policy, ScriptedEngine]:
    engine = ScriptedEngine([say(turn) if isinstance(turn, str) else turn for turn in turns])
    made = Policy(
        engine=engine,
        profile=profile(),
        max_context_tokens=max_context_tokens,
        sampling=SamplingParams(max_new_tokens=max_new_tokens),
    )
    return made, engine


def step(tool: str = "calculator", sub_goal: str = "Multiply 6 by 7.") -> str:
    """A next step that keeps the contract."""
    return (
        f"Justification: it has to be computed\nContext: 6 and 7\nSub-Goal: {sub_goal}\n"
        f"Tool Name: {tool}"
    )


@dataclass
class Model:
    """Says what it is told: a text, an exception to raise, seconds to wait; the last one again.

    Attributes:
        prompts: What it was asked, in order; `seeds` with which seed.
    """

    name: str
    answers: Sequence[Any]
    tokens: tuple[int, int] = (10, 5)
    finish: str = "stop"
    prompts: list[str] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        (message,) = messages
        self.prompts.append(message["content"])
        self.seeds.append(seed)
        answer = self.answers[min(len(self.prompts), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            answer = "late"
        return Answer(answer, *self.tokens, self.finish)


@dataclass
class Judge:
    """Right if the truth is in the answer; or what it is told: a verdict, an exception, seconds."""

    verdict: Any = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def grade(self, question: str, answer: str, truth: str) -> Verdict:
        self.asked.append((question, answer, truth))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        if isinstance(self.verdict, float):
            await asyncio.sleep(self.verdict)
        if isinstance(self.verdict, Verdict):
            return self.verdict
        return Verdict(truth in answer, "rule")


class Scripted(Tool):
    """A tool that gives back what it is told."""

    name = "calculator"
    description = "Does sums."

    class Arguments(ToolArguments):
        query: str = Field(max_length=500, description="The sum.")

    def __init__(self, *results: Any) -> None:
        self.results = results or ("42",)
        self.calls: list[Any] = []

    @classmethod
    def build(cls, parts: ToolParts) -> Scripted:
        return cls()

    @property
    def limits(self) -> tuple[str, ...]:
        return ("Whole numbers below 7,000 alone.",)

    async def run(self, arguments: Any, *, seed: int) -> ToolResult:
        self.calls.append(arguments)
        result = self.results[min(len(self.calls), len(self.results)) - 1]
        if isinstance(result, BaseException):
            raise result
        if isinstance(result, float):
            await asyncio.sleep(result)
        return result if isinstance(result, ToolResult) else ToolResult(str(result))


class Oracle(Scripted):
    """A second tool."""

    name = "oracle"
    description = "Knows."


def services(
    *,
    executor: Iterable[Any] = ('```json\n{"query": "6*7"}\n```',),
    verifier: Iterable[Any] = (STOP,),
    final: Iterable[Any] = (r"It is \boxed{42}.",),
    tools: Sequence[Tool] = (),
    judge: Any = None,
    prompt: str = "full",
    budgets: Mapping[str, Any] | None = None,
    **options: Any,
) -> Services:
    """Everything scripted; by default the first step is enough and the answer right."""
    return Services(
        executor=Model("executor", list(executor)),
        verifier=Model("verifier", list(verifier)),
        final=Model("final", list(final)),
        toolbox=Toolbox(tools or [Scripted(), Oracle()]),
        judge=judge or Judge(),
        prompts=make_prompts(prompt),
        budgets=Budgets(**(budgets or {})),
        **options,
    )


async def play(
    *turns: str | Reply,
    question: Question = QUESTION,
    seed: int = 5,
    limits: Mapping[str, Any] | None = None,
    given: Services | None = None,
    **options: Any,
) -> tuple[Episode, ScriptedEngine]:
    """The episode of these planner turns, of `given` or of `services(**options)`."""
    made, engine = policy(*turns, **(limits or {}))
    episode = await run_episode(
        question,
        made,
        given or services(**options),
        rollout_id="r1",
        group_id="g1",
        seed=seed,
    )
    return episode, engine


def job(question: Question, made: Policy, **changes: Any) -> Job:
    """What hooks and evaluators give the method."""
    given: dict[str, Any] = {
        "prompt": question.text,
        "label": question.answer,
        "metadata": {"id": question.id},
        "policy": made,
        "rollout_id": "r",
        "group_id": "g",
        "seed": 1,
    }
    return Job(**{**given, **changes})
