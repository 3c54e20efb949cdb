"""The environment against a straightforward implementation of the same rules.

`Straightforward` does what upstream does: it parses the database at every start, and for a reward
it hashes the text of its database, parses the database again, replays the ground truth and hashes
that. Both call the same tools.

Each benchmark's first row is ours; the factors in brackets are the ratios of one run. To measure:

    pytest benchmarks/taubench --benchmark-enable --benchmark-group-by=group
"""

import importlib.metadata
import json
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from taubench import SPLITS, Action, Environment, Task, ground_truth, load_tasks, source

DROPPED_USERS = (
    "sophia_martinez_7293",
    "alex_chen_5847",
    "carlos_rodriguez_7891",
    "jennifer_wong_4523",
)


def to_tuples(item: Any) -> Any:
    if isinstance(item, dict):
        return tuple((key, to_tuples(value)) for key, value in sorted(item.items()))
    if isinstance(item, list):
        return tuple(to_tuples(element) for element in item)
    return item


class Straightforward:
    def __init__(self, task: Task) -> None:
        self.task = task
        package = importlib.metadata.distribution("tau-trait")
        folder = Path(str(package.locate_file(f"tau_trait/envs/{task.domain}/data")))
        self.files = sorted(folder.glob("*.json"))
        self.tools = source.domain_files(task.domain).tools
        self.reset()

    def reset(self) -> None:
        self.database = self.load()

    def load(self) -> dict[str, Any]:
        database = {file.stem: json.loads(file.read_bytes()) for file in self.files}
        for user_id in DROPPED_USERS:
            database["users"].pop(user_id, None)
        return database

    def step(self, action: Action) -> None:
        self.call(self.database, action)

    def call(self, database: dict[str, Any], action: Action) -> None:
        try:
            self.tools[action.name].invoke(data=database, **action.kwargs)
        except Exception:
            return

    def digest(self, database: dict[str, Any]) -> str:
        return sha256(str(to_tuples(database)).encode()).hexdigest()

    def score(self) -> bool:
        expected = self.load()
        for action in replayed(self.task):
            self.call(expected, action)
        return self.digest(self.database) == self.digest(expected)


def replayed(task: Task) -> list[Action]:
    return [action for action in task.actions if action.name != "transfer_to_human_agents"]


def a_task(domain: str) -> Task:
    """The first test task with at least five calls."""
    return next(task for task in load_tasks(domain, "test") if len(replayed(task)) >= 5)


Implementation = Callable[[Task], Any]
IMPLEMENTATIONS = pytest.mark.parametrize(
    "implementation", [Environment, Straightforward], ids=["turnwise", "straightforward"]
)
DOMAINS = pytest.mark.parametrize("domain", SPLITS)


def after_the_ground_truth(implementation: Implementation, task: Task) -> Any:
    environment = implementation(task)
    for action in replayed(task):
        environment.step(action)
    return environment


@DOMAINS
@IMPLEMENTATIONS
def test_create(benchmark: BenchmarkFixture, implementation: Implementation, domain: str) -> None:
    task = a_task(domain)
    benchmark.group = f"create {domain}"
    implementation(task)
    benchmark(implementation, task)


@DOMAINS
@IMPLEMENTATIONS
def test_reset(benchmark: BenchmarkFixture, implementation: Implementation, domain: str) -> None:
    environment = implementation(a_task(domain))
    benchmark.group = f"reset {domain}"
    benchmark(environment.reset)


@DOMAINS
@IMPLEMENTATIONS
def test_reward(benchmark: BenchmarkFixture, implementation: Implementation, domain: str) -> None:
    environment = after_the_ground_truth(implementation, a_task(domain))
    benchmark.group = f"reward {domain}"
    environment.score()
    assert benchmark(environment.score)


@DOMAINS
def test_the_first_reward_of_a_task(benchmark: BenchmarkFixture, domain: str) -> None:
    """With the replay of the ground truth, which the process then keeps."""
    environment = after_the_ground_truth(Environment, a_task(domain))
    benchmark.group = f"reward {domain}"
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        environment.score, setup=ground_truth.cache_clear, rounds=200
    )


@DOMAINS
@IMPLEMENTATIONS
def test_episode(benchmark: BenchmarkFixture, implementation: Implementation, domain: str) -> None:
    """Start, the ground truth's calls, reward; no user and no model."""
    task = a_task(domain)
    benchmark.group = f"episode {domain}"
    after_the_ground_truth(implementation, task).score()
    assert benchmark(lambda: after_the_ground_truth(implementation, task).score())


def bytes_per_environment(implementation: Implementation, task: Task, count: int) -> float:
    # What a process builds once is not an environment's.
    after_the_ground_truth(implementation, task).score()
    tracemalloc.start()
    kept = [after_the_ground_truth(implementation, task) for _ in range(count)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(kept)


@DOMAINS
def test_an_environment_keeps_a_hundredth_of_the_memory(
    domain: str, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Live bytes per environment after an episode. Not a time, so it is asserted."""
    task = a_task(domain)
    ours = bytes_per_environment(Environment, task, 100)
    theirs = bytes_per_environment(Straightforward, task, 2)
    record_property("bytes", {"turnwise": ours, "straightforward": theirs})
    with capsys.disabled():
        print(f"\n{domain}: {ours / 1e3:.1f} kB against {theirs / 1e6:.1f} MB per environment")
    assert theirs > 100 * ours
