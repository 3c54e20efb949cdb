"""The status file says what every episode waits for, and notices a stall by itself."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from turnwise import inflight
from turnwise.config import ConfigError
from turnwise.inflight import Registry, playing, waiting
from turnwise.limiter import Limiter
from turnwise.run.status import NAME, LifeSign, Status, read_status
from turnwise.run.watching import StatusWriter
from turnwise.runs import told
from turnwise.spend import Spend


class Clock:
    """One that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    own = Registry(clock)
    monkeypatch.setattr(inflight, "REGISTRY", own)
    yield own


def status(writer: StatusWriter, path: Path) -> Status:
    writer.tick()
    found = read_status(path)
    assert found is not None
    return found


def known(registry: Registry, clock: Clock, seconds: float = 4.0) -> None:
    """Eight episodes of that time have ended."""
    entries = [registry.begin(f"{number}", "g", "t") for number in range(8)]
    clock.now += seconds
    for entry in entries:
        registry.end(entry)


def test_each_episode_says_what_it_waits_for_and_since_when(
    tmp_path: Path, registry: Registry, clock: Clock
) -> None:
    writer = StatusWriter(tmp_path, backend="local", registry=registry)
    writer.step = 7
    writer.stage("step 8")
    with playing("8/0/1", "8/0", "retail/12"):
        clock.now += 2
        with waiting("turn 3"), waiting("engine"):
            clock.now += 5
            with playing("8/1/0", "8/1", "retail/13"):
                found = status(writer, tmp_path)
    assert (found.step, found.stage, found.stage_s, found.in_flight) == (7, "step 8", 7.0, 2)
    first, second = found.episodes
    assert (first.rollout, first.task, first.seconds) == ("8/0/1", "retail/12", 7.0)
    assert [(wait.what, wait.seconds) for wait in first.waits] == [("turn 3", 5.0), ("engine", 5.0)]
    assert second.waits == []
    assert {(one.what, one.episodes, one.longest_s) for one in found.waits} == {
        ("engine", 1, 5.0),
        ("own code", 1, 0.0),
    }
    assert [(one.group, one.seconds) for one in found.groups] == [("8/0", 7.0), ("8/1", 0.0)]


def test_a_stall_is_noticed_once_and_its_end_is_told(
    tmp_path: Path, registry: Registry, clock: Clock
) -> None:
    told_of: list[tuple[str, float, bool]] = []
    writer = StatusWriter(
        tmp_path,
        backend="local",
        registry=registry,
        on_stall=lambda text, seconds, over: told_of.append((text, seconds, over)),
    )
    known(registry, clock, seconds=20.0)
    entry = registry.begin("late", "g", "t")
    clock.now += 199
    assert not status(writer, tmp_path).stalled and not told_of
    clock.now += 2
    assert status(writer, tmp_path).stalled
    clock.now += 100
    found = status(writer, tmp_path)
    assert found.quiet_s == 301 and found.median_s == 20
    assert [(seconds, over) for _, seconds, over in told_of] == [(201.0, False)]
    assert "no episode has ended for 201 s, where one takes 20.0 s" in told_of[0][0]
    assert told.warnings(found)[0].startswith("STALL: no episode has ended for 301 s")
    registry.end(entry)
    assert not status(writer, tmp_path).stalled
    assert told_of[1][1:] == (301.0, True)


def test_nothing_is_a_stall_while_nothing_is_under_way_or_little_is_known(
    tmp_path: Path, registry: Registry, clock: Clock
) -> None:
    writer = StatusWriter(tmp_path, backend="local", registry=registry)
    entry = registry.begin("first", "g", "t")
    clock.now += 10_000
    assert not status(writer, tmp_path).stalled
    registry.end(entry)
    known(registry, clock)
    # A long step of the optimiser.
    clock.now += 10_000
    assert status(writer, tmp_path).quiet_s == 0
    registry.begin("next", "g", "t")
    assert not status(writer, tmp_path).stalled


def test_an_engine_that_samples_is_told_from_one_that_does_nothing(
    tmp_path: Path, registry: Registry, clock: Clock
) -> None:
    tokens = [0]
    writer = StatusWriter(
        tmp_path, backend="local", registry=registry, sampled=lambda: float(tokens[0])
    )
    with playing("r", "g", "t"), waiting("engine"):
        tokens[0] = 5
        busy = status(writer, tmp_path)
        clock.now += 90
        hung = status(writer, tmp_path)
    assert told.waited("engine", busy) == "policy's turn"
    assert told.waited("engine", hung) == "engine, no token for 90 s"
    assert told.waited("user", hung) == "user"


def test_queues_costs_and_the_last_errors_are_shown(tmp_path: Path, registry: Registry) -> None:
    class Model:
        def service(self) -> inflight.Service:
            return inflight.Service("user: m", "user", Limiter(concurrency=3), Spend(cap_usd=5.0))

    model = Model()
    registry.add_service(model)
    registry.failed("user", "HTTP 500")
    registry.failed("user", "HTTP 503")
    signs = [LifeSign("worker 1", 3.0, "training")]
    writer = StatusWriter(tmp_path, backend="slime", registry=registry, signs=lambda: signs)
    found = status(writer, tmp_path)
    assert [(one.name, one.concurrency, one.cap_usd) for one in found.services] == [
        ("user: m", 3, 5.0)
    ]
    assert [(one.boundary, one.error, one.count) for one in found.errors] == [
        ("user", "HTTP 503", 2)
    ]
    assert found.signs == signs
    titles = [title for title, _, _ in told.tables(found)]
    assert titles == ["last errors", "endpoints", "last signs of life"]


async def test_a_loop_that_hangs_is_seen_from_the_thread(
    tmp_path: Path, registry: Registry, clock: Clock
) -> None:
    writer = StatusWriter(tmp_path, backend="local", registry=registry)
    writer.tick()
    clock.now += 30
    # The loop has not had a turn since.
    thread = threading.Thread(target=writer.tick)
    thread.start()
    thread.join()
    found = read_status(tmp_path)
    assert found is not None and found.loop_s == 30
    assert "event loop" in told.warnings(found)[0]
    await asyncio.sleep(0)
    writer.tick()
    clock.now += 1
    assert status(writer, tmp_path).loop_s < 2


async def test_stacks_name_where_tasks_wait(tmp_path: Path, registry: Registry) -> None:
    async def deep() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        with playing("r", "g", "t"):
            await deep()

    task = asyncio.create_task(outer(), name="rollout 3")
    await asyncio.sleep(0)
    text = StatusWriter(tmp_path, backend="local", registry=registry).dump_stacks().read_text()
    task.cancel()
    place = text.index("task rollout 3")
    assert "outer" in text[place:] and "deep" in text[place:] and "Event.wait" in text[place:]
    assert "thread MainThread" in text


def test_the_names_of_the_status_file_are_frozen(tmp_path: Path, registry: Registry) -> None:
    with playing("r", "g", "t"), waiting("user"):
        StatusWriter(tmp_path, backend="local", registry=registry).tick()
    row = json.loads((tmp_path / NAME).read_text())
    assert list(row) == [
        "at", "backend", "process", "state", "step", "stage", "stage_s", "in_flight", "settled",
        "quiet_s", "median_s", "stalled", "loop_s", "episodes", "waits", "groups", "errors",
        "services", "signs",
    ]  # fmt: skip
    assert list(row["episodes"][0]) == ["rollout", "group", "task", "seconds", "waits"]


def test_a_file_that_is_no_status_is_named(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    (tmp_path / NAME).write_text("{}")
    with pytest.raises(ConfigError, match=r"status\.json: is no status"):
        read_status(tmp_path)


def test_the_thread_writes_until_the_block_ends(tmp_path: Path, registry: Registry) -> None:
    with StatusWriter(tmp_path, backend="local", registry=registry):
        first = read_status(tmp_path)
        assert first is not None and first.state == "running"
    last = read_status(tmp_path)
    assert last is not None and last.state == "ended"


def test_an_interrupt_while_the_last_look_ends_leaves_no_run_under_way(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: threading.Thread) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with StatusWriter(tmp_path, backend="local", registry=registry):
            monkeypatch.setattr(threading.Thread, "join", interrupted)
    monkeypatch.undo()
    found = read_status(tmp_path)
    assert found is not None and found.state == "ended"
