"""What becomes of each field of a request: the one table that the dialects read and the docs show.

A field is *served*, or the run's *own* goes before it and that is counted, or it is *refused*: the
tokens would be of another distribution than the policy's, or not what was sampled. Any other field
says nothing to a policy and is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from turnwise.gateway.requests import Refusal

Dialect = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Fields of each dialect, by name, and what is done with them."""

    says: str
    chat: tuple[str, ...] = ()
    responses: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all dialects, each once."""
        return tuple(dict.fromkeys((*self.chat, *self.responses, *self.messages)))


SERVED = (
    Served(
        chat=("messages",),
        responses=("input", "instructions"),
        messages=("messages", "system"),
        says="the whole history; text alone, others: 400. A last message of the assistant (prefill)"
        " too",
    ),
    Served(
        chat=("tools",),
        responses=("tools",),
        messages=("tools",),
        says="function tools, shown by the chat template in the client's order and spelling;"
        " of a `namespace` (Responses) each function as `NAMESPACE__NAME`; others: 400",
    ),
    Served(
        chat=("tool_choice",),
        responses=("tool_choice",),
        messages=("tool_choice",),
        says="`auto`; `none`: calls are not read. `required`, `any` or a name: sampled freely, and"
        " counted in `unmet_tool_choice` where no call came. `disable_parallel_tool_use`: 400",
    ),
    Served(
        chat=("max_tokens", "max_completion_tokens"),
        responses=("max_output_tokens",),
        messages=("max_tokens",),
        says="the least of it, the run's own and the room in the context",
    ),
    Served(
        chat=("stop",),
        responses=("stop",),
        messages=("stop_sequences",),
        says="up to 16 strings: the answer ends before the first of them, the turn with the token"
        " that completes it; every token up to there is trained as it was sampled",
    ),
    Served(
        chat=("logprobs",),
        responses=("include",),
        says="the recorded log-prob of every token that was sampled, the end token's and those of"
        " calls too (Responses: by `message.output_text.logprobs`, where there is a text)",
    ),
    Served(
        chat=("response_format",),
        responses=("text",),
        messages=("output_format", "output_config"),
        says="`json_object` and `json_schema`, where the engine takes a grammar and no tool is to"
        " be called: such turns are masked, their log-probs are of another distribution"
        " (`constrained train` trains them). With other engines, or beside tools: 400",
    ),
    Served(
        chat=("stream", "stream_options"),
        responses=("stream",),
        messages=("stream",),
        says="the same turn either way",
    ),
    Served(
        chat=("model",), responses=("model",), messages=("model",), says="any; said in the answer"
    ),
)
OWN = (
    "temperature", "top_p", "top_k", "min_p", "seed", "thinking", "reasoning", "reasoning_effort",
)  # fmt: skip
"""The run's own go before these."""
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "max_tool_calls": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "regex": (),
    "ebnf": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "truncation": ("disabled",),
    "mcp_servers": ([],),
    "container": (),
}
"""With the values that ask for what is done anyway; null always does."""


def sort(body: Mapping[str, Any], dialect: Dialect) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields that the run's own go before, and fields that say nothing.

    Raises:
        Refusal: a field can't be served exactly, and asks for more than is done anyway.
    """
    own, ignored = [], []
    for name, value in body.items():
        if name in _READ[dialect] or value is None:
            continue
        if name in OWN:
            own.append(name)
        elif name not in REFUSED:
            ignored.append(name)
        elif not any(value == one and type(value) is type(one) for one in REFUSED[name]):
            raise not_exactly(name, value)
    return tuple(own), tuple(ignored)


def not_exactly(name: str, value: Any, why: str = "") -> Refusal:
    """The refusal of a field that can't be served exactly."""
    because = why or (
        "the tokens would be of another distribution than the policy's, or not what was sampled"
    )
    return Refusal(
        400,
        f"{name}: {value!r:.60} can't be served exactly: {because}. Leave it out",
        code="unsupported_parameter",
        field=name,
    )


def table() -> list[str]:
    """The rows of the table in docs/gateway.md."""
    rows = [(field.names, field.says) for field in SERVED]
    rows.append((OWN, "the run's own go before; counted in `overridden/FIELD`"))
    asking = [_asking(name, harmless) for name, harmless in REFUSED.items()]
    lines = [f"| {', '.join(f'`{name}`' for name in names)} | {says} |" for names, says in rows]
    return [
        *lines,
        f"| {', '.join(asking)} | 400 |",
        "| any other | taken, says nothing to the policy, counted in `ignored/FIELD` |",
    ]


def _asking(name: str, harmless: tuple[Any, ...]) -> str:
    shown = [repr(value).replace("'", '"') for value in harmless if value not in ({}, [])]
    plain = list(dict.fromkeys(one.removesuffix(".0").lower() for one in shown))
    return f"`{name}`" + (f" but for {' or '.join(plain)}" if plain else "")


_READ: Mapping[str, frozenset[str]] = {
    "chat": frozenset(name for field in SERVED for name in field.chat),
    "responses": frozenset(name for field in SERVED for name in field.responses),
    "messages": frozenset(name for field in SERVED for name in field.messages),
}
