"""`get_token_delta` with the contract of slime's function of this name, at the cost of the delta.

The contract, not an endorsement: it encodes sampled text again, and trains what the template puts
behind the stop token. `Session` does neither.

1. The conversation of the last call is remembered for each tokenizer, with its render.
2. Where the audit of the template (`standalone`) says that a plain message adds fixed text around
   its content, whatever came before, nothing is rendered.
3. Else the template is rendered as the contract says, less the render that is remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tokendelta.byte_pair import quick_encoder
from tokendelta.encoding import HuggingFaceEncoder, SpecialTokens, TextEncoder
from tokendelta.rendering import Message
from tokendelta.standalone import Standalone, find_standalone

# A shorter conversation may be rendered in a way of its own, as with a default system prompt.
_SHORTEST = 3


class _Memory:
    """What is known of one tokenizer: its audit, and the conversation of the last call."""

    def __init__(self, tokenizer: Any) -> None:
        template = getattr(tokenizer, "chat_template", None)
        self.template = template
        self.standalone: Standalone | None = None
        if isinstance(template, str):
            self.standalone = find_standalone(tokenizer)
        self.encoder: TextEncoder = HuggingFaceEncoder(tokenizer)
        quick = quick_encoder(tokenizer, SpecialTokens(tokenizer), self.encoder)
        if quick is not None:
            self.encoder = quick
        self.messages: list[Any] = []
        self.plain = True
        self.text: str | None = None

    def extends(self, messages: Sequence[Any]) -> bool:
        """Whether the messages are those of the last call and one more."""
        known = self.messages
        return len(messages) == len(known) + 1 and all(
            a == b for a, b in zip(known, messages, strict=False)
        )

    def learn(self, messages: Sequence[Any], extends: bool, text: str | None) -> None:
        """Remember copies, for the caller may go on with the same objects."""
        add = messages[len(self.messages) :] if extends else messages
        copies = [dict(m) if isinstance(m, dict) else m for m in add]
        self.messages = [*self.messages, *copies] if extends else copies
        known = self.standalone
        before = self.plain if extends else True
        self.plain = known is not None and before and all(known.plain(m) for m in copies)
        self.text = text


_memories: weakref.WeakKeyDictionary[Any, _Memory] = weakref.WeakKeyDictionary()


def get_token_delta(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    include_generation_prompt: bool = False,
) -> tuple[list[int], list[int]]:
    """Ids and loss mask that the last message adds to the conversation.

    An assistant message gives its text after the generation prompt with mask 1; with
    `include_generation_prompt` the prompt comes before it with mask 0. Any other message has mask
    0 throughout. Raises ValueError for an empty conversation and where the render of the last
    message does not extend the one before; what the template raises is passed on.
    """
    if not messages:
        raise ValueError("Cannot calculate a token delta for an empty conversation")
    memory = _memory(tokenizer)
    extends = memory.extends(messages)
    found = _standalone(memory, messages) if extends else None
    text = None
    if found is None:
        previous = memory.text if extends else None
        prompt, response, text = _rendered(tokenizer, messages, previous)
    else:
        prompt, response = found
    memory.learn(messages, extends, text)
    if messages[-1]["role"] != "assistant":
        ids = memory.encoder.encode(response)
        return ids, [0] * len(ids)
    if not include_generation_prompt:
        ids = memory.encoder.encode(response)
        return ids, [1] * len(ids)
    ids = memory.encoder.encode(prompt + response)
    # Counted on the prompt alone, so that an id which merges both is masked.
    masked = min(len(memory.encoder.encode(prompt)), len(ids))
    return ids, [0] * masked + [1] * (len(ids) - masked)


def _memory(tokenizer: Any) -> _Memory:
    try:
        memory = _memories.get(tokenizer)
    except TypeError:
        return _Memory(tokenizer)
    if memory is None or memory.template != getattr(tokenizer, "chat_template", None):
        memory = _Memory(tokenizer)
        try:
            _memories[tokenizer] = memory
        except TypeError:
            pass
    return memory


def _standalone(memory: _Memory, messages: Sequence[Message]) -> tuple[str, str] | None:
    """Generation prompt and text of a message that stands alone, or None if it is not known to."""
    known = memory.standalone
    if known is None or not memory.plain or len(messages) < _SHORTEST:
        return None
    before, last = messages[-2]["role"], messages[-1]
    literals = known.pairs.get((before, last["role"]))
    if literals is None or not known.plain(last):
        return None
    return known.prompts.get(before, ""), literals.join([last["content"]])


def _rendered(
    tokenizer: Any, messages: Sequence[Message], previous: str | None
) -> tuple[str, str, str]:
    """Generation prompt and text that the last message adds, and the render of everything."""

    def render(part: Sequence[Message], generation: bool = False) -> str:
        text: str = tokenizer.apply_chat_template(
            part, add_generation_prompt=generation, tokenize=False
        )
        return text

    current = render(messages)
    history, role = messages[:-1], messages[-1]["role"]
    if previous is None:
        previous = render(history)
    if role == "assistant":
        opened = render(history, generation=True)
        if not opened.startswith(previous):
            raise ValueError(
                "Adding the assistant generation prompt rewrote the rendered conversation"
            )
        if not current.startswith(opened):
            raise ValueError("The assistant response does not extend its generation prompt")
        return opened[len(previous) :], current[len(opened) :], current
    if current.startswith(previous):
        return "", current[len(previous) :], current
    if role != "user":
        raise ValueError(
            "The chat template rewrote history while calculating a non-user token delta"
        )
    alone = render(messages[-1:])
    if not current.endswith(alone):
        raise ValueError(
            "The latest user message is not a standalone suffix of the rendered conversation"
        )
    return "", alone, current
