"""What a result on τ²-bench's tasks shows and what it does not, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from taubench.tau2 import KNOWN_HOLES

from apps.trainers.tau.options import TauOptions

SPLITS = {
    "base": "These are the tasks of the official split base.",
    "test": "These are upstream's test tasks, a part of base.",
    "held-out": "These are upstream's test tasks, a part of base.",
    "train": "These are upstream's train tasks, a part of base: a policy may have trained on them.",
}
OLD_TASKS = (
    "The tasks are those of version 26.3, of which many were corrected since: no score on them is"
    " comparable with one on v1.0."
)
OFFLINE = (
    "The user is simulated offline, by rules and without a model: scores with it are for comparing"
    " checkpoints, not for comparison with published ones."
)
SOLO = "Solo: the agent works on a ticket with the user's tools and talks to nobody."
STRICT = "Graded strictly, without known holes of the official grading: another score than that."
HOLES = "Graded as the package does, with its known holes ({}; libs/taubench says what each is)."
MET = "Sentences that a judge should tell were taken as met: the score is an upper bound."


def claims(
    options: TauOptions, task_set: str, split: str, players: Mapping[str, str]
) -> tuple[str, ...]:
    """
    Args:
        options: The run's.
        task_set: The version of the tasks.
        split: Of the tasks of the result.
        players: As of `Method.players`.
    """
    solo, versioned = options.env.endswith("-solo"), options.env in ("tau2-retail", "tau2-airline")
    user = players.get("user", "another one")
    if solo:
        told = SOLO
    elif options.user.strategy == "offline":
        told = OFFLINE
    else:
        told = f"The user is {user}; compare the scores with those of this user alone."
    holes = ", ".join(hole.name for hole in KNOWN_HOLES)
    return (
        *((SPLITS[split],) if split in SPLITS else ()),
        *((OLD_TASKS,) if versioned and task_set == "26.3" else ()),
        told,
        STRICT if options.strict else HOLES.format(holes),
        *((MET,) if options.nl_assertions == "met" and options.env == "tau2-retail" else ()),
    )
