"""The environment of one episode: upstream's results without upstream's cost.

1. A tool call runs upstream's tool on the episode's copy-on-write tables. An exception becomes
   the observation `Error: <text>`, an unknown tool `Unknown action <name>`.
2. The conversation ends when a terminating tool was called or the user said `###STOP###`.
3. At the end the ground truth's calls (without terminating ones) count as replayed on a fresh
   database; the reward is 1.0 if both databases are equal and every expected output occurs,
   lower-cased, in a message to the user, lower-cased and without commas. Otherwise 0.0.

Deviations from upstream: the user is never called here (`step` hands a message over, `hear`
takes the answer), so nothing blocks; the ground truth is replayed once per task and process;
the database and the action log still hold the agent's episode after the end; no model text
raises. Where upstream raises, the observation is an `Error: ` text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from taubench.calculator import calculate_tool
from taubench.source import Tool
from taubench.tables import Changes, CowTable, Snapshot, State, render, snapshot
from taubench.task import RESPOND, STOP, TERMINATING_TOOLS, Action, Task

# Ground truth needs 3 levels and 15 bits. Without these bounds a tool may store what Python cannot
# write down: nesting beyond the recursion limit, an integer of more than 4,300 digits.
MAX_ARGUMENT_DEPTH = 32
MAX_INTEGER_BITS = 1024


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """A top-level field of a record that differs from what the ground truth leaves.

    Attributes:
        table, key, field: Where.
        agent, expected: The values in both databases; None where there is none.
    """

    table: str
    key: str
    field: str
    agent: Any
    expected: Any


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of an episode and what it is made of.

    Attributes:
        reward: 1.0 or 0.0: both parts below hold.
        r_actions: The database equals the ground truth's.
        r_outputs: Every expected output was said; None if the task expects none.
        outputs: For each expected output whether it was said.
    """

    reward: float
    r_actions: bool
    r_outputs: bool | None
    outputs: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an action or an answer of the user led to.

    Attributes:
        observation: The tool's result or the user's words; "" while the user has not answered.
            Always encodable as UTF-8.
        done: The episode is over.
        reward: 0.0 until it is over.
        source: The tool's name as called, or `user`.
        awaits_user: The message was taken; give the user's answer to `Environment.hear`.
        details: The reward's parts, at the end.
    """

    observation: str
    done: bool = False
    reward: float = 0.0
    source: str = "user"
    awaits_user: bool = False
    details: Reward | None = None


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """What replaying a task's annotated calls gives.

    Attributes:
        changes: Text of each record that then differs from the snapshot, by (table, key).
        records: The records themselves. Read only.
        observations: Results of the replayed calls, in order.
    """

    changes: Changes
    records: Mapping[tuple[str, str], Mapping[str, Any]]
    observations: tuple[tuple[Action, str], ...]


def json_copy(value: Any, depth: int = 0) -> Any:
    """A copy that shares nothing mutable: tools store what they are given."""
    if depth > MAX_ARGUMENT_DEPTH:
        raise ValueError(f"arguments are nested more than {MAX_ARGUMENT_DEPTH} levels deep")
    if isinstance(value, dict):
        return {key: json_copy(element, depth + 1) for key, element in value.items()}
    if isinstance(value, list):
        return [json_copy(element, depth + 1) for element in value]
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise ValueError(f"arguments hold an integer of more than {MAX_INTEGER_BITS} bits")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"arguments must be JSON values, got {type(value).__name__}")


@cache
def _tools(domain: str) -> Mapping[str, Any]:
    """The functions to call, by tool name."""
    tools: Mapping[str, type[Tool]] = snapshot(domain).files.tools
    functions: dict[str, Any] = {name: tool.invoke for name, tool in tools.items()}
    functions["calculate"] = calculate_tool(functions["calculate"].__module__)
    return functions


def _run_tool(domain: str, state: State, action: Action) -> str:
    """The observation of a call; raises nothing whatever the call holds."""
    try:
        if action.error is not None:
            text: Any = f"Error: {action.error}"
        elif action.name in (tools := _tools(domain)):
            text = tools[action.name](data=state, **json_copy(dict(action.kwargs)))
            if not isinstance(text, str):
                text = f"Error: {action.name} gave no result"
        else:
            text = f"Unknown action {action.name}"
    except Exception as error:
        text = f"Error: {error}"
    return str(text).encode("utf-8", "replace").decode()


# Holds the 685 tasks of tau-bench; an endless stream of synthetic ones must not fill the memory.
@lru_cache(maxsize=4096)
def ground_truth(task: Task) -> GroundTruth:
    """Replays the task's calls on a fresh database; once per task and process."""
    base = snapshot(task.domain)
    state = base.new_state()
    observations = tuple(
        (action, _run_tool(task.domain, state, action))
        for action in task.actions
        if action.name not in TERMINATING_TOOLS and action.name != RESPOND
    )
    changes = base.changes(state)
    records = {(table, key): state[table][key] for table, key in changes}
    return GroundTruth(changes, records, observations)


class Environment:
    """One episode of one task.

    Attributes:
        task: The task.
        actions: Every action taken, in order.
        done: The episode is over.
        awaits_user: The last action was a message whose answer `hear` has not got.
    """

    __slots__ = ("task", "actions", "done", "awaits_user", "_snapshot", "_state")

    def __init__(self, task: Task) -> None:
        """Raises ValueError for an unknown domain, SourceError if tau-trait is missing."""
        self.task = task
        self._snapshot: Snapshot = snapshot(task.domain)
        self.reset()

    def reset(self) -> None:
        """Starts the task anew."""
        self._state: State = self._snapshot.new_state()
        self.actions: list[Action] = []
        self.done = False
        self.awaits_user = False

    def step(self, action: Action) -> StepResult:
        """Takes one action.

        Raises:
            RuntimeError: the caller's mistake, never the model's: the episode is over, or an
                answer of the user is due.
        """
        self._expect(awaits_user=False)
        self.actions.append(action)
        if action.name == RESPOND and action.error is None:
            self.awaits_user = True
            return StepResult("", awaits_user=True)
        observation = _run_tool(self.task.domain, self._state, action)
        ends = action.name in TERMINATING_TOOLS and action.error is None
        return self._result(observation, ends, action.name)

    def hear(self, reply: str, done: bool = False) -> StepResult:
        """Takes the user's answer to a message.

        Args:
            reply: The user's words; the episode ends if they contain `###STOP###`.
            done: The episode ends whatever the words.

        Raises:
            RuntimeError: no answer is due.
        """
        self._expect(awaits_user=True)
        self.awaits_user = False
        return self._result(reply, done or STOP in reply, "user")

    def score(self) -> Reward:
        """The reward if the episode ended now. Changes nothing."""
        r_actions = self.changes() == ground_truth(self.task).changes
        said = [
            content.lower().replace(",", "")
            for action in self.actions
            if action.name == RESPOND
            and action.error is None
            and isinstance(content := action.kwargs.get("content"), str)
        ]
        outputs = {
            output: any(output.lower() in text for text in said) for output in self.task.outputs
        }
        r_outputs = all(outputs.values()) if outputs else None
        return Reward(float(r_actions and r_outputs is not False), r_actions, r_outputs, outputs)

    def diff(self) -> tuple[FieldDiff, ...]:
        """How the database differs from the ground truth's, field by field, sorted."""
        truth = ground_truth(self.task)
        mine = self.changes()
        places = sorted({*mine, *truth.changes})
        return tuple(
            FieldDiff(table, key, name, agent.get(name), expected.get(name))
            for table, key in places
            if mine.get((table, key)) != truth.changes.get((table, key))
            for agent, expected in [(self._record(table, key), self._expected(table, key))]
            for name in sorted({*agent, *expected})
            if (name in agent) != (name in expected)
            or render(agent.get(name)) != render(expected.get(name))
        )

    def changes(self) -> Changes:
        """Text of each record that differs from the start, by (table, key)."""
        return self._snapshot.changes(self._state)

    def state_hash(self) -> str:
        """SHA-256 in hex of the whole database, equal to upstream's. Milliseconds."""
        return self._snapshot.state_hash(self.changes())

    def ground_truth_hash(self) -> str:
        """The same of the ground truth's database: upstream's `gt_data_hash`."""
        return self._snapshot.state_hash(ground_truth(self.task).changes)

    def _record(self, table: str, key: str) -> Mapping[str, Any]:
        own = self._state[table]
        assert isinstance(own, CowTable)
        return own.own.get(key) or self._snapshot.files.tables[table].get(key, {})

    def _expected(self, table: str, key: str) -> Mapping[str, Any]:
        record = ground_truth(self.task).records.get((table, key))
        return record or self._snapshot.files.tables[table].get(key, {})

    def _expect(self, *, awaits_user: bool) -> None:
        if self.done:
            raise RuntimeError(f"{self.task.id}: the episode is over; call reset()")
        if awaits_user != self.awaits_user:
            call = "hear()" if self.awaits_user else "step()"
            raise RuntimeError(f"{self.task.id}: {call} must come next")

    def _result(self, observation: str, done: bool, source: str) -> StepResult:
        self.done = done
        details = self.score() if done else None
        reward = details.reward if details else 0.0
        return StepResult(observation, done, reward, source, details=details)
