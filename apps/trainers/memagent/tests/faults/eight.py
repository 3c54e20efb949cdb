"""Eight MemAgent episodes for the hooks; no frozen model is asked."""

from __future__ import annotations

from typing import Any

from slime.utils.types import Sample  # type: ignore[import-not-found]  # pants: no-infer-dep
from slime_standin.eight import EPISODES, Eight
from slime_standin.errands import scores
from turnwise.testing import byte_tokenizer
from turnwise.testing.servers import Call, Turn

SECTIONS = 2
"""Of each text."""


async def reads(call: Call) -> Turn:
    """The policy: it keeps the last word it read, and answers with what it kept."""
    tokenizer = byte_tokenizer()
    prompt = tokenizer.decode(call.body["input_ids"])
    if "<section>" in prompt:
        text = prompt.partition("<section>\n")[2].partition("\n</section>")[0].split()[-1]
    else:
        notes = prompt.partition("<notes>\n")[2].partition("\n</notes>")[0]
        text = rf"\boxed{{{notes}}}"
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return Turn(ids, scores(ids))


def options(url: str, deadline_s: float) -> dict[str, Any]:
    return {"method": "memagent", "chunk_tokens": 20, "engine_deadline_s": deadline_s}


def rows() -> list[Any]:
    return [
        Sample(
            prompt=[{"role": "user", "content": "Which word is last?"}],
            label=f"w{number}",
            metadata={
                "id": f"words/{number}",
                "context": f"one two three four five six seven w{number}",
            },
        )
        for number in range(EPISODES)
    ]


MEMAGENT = Eight(
    options=options,
    rows=rows,
    policy=lambda: reads,
    says=lambda messages: "",
    victims=lambda call: False,
)
