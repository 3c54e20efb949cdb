"""What a class of a method says by being written, and what becomes of its bugs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from turnwise.config import ConfigError
from turnwise.episode import Boundary, Episode
from turnwise.method import Method, MethodOptions, find_method, play
from turnwise.own_code import new_method, own_rows, row_task
from turnwise.policy import AnyPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row
from turnwise.testing import ScriptedEngine, byte_policy


class Turns(MethodOptions):
    turns: int = 3
    """Turns."""


class Own(Method[Turns, str]):
    def task(self, row: Row) -> str:
        return str(row.prompt)

    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        raise KeyError(f"a bug at {self.options.turns} of {rollout.task}")


class Reading(Own):
    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        if rollout.seed % 2:
            json.loads(rollout.task)
        else:
            json.loads(rollout.task)
        raise AssertionError


class Forgetful(Own):
    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        return 1.0 if rollout.seed else None  # type: ignore[return-value]


class Lacking(Method[Turns, str]):
    async def run(self, rollout: Rollout[str], policy: AnyPolicy) -> Episode:
        raise AssertionError


class Misspelt(Own):
    def __init__(self, options: Turns) -> None:
        super().__init__(options)
        if options.turns == 0:
            raise KeyError("turns")

    def task(self, row: Row) -> str:
        return str(row.promt)  # type: ignore[attr-defined]

    def rows(self, split: str) -> list[Row]:
        if split == "train":
            return [Row()]  # type: ignore[call-arg]
        raise ConfigError(f"there is no {split}")


class Named(Own):
    class Options(Turns):
        more: int = 1


def test_options_are_those_of_the_type_parameter_unless_others_are_named() -> None:
    assert Own.Options is Turns and Own.Options().turns == 3
    assert Named.Options is not Turns and set(Named.Options.model_fields) > {"more", "turns"}


async def test_a_bug_loses_each_episode_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = byte_policy(ScriptedEngine([]))
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            rollout = Rollout(f"what {number} wrote", "t", f"r{number}", "g", number)
            episode = await play(Own(Turns()), rollout, policy)
            assert episode.ending.boundary is Boundary.ENVIRONMENT
    assert caplog.text.count("Traceback") == 1


async def test_bugs_that_a_library_raises_at_one_line_are_told_by_who_called_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = byte_policy(ScriptedEngine([]))
    with caplog.at_level(logging.ERROR):
        for number in range(4):
            await play(Reading(Turns()), Rollout("{", "t", f"r{number}", "g", number), policy)
    assert caplog.text.count("Traceback") == 2


@pytest.mark.parametrize(("seed", "returned"), [(0, "None"), (1, "1.0")])
async def test_what_is_no_episode_loses_it_with_the_class_and_run(seed: int, returned: str) -> None:
    rollout = Rollout("what", "t", "r", "g", seed)
    episode = await play(Forgetful(Turns()), rollout, byte_policy(ScriptedEngine([])))
    assert episode.ending.boundary is Boundary.ENVIRONMENT and episode.score is None
    said = f"TypeError: Forgetful.run must return an Episode, and returned {returned}"
    assert episode.ending.error == said


def test_a_name_without_a_class_says_how_one_of_ones_own_is_named() -> None:
    with pytest.raises(ConfigError, match="one of your own is named my_agent:CLASS"):
        find_method("my_agent")


def test_a_misspelt_method_is_told_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'Named'"):
        find_method(f"{__name__}:Namde")


def test_a_method_that_lacks_what_each_has_is_refused_with_its_class() -> None:
    for name in (f"{__name__}:Lacking", Lacking):
        with pytest.raises(ConfigError, match=r"method Lacking .*: it lacks task, which"):
            find_method(name)


def test_a_bug_before_the_first_episode_is_one_error_with_what_was_called_and_where() -> None:
    method = Misspelt(Turns())
    here = rf"\({__file__}:\d+\)$"
    for row, at in ((Row("p", where="a.jsonl:7"), r"a\.jsonl:7"), (Row("p", id="t"), "row 't'")):
        said = f"^Misspelt.task of {at} raised AttributeError: .*'promt'.* {here}"
        with pytest.raises(ConfigError, match=said):
            row_task(method, row)
    with pytest.raises(ConfigError, match=f"^Misspelt.rows of 'train' raised TypeError: .*{here}"):
        own_rows(method, "train")
    with pytest.raises(ConfigError, match="^--eval-split tset: there is no tset$"):
        own_rows(method, "tset", "--eval-split")
    with pytest.raises(ConfigError, match="^own has no tasks of its own; give"):
        own_rows(Own(Turns()), "held-out", "--eval-split")
    with pytest.raises(ConfigError, match=f"^Misspelt raised KeyError: 'turns' {here}"):
        new_method(Misspelt, Turns(turns=0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1 / 0", r"the import of broken raised ZeroDivisionError: .*broken\.py:1\)"),
        ("def f(:", r"the import of broken raised SyntaxError: .*\(broken\.py, line 1\)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_with_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=said):
        find_method("broken:Agent")


def test_a_package_that_a_method_lacks_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_an_sdk.py").write_text("import no_such_sdk.client")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"'no_such_sdk', which with_an_sdk imports; .*gateway\.md"
    ):
        find_method("with_an_sdk:Agent")
    with pytest.raises(ConfigError, match="No module named 'with_no_sdk'$"):
        find_method("with_no_sdk:Agent")
