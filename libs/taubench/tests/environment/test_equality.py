"""The environment equals a direct implementation of upstream's rules, written from them.

The oracle keeps a whole database per episode, hashes the text of all of it, and replays the
ground truth in a second one. It knows nothing of which records were touched: it compares every
record of its database with the pristine one, byte for byte, and renders those that differ; a test
checks that shortcut against the text of the whole database in one piece.

`TURNWISE_TAU_TRAJECTORIES` sets the number of trajectories per domain (200 without it).
"""

import copy
import gc
import importlib.metadata
import json
import marshal
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from taubench import SPLITS, Action, Environment, Task, load_tasks, source

TRAJECTORIES = int(os.environ.get("TURNWISE_TAU_TRAJECTORIES", "200"))
NOT_UPSTREAM = {
    "retail": ("sophia_martinez_7293", "alex_chen_5847"),
    "airline": ("carlos_rodriguez_7891", "jennifer_wong_4523"),
}
Database = dict[str, dict[str, Any]]


def to_tuples(item: Any) -> Any:
    if isinstance(item, dict):
        return tuple((key, to_tuples(value)) for key, value in sorted(item.items()))
    if isinstance(item, list):
        return tuple(to_tuples(element) for element in item)
    return item


def full_text(database: Database) -> str:
    return str(to_tuples(database))


@dataclass(frozen=True)
class Pristine:
    """A domain's database as bytes, and for each record its bytes and its text."""

    dump: bytes
    records: Mapping[str, Mapping[str, tuple[bytes, str]]]


@cache
def pristine(domain: str) -> Pristine:
    package = importlib.metadata.distribution("tau-trait")
    folder = Path(str(package.locate_file(f"tau_trait/envs/{domain}/data")))
    tables = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    for user_id in NOT_UPSTREAM[domain]:
        del tables["users"][user_id]
    return Pristine(
        # Version 2 has no references, so equal records have equal bytes.
        marshal.dumps(tables, 2),
        {
            name: {
                key: (marshal.dumps(record, 2), str((key, to_tuples(record))))
                for key, record in table.items()
            }
            for name, table in tables.items()
        },
    )


def database_hash(domain: str, database: Database) -> str:
    tables = []
    for name, table in sorted(database.items()):
        known = pristine(domain).records[name]
        texts = []
        for key, record in sorted(table.items()):
            dump, text = known.get(key, (b"", ""))
            texts.append(
                text if marshal.dumps(record, 2) == dump else str((key, to_tuples(record)))
            )
        tables.append(f"({name!r}, ({', '.join(texts)}))")
    return sha256(f"({', '.join(tables)})".encode()).hexdigest()


@dataclass
class Oracle:
    task: Task
    database: Database = field(init=False)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = marshal.loads(pristine(self.task.domain).dump)

    def call(self, action: Action) -> str:
        tools = source.domain_files(self.task.domain).tools
        if action.name not in tools:
            return f"Unknown action {action.name}"
        try:
            text: str = tools[action.name].invoke(
                data=self.database, **copy.deepcopy(dict(action.kwargs))
            )
            return text
        except Exception as error:
            return f"Error: {error}"

    def step(self, action: Action, user: str) -> dict[str, Any]:
        if action.name == "respond":
            self.said.append(action.kwargs["content"])
            observation, name, done = user, "user", "###STOP###" in user
        else:
            observation, name = self.call(action), action.name
            done = action.name == "transfer_to_human_agents"
        reward = self.reward() if done else {"reward": 0.0, "info": None}
        return {"observation": observation, "done": done, "source": name, **reward}

    def reward(self) -> dict[str, Any]:
        equal = database_hash(self.task.domain, self.database) == ground_truth_hash(self.task)
        if not self.task.outputs:
            info: dict[str, Any] = {
                "r_actions": equal,
                "gt_data_hash": ground_truth_hash(self.task),
            }
            return {"reward": float(equal), "info": info}
        outputs = {
            output: any(output.lower() in text.lower().replace(",", "") for text in self.said)
            for output in self.task.outputs
        }
        said_all = all(outputs.values())
        return {
            "reward": float(equal and said_all),
            "info": {"r_outputs": float(said_all), "outputs": outputs},
        }


@cache
def ground_truth_hash(task: Task) -> str:
    oracle = Oracle(task)
    for action in task.actions:
        if action.name not in ("transfer_to_human_agents", "respond"):
            oracle.call(action)
    return database_hash(task.domain, oracle.database)


def ours(environment: Environment, action: Action, user: str) -> dict[str, Any]:
    result = environment.step(action)
    if result.awaits_user:
        result = environment.hear(user)
    info: dict[str, Any] | None = None
    if result.details is not None and environment.task.outputs:
        info = {
            "r_outputs": float(bool(result.details.r_outputs)),
            "outputs": dict(result.details.outputs),
        }
    elif result.details is not None:
        info = {
            "r_actions": result.details.r_actions,
            "gt_data_hash": environment.ground_truth_hash(),
        }
    return {
        "observation": result.observation,
        "done": result.done,
        "source": result.source,
        "reward": result.reward,
        "info": info,
    }


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    """Collecting among the oracle's millions of objects takes half of the time."""
    gc.disable()
    yield
    gc.enable()


Kind = Callable[[random.Random, list[Action], Sequence[Action]], list[Action]]
STRANGE: tuple[Any, ...] = (None, 5, 1.5, True, "x", "", [], {}, ["x"], [["x"]], {"a": 1})


def ground_truth(rng: random.Random, actions: list[Action], pool: Sequence[Action]) -> list[Action]:
    return actions


def one_dropped(rng: random.Random, actions: list[Action], pool: Sequence[Action]) -> list[Action]:
    if actions:
        actions.pop(rng.randrange(len(actions)))
    return actions


def foreign(rng: random.Random, actions: list[Action], pool: Sequence[Action]) -> list[Action]:
    for _ in range(3):
        actions.insert(rng.randrange(len(actions) + 1), rng.choice(pool))
    return actions


def shuffled(rng: random.Random, actions: list[Action], pool: Sequence[Action]) -> list[Action]:
    rng.shuffle(actions)
    return actions


def spoilt(rng: random.Random, action: Action) -> Action:
    arguments = copy.deepcopy(dict(action.kwargs))
    names = list(arguments)
    match rng.randrange(5):
        case 0 if names:
            del arguments[rng.choice(names)]
        case 1:
            arguments[rng.choice(["extra", "data", "self"])] = 1
        case 2:
            return Action(f"{action.name}_now", arguments)
        case _ if names:
            arguments[rng.choice(names)] = rng.choice(STRANGE)
    return Action(action.name, arguments)


def bad_arguments(
    rng: random.Random, actions: list[Action], pool: Sequence[Action]
) -> list[Action]:
    return [
        spoilt(rng, action) if rng.random() < 0.6 else action
        for action in [rng.choice(pool), *actions]
    ]


KINDS: tuple[Kind, ...] = (ground_truth, one_dropped, foreign, shuffled, bad_arguments)


def trajectory(rng: random.Random, task: Task, kind: Kind, pool: Sequence[Action]) -> list[Action]:
    """Actions that end with a farewell; outputs are said three times out of four."""
    actions = kind(rng, list(task.actions), pool)
    if rng.random() < 0.7:
        actions = [action for action in actions if action.name != "transfer_to_human_agents"]
    for output in task.outputs:
        if rng.random() < 0.75:
            message = Action.respond(f"That makes {output.upper()}, madam")
            actions.insert(rng.randrange(len(actions) + 1), message)
    return [*actions, Action.respond("Goodbye")]


def tasks_to_try(domain: str) -> list[Task]:
    """40 tasks, so that the oracle's ground truths stay few."""
    tasks = [task for split in SPLITS[domain] for task in load_tasks(domain, split)]
    return random.Random(7).sample(tasks, 40)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("domain", SPLITS)
def test_every_step_and_the_final_state_equal_the_oracles(domain: str, kind: Kind) -> None:
    rng = random.Random(f"{domain} {kind.__name__}")
    tasks = tasks_to_try(domain)
    pool = [action for task in tasks for action in task.actions]
    rewards = set()
    for number in range(-(-TRAJECTORIES // len(KINDS))):
        task = tasks[number % len(tasks)]
        oracle, environment = Oracle(task), Environment(task)
        for action in trajectory(rng, task, kind, pool):
            user = "Thanks ###STOP###" if action.kwargs.get("content") == "Goodbye" else "Go on"
            expected = oracle.step(action, user)
            assert ours(environment, action, user) == expected, (task.id, action)
            if expected["done"]:
                rewards.add(expected["reward"])
                break
        if number % 5 == 0 or kind is foreign:
            assert environment.state_hash() == database_hash(domain, oracle.database), task.id
    assert 1.0 in rewards or kind in (one_dropped, foreign, bad_arguments)
    assert 0.0 in rewards


@pytest.mark.parametrize("domain", SPLITS)
def test_the_oracles_hash_is_that_of_the_text_of_the_whole_database(domain: str) -> None:
    task = next(task for task in load_tasks(domain, "test") if len(task.actions) > 4)
    oracle = Oracle(task)
    for action in task.actions:
        oracle.call(action)
    expected = sha256(full_text(oracle.database).encode()).hexdigest()
    assert database_hash(domain, oracle.database) == expected
    environment = Environment(task)
    assert environment.ground_truth_hash() == expected
    untouched = sha256(full_text(marshal.loads(pristine(domain).dump)).encode()).hexdigest()
    assert environment.state_hash() == untouched != expected


@pytest.mark.parametrize("domain", SPLITS)
def test_the_shared_snapshot_is_as_it_was_read(domain: str) -> None:
    tables = source.domain_files(domain).tables
    pool = [
        a for split in SPLITS[domain] for task in load_tasks(domain, split) for a in task.actions
    ]
    environment = Environment(load_tasks(domain, "test")[0])
    for action in pool:
        if action.name not in ("transfer_to_human_agents", "respond"):
            environment.step(action)
    for name, table in tables.items():
        for key, record in table.items():
            assert marshal.dumps(record, 2) == pristine(domain).records[name][key][0], (name, key)
