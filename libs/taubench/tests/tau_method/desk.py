"""A tokenizer of bytes, customers that misbehave, and short ways to script an episode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tokendelta
from taubench import Task, load_tasks
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from turnwise.engine import SamplingParams
from turnwise.engine.scripted import Reply, ScriptedEngine, reply
from turnwise.policy import Policy
from turnwise.users import UserReply

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- if loop.first and tools -%}
{{- '\\n' + tools | map(attribute='function.name') | join(' ') -}}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


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


def cancel_task() -> Task:
    """A real task whose one write is a cancellation."""
    return next(
        task
        for task in load_tasks("retail", "train")
        if [action.name for action in task.actions] == ["cancel_pending_order"]
    )


def call(name: str, /, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def right_call(task: Task) -> str:
    (action,) = task.actions
    return call(action.name, **action.kwargs)


def say(text: str, **options: Any) -> Reply:
    """A turn of that text and the stop token."""
    ids = tokenizer().encode(text, add_special_tokens=False)
    return reply([*ids, tokenizer().eos_token_id], **options)


def decode(ids: Any) -> str:
    return str(tokenizer().decode([int(token) for token in ids], skip_special_tokens=False))


def policy(
    *turns: str | Reply, max_context_tokens: int = 8192, max_new_tokens: int = 512
) -> tuple[Policy, ScriptedEngine]:
    engine = ScriptedEngine([say(turn) if isinstance(turn, str) else turn for turn in turns])
    made = Policy(
        engine=engine,
        profile=profile(),
        max_context_tokens=max_context_tokens,
        sampling=SamplingParams(max_new_tokens=max_new_tokens),
    )
    return made, engine


@dataclass
class Customer:
    """Says what it is told; each answer is words, an exception to raise, or seconds to wait."""

    answers: Sequence[Any] = ()
    opening: Any = "Cancel it."
    name: str = "customer"

    def __post_init__(self) -> None:
        self._answers = iter(self.answers)

    async def reset(self, task: Task) -> Any:
        return await self._give(self.opening)

    async def reply(self, agent_text: object) -> UserReply:
        return UserReply(await self._give(next(self._answers)))

    async def _give(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer
