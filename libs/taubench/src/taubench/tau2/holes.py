"""Where upstream's grading gives more than was earned, and what `strict` makes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hole:
    """
    Attributes:
        name: One word or two, for a table.
        what: What upstream lets through; kept unless `strict`.
        strict: What `strict` asks instead; "" if it stays open.
    """

    name: str
    what: str
    strict: str = ""


KNOWN_HOLES = (
    Hole(
        "bare call",
        "A reference action without a list of arguments to compare is matched by those that the "
        "call has, so that a call without arguments matches every action of that name.",
        "The arguments are those of the reference, no more and no less.",
    ),
    Hole(
        "failed call",
        "A call that returned an error counts as the reference action, and so does the agent's "
        "call of a tool that only the user has.",
        "The call went through and came from the side that the reference names.",
    ),
    Hole(
        "unheard text",
        "Text beside a call counts as communicated, though the user never gets it.",
        "Only messages without calls count.",
    ),
    Hole(
        "substring",
        'An expected string counts wherever its characters occur: "10" is in "100".',
        "It must stand by itself.",
    ),
    Hole(
        "apart sides",
        "Telecom's databases are compared with a reference whose two sides were not brought in "
        "line, so that even the reference solution matches in 43 of 114 tasks. DB is in no "
        "telecom task's basis.",
        "The reference's sides are brought in line first.",
    ),
    Hole(
        "nothing to do",
        "Tasks whose right end is an unchanged database pay an agent that does nothing: "
        "`noop_baseline` stands beside every score.",
    ),
    Hole(
        "names only",
        "The transfers of telecom's reference are compared by the name alone, so that handing over "
        "at once earns 20 of its 114 tasks: `transfer_baseline` stands beside every score.",
    ),
    Hole(
        "no assertion",
        "Most retail tasks of version 1.0 have NL_ASSERTION in their basis and no assertion, which "
        "counts as met.",
    ),
)
