"""What a result on tau-bench's tasks shows and what it does not, in sentences."""

from __future__ import annotations

from apps.trainers.tau.options import TauOptions

FAMILY = ("held-out", "tune")
"""The parts of the compact prompt's family of tasks that are kept from training."""

SPLITS = {
    "held-out": "Held-out and training tasks are real tau-bench retail tasks that share no order"
    " and no customer; no setting was chosen on the held-out ones.",
    "tune": "Tune and training tasks are real tau-bench retail tasks that share no order and no"
    " customer; settings were chosen on the tune tasks, so the result flatters.",
    "dev": "These are upstream's dev tasks.",
    "test": "These are upstream's test tasks.",
}
ONE_WRITE = (
    "Only tasks whose one write is cancelling a pending order or returning items of a delivered"
    " one: 168 of the 500 training tasks."
)
PROMPTS = {
    "compact": "The prompt is compact: five tools, shortened orders, no policy document. The score"
    " is not comparable with published tau-bench scores.",
    "full": "The prompt is the policy document with all tools of the domain.",
}
OFFLINE = {
    "compact": "The customer is simulated offline: it says everything at once, and leaves after the"
    " agent's first statement.",
    "full": "The customer is simulated offline and plays no conditional scenes; scores with it are"
    " for comparing checkpoints, not for comparison with published ones.",
}
SHIPPED = (
    "The policy was warmed up on synthetic dialogues, half of them with a typical mistake. A rise"
    " shows that the mistakes were unlearnt on unseen tasks, not that a new skill was found."
)


def claims(
    options: TauOptions, split: str, user: str, *, left_out: int, shipped: bool
) -> tuple[str, ...]:
    """
    Args:
        options: The run's.
        split: Of the tasks of the result.
        user: Who plays the user, by name.
        left_out: Training tasks that the prompt demonstrates.
        shipped: Whether the policy is the shipped one.
    """
    offline = options.user.strategy == "offline"
    played = f"The customer is {user}; compare the scores with those of this customer alone."
    shown = f"{left_out} training tasks stand in the prompt as demonstrations and are left out."
    return (
        *((SPLITS[split],) if split in SPLITS else ()),
        *((ONE_WRITE,) if split in FAMILY else ()),
        PROMPTS[options.prompt],
        OFFLINE[options.prompt] if offline else played,
        *((shown,) if left_out else ()),
        *((SHIPPED,) if shipped else ()),
    )
