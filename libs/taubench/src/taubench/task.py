"""What a task is, and what an agent may do in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RESPOND = "respond"
STOP = "###STOP###"
TERMINATING_TOOLS = frozenset({"transfer_to_human_agents"})


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the agent does: a tool call, or a message to the user.

    Attributes:
        name: The tool's name as the model gave it, or `respond`.
        kwargs: The call's arguments, JSON values by name. A message has `content`, a string.
        error: Why the model's call cannot be made at all. Such an action reaches no tool; its
            observation is `Error: ` and this text.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def respond(cls, content: str) -> Action:
        """A message to the user."""
        return cls(RESPOND, {"content": content})


@dataclass(frozen=True, slots=True)
class TaskFlags:
    """Why a task's score may say less than it seems; computed by `taubench.flags`.

    Attributes:
        gt_write_fails: A writing call of the ground truth returns an error, so the right
            behaviour was never annotated. Training leaves these tasks out.
        order_dependent: The final database depends on the order of the ground truth's writes.
        noop_reward: Reward of an agent that ends the conversation at once, 0.0 or 1.0.
        short_outputs: An expected output has at most two characters, so agent text contains it
            by accident.
    """

    gt_write_fails: bool = False
    order_dependent: bool = False
    noop_reward: float = 0.0
    short_outputs: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One user with one goal.

    Attributes:
        domain: `retail` or `airline`.
        split: `train`, `dev` or `test`; any other name for tasks of one's own.
        index: Position within the split, as upstream numbers its tasks.
        user_id: The user's key in the `users` table.
        instruction: What the user simulator is told. Never shown to the agent.
        actions: The annotated calls; replaying them gives the expected database.
        outputs: Strings that must occur in what the agent tells the user.
        flags: See `TaskFlags`.
    """

    domain: str
    split: str
    index: int
    user_id: str
    instruction: str
    actions: tuple[Action, ...]
    outputs: tuple[str, ...] = ()
    flags: TaskFlags = TaskFlags()

    @property
    def id(self) -> str:
        """For people and files: `retail/train/12`."""
        return f"{self.domain}/{self.split}/{self.index}"

    def __hash__(self) -> int:
        return hash((self.domain, self.split, self.index))
