"""What is known about a chat template after it was audited."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tokendelta._core import Tokens
from tokendelta.audit import audit
from tokendelta.byte_pair import quick_encoder
from tokendelta.continuation import Continuations
from tokendelta.encoding import Encoder, HuggingFaceEncoder, SpecialTokens, TextEncoder
from tokendelta.errors import TemplateError
from tokendelta.findings import Findings, Report, report
from tokendelta.literal_ids import LiteralIds
from tokendelta.probes import ENV_KINDS, TURN_KINDS, EnvKind
from tokendelta.rendering import Message, Renderer, Tokenizer, Tool

Reasoning = Literal["none", "blank", "some"]

# A reasoning block with more tokens than this holds reasoning.
_BLANK_TOKENS = 4

EncoderName = Literal["auto", "huggingface"]

_FINDINGS: dict[str, Findings] = {}


class Profile:
    """A checked description of one chat template with one tokenizer.

    Make it once with `from_tokenizer` and share it between sessions: it does not change, apart
    from caches.
    """

    __slots__ = (
        "_named",
        "_nameless",
        "before_stop",
        "continuations",
        "encoder",
        "ending_size",
        "fast",
        "findings",
        "header_ids",
        "header_stop_ids",
        "reasoning_close_id",
        "recalls_reasoning",
        "renderer",
        "specials",
        "stop_ids",
        "template_hash",
        "think_tags",
        "tokenizer",
        "tool_call_id",
        "tools",
        "uniform",
        "vocab_size",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Tool] | None,
        template_kwargs: Mapping[str, Any],
        vocab_size: int | None,
        stop_token_ids: Sequence[int],
        encoder: EncoderName,
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = list(tools) if tools else None
        self.renderer = Renderer(tokenizer, template_kwargs)
        self.specials = SpecialTokens(tokenizer)
        inner: TextEncoder = HuggingFaceEncoder(tokenizer)
        self.fast = False
        if encoder == "auto":
            quick = quick_encoder(tokenizer, self.specials, inner)
            if quick is not None:
                inner, self.fast = quick, True
        self.encoder = Encoder(inner, self.specials)
        self._named = _size(tokenizer)
        self.vocab_size = self._named if vocab_size is None else vocab_size
        self._nameless = 0 < self._named < self.vocab_size
        self.template_hash = _hash(tokenizer, template_kwargs, self.specials)
        findings = _FINDINGS.get(self.template_hash)
        if findings is None:
            findings = audit(self.renderer, self.specials, _eos_text(tokenizer))
            _FINDINGS[self.template_hash] = findings
        self.findings = findings
        by_text = self.specials.by_text
        template_stops = [by_text[text] for text in findings.stops if text in by_text]
        self.stop_ids = frozenset([*template_stops, *_eos_ids(tokenizer), *stop_token_ids])
        self.continuations = Continuations(self.renderer, findings, self.encoder, self.specials)
        self.header_stop_ids = frozenset(by_text[text] for text in findings.openers)
        # Whether it matters to some answer that a turn further back reasoned.
        self.recalls_reasoning = any(
            findings.change(kind, True, env) != change
            for (kind, earlier, env), change in findings.changes.items()
            if not earlier
        )
        self.uniform: dict[EnvKind, LiteralIds] = {}
        for env in ENV_KINDS:
            literal = self._uniform(env)
            if literal is not None:
                self.uniform[env] = literal
        # What the template writes between the text of a turn and its stop token.
        last = self.specials.last(findings.ending)
        self.before_stop = findings.ending[: last.start()] if last else ""
        # Ids of a continuation among which the template's own stop token is looked for.
        self.ending_size = len(self.encoder.encode_inside(findings.ending)) + 1
        self.header_ids = self.encoder.encode(findings.generation_prompt)
        self.reasoning_close_id = _only_special(findings.reasoning_end, self.specials)
        self.tool_call_id = _only_special(findings.tool_call_open, self.specials)
        # Between which a client may write reasoning down, in front of the text.
        tags = findings.reasoning_open.strip(), findings.reasoning_end.strip()
        self.think_tags = tags if all(tags) else ("<think>", "</think>")

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Tool] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        vocab_size: int | None = None,
        stop_token_ids: Sequence[int] = (),
        encoder: EncoderName = "auto",
    ) -> Profile:
        """Audit the tokenizer's chat template.

        tools            given to the template in every render, unless a session brings its own.
        template_kwargs  further arguments of the template, such as `enable_thinking`.
        vocab_size       ids must be below it; by default the length of the tokenizer. Give the
                         model's own size where its output layer is larger: what it samples there is
                         the policy's own token, though it has no text.
        stop_token_ids   ids that end a turn, beside those that the template and the tokenizer name.
        encoder          "auto" takes tiktoken for a byte-level BPE if it gives the same ids on a
                         few hundred probes, else the tokenizer itself; "huggingface" always the
                         latter. `profile.fast` says which.

        The audit renders some hundred short conversations and is kept for the process by the hash
        of template, arguments and special tokens. Raises TemplateError if the template renders no
        conversation.
        """
        if vocab_size is not None and vocab_size < 1:
            raise ValueError(f"vocab_size is {vocab_size}, it must be at least 1")
        return cls(
            tokenizer,
            tools=tools,
            template_kwargs=template_kwargs or {},
            vocab_size=vocab_size,
            stop_token_ids=stop_token_ids,
            encoder=encoder,
        )

    def report(self) -> Report:
        """What the audit found: `str()` of it is a table, `.data` plain data."""
        return report(self.findings, self.template_hash)

    def encode_prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, broken: bool
    ) -> list[int]:
        """Ids of the whole conversation with the generation prompt, at least one.

        Raises TemplateError if the template renders nothing.
        """
        text = self.renderer.render(messages, tools=tools, generation=True)
        ids = self.encoder.encode_broken(text) if broken else self.encoder.encode_long(text)
        if not ids:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TemplateError(
                f"the chat template renders nothing for messages of {roles}; see whether it is the"
                " model's own, and which roles and arguments it asks for"
            )
        return ids

    def text_of(self, ids: list[int], *, plain: bool = False) -> str:
        """Text of ids, without special tokens if `plain`. Ids of the model that are beyond the
        tokenizer have no text."""
        if self._nameless:
            ids = [i for i in ids if i < self._named]
        return str(self.tokenizer.decode(ids, skip_special_tokens=plain))

    def decode(self, tokens: Tokens, start: int, stop: int) -> str:
        """Text of sampled ids, without the ending of a turn."""
        if stop > start and tokens[stop - 1] in self.stop_ids:
            stop -= 1
        return self.text_of(tokens.view(start, stop).tolist()).removesuffix(self.before_stop)

    def reasoning(self, tokens: Tokens, start: int, stop: int) -> Reasoning:
        """Whether sampled ids close a reasoning block, and whether it holds anything."""
        findings = self.findings
        if self.reasoning_close_id >= 0:
            end = tokens.find(self.reasoning_close_id, start, stop)
            if end < 0:
                return "none"
            if end - start > _BLANK_TOKENS:
                return "some"
            text = self.decode(tokens, start, end)
        else:
            marker = findings.reasoning_end.strip() or "</think>"
            text, found, _ = self.decode(tokens, start, stop).partition(marker)
            if not found:
                return "none"
        opening = findings.reasoning_open.strip() or "<think>"
        return "some" if text.replace(opening, "").strip() else "blank"

    def _uniform(self, env: EnvKind) -> LiteralIds | None:
        """The literal continuation if it is the same after every turn and rewrites nothing."""
        changes = [c for (_, _, kind), c in self.findings.changes.items() if kind == env]
        literals = {id(self.continuations.literal(turn, env)) for turn in TURN_KINDS}
        if len(literals) > 1 or any(change.effect != "append" for change in changes):
            return None
        return self.continuations.literal("text", env)


def _size(tokenizer: Any) -> int:
    """Ids that the tokenizer has, 0 for unknown."""
    try:
        return len(tokenizer)
    except TypeError:
        return 0


def _only_special(text: str, specials: SpecialTokens) -> int:
    """The id of the one special token in the text, or -1."""
    match = specials.find(text)
    if match is None or specials.find(text[match.end() :]) is not None:
        return -1
    return specials.by_text[match.group()]


def _eos_text(tokenizer: Any) -> str:
    text = getattr(tokenizer, "eos_token", None)
    return text if isinstance(text, str) else ""


def _eos_ids(tokenizer: Any) -> list[int]:
    eos = getattr(tokenizer, "eos_token_id", None)
    if eos is None:
        return []
    return [int(i) for i in eos] if isinstance(eos, list | tuple) else [int(eos)]


def _hash(tokenizer: Any, kwargs: Mapping[str, Any], specials: SpecialTokens) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        template = f"{type(tokenizer).__qualname__} at {id(tokenizer)}"
    names = {
        name: str(getattr(tokenizer, name, None))
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    parts = [template, dict(kwargs), specials.by_text, sorted(specials.control), names]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
