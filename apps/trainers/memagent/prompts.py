"""What the policy is shown, with places for what changes.

`full` is for models that follow instructions; `compact` says the same in the fewest tokens, for
policies of a few million parameters. A place is one of `PLACES`: Unicode noncharacters, which stand
in no text of ours. What is put there ends on a line of its own, so that a tokenizer which splits at
line breaks gives the same ids for the whole as for its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PromptName = Literal["full", "compact"]
Order = Literal["problem-first", "section-first"]

PROBLEM, MEMORY, SECTION = PLACES = "\ufdd1", "\ufdd2", "\ufdd3"


@dataclass(frozen=True, slots=True)
class Prompts:
    """The two prompts of an episode.

    Attributes:
        update: Asks for the next memory; has the three places.
        final: Asks for the answer; has PROBLEM and MEMORY.
        nothing: What stands for the memory before the first section.
    """

    update: str
    final: str
    nothing: str


_PROBLEM = f"<problem>\n{PROBLEM}\n</problem>"
_MEMORY = f"<notes>\n{MEMORY}\n</notes>"
_SECTION = f"<section>\n{SECTION}\n</section>"
_TASK = (
    "You are reading a long text, one section at a time, in order to solve a problem. You can't go"
    " back: your notes are all that stays of a section."
)
_UPDATE = (
    "Write your new notes. They replace the old ones, so repeat from those whatever still counts,"
    " and add what this section says that helps with the problem, or that leads on to what does."
    " Write the notes alone."
)
_FINAL = (
    "You have read a long text, and these are your notes on it. Solve the problem from them, and"
    " give the answer alone, in as few words as it takes, inside \\boxed{}."
)


def make_prompts(name: PromptName, order: Order) -> Prompts:
    """The prompts of a name, with what changes in this order."""
    problem, memory, section = _PROBLEM, _MEMORY, _SECTION
    if name == "compact":
        problem, memory, section = f"Problem\n{PROBLEM}", f"Notes\n{MEMORY}", f"Section\n{SECTION}"
    if order == "problem-first":
        parts = [problem, memory, section]
    else:
        parts = [section, problem, memory]
    if name == "compact":
        return Prompts(
            update="\n".join([*parts, "New notes"]),
            final="\n".join([problem, memory, "Answer"]),
            nothing="none",
        )
    return Prompts(
        update="\n\n".join([_TASK, *parts, _UPDATE]),
        final="\n\n".join([_FINAL, problem, memory]),
        nothing="There are no notes yet.",
    )
