"""What is known about a chat template after it was audited."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokendelta.audit import Findings, audit
from tokendelta.continuation import Continuations
from tokendelta.encoding import Encoder, SpecialTokens
from tokendelta.rendering import Message, Renderer, Tokenizer, Tool

_FINDINGS: dict[str, Findings] = {}


class Profile:
    """A checked description of one chat template with one tokenizer.

    Make it once with `from_tokenizer` and share it between sessions: it does not change, apart
    from caches.
    """

    __slots__ = (
        "continuations",
        "encoder",
        "findings",
        "renderer",
        "specials",
        "stop_ids",
        "template_hash",
        "tokenizer",
        "tools",
        "vocab_size",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Tool] | None,
        template_kwargs: Mapping[str, Any],
        vocab_size: int,
        stop_token_ids: Sequence[int],
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = list(tools) if tools else None
        self.renderer = Renderer(tokenizer, template_kwargs)
        self.encoder = Encoder(tokenizer)
        self.specials = SpecialTokens(tokenizer)
        self.vocab_size = vocab_size
        self.template_hash = _hash(tokenizer, template_kwargs, self.specials)
        findings = _FINDINGS.get(self.template_hash)
        if findings is None:
            findings = audit(self.renderer, self.specials, _eos_text(tokenizer))
            _FINDINGS[self.template_hash] = findings
        self.findings = findings
        self.stop_ids = frozenset(
            [*stop_token_ids, *_eos_ids(tokenizer)]
            + [self.specials.by_text[text] for text in findings.stops if text]
        )
        self.continuations = Continuations(self.renderer, findings)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Tool] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        vocab_size: int | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> Profile:
        """Audit the tokenizer's chat template.

        tools            given to the template in every render, unless a session brings its own.
        template_kwargs  further arguments of the template, such as `enable_thinking`.
        vocab_size       ids must be below it; by default the length of the tokenizer. Give the
                         model's own size where its output layer is larger.
        stop_token_ids   ids that end a turn, beside those that the template and the tokenizer name.

        The audit takes some 50 small renders and is kept for the process by the hash of template,
        arguments and special tokens. Raises TemplateError if the template renders no conversation.
        """
        if vocab_size is None:
            try:
                vocab_size = len(tokenizer)  # type: ignore[arg-type]
            except TypeError:
                vocab_size = 0
        return cls(
            tokenizer,
            tools=tools,
            template_kwargs=template_kwargs or {},
            vocab_size=vocab_size,
            stop_token_ids=stop_token_ids,
        )

    def report(self) -> str:
        """What the audit found, as text."""
        return self.findings.text()

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Tool] | None) -> str:
        """The conversation as text with the generation prompt."""
        return self.renderer.render(messages, tools=tools, generation=True)


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
    parts = [template, dict(kwargs), specials.by_text, sorted(specials.control)]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
