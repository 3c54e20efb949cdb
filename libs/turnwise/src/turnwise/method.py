"""A method: an agent loop with its tools and its reward, written once.

The local backend, slime's hooks and the evaluators play it through this class and through nothing
else. A method of one's own is a file with a subclass:

    class Sums(Method[MethodOptions, Task]):
        def task(self, row): ...
        async def run(self, rollout, policy):
            async with Conversation(policy, rollout) as talk: ...

It is named by its import path, `package.module:Class`. A name without a colon is the `METHOD` of
`apps.trainers.NAME.method`.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args

import toolparse
from pydantic import field_validator

from turnwise.command import PreflightError, RunError
from turnwise.config import Config, ConfigError, nearest
from turnwise.episode import Boundary, BoundaryError, Ending, Episode
from turnwise.inflight import REGISTRY, playing
from turnwise.objective import Objective
from turnwise.own_code import new_method, own_code
from turnwise.policy import AnyPolicy, Policy
from turnwise.replay import CALLS, Replay
from turnwise.rollout import Rollout, unplayed
from turnwise.rounds import own_round
from turnwise.rows import Row

if TYPE_CHECKING:
    import tokendelta

    from turnwise.launch.plan import Plan
    from turnwise.preflight import Check
    from turnwise.run.metrics import Picture

logger = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT", bound="MethodOptions")
TaskT = TypeVar("TaskT")


class MethodOptions(Config):
    """What every method takes: a run's section `[method]`, or the one with the method's name."""

    objective: Objective | None = None
    """Mean of the loss over turns, a rollout's tokens (where not given) or all tokens."""
    tool_format: str | None = None
    """How the policy writes calls, a name of `toolparse.formats()`; found in the chat template
    where not given."""
    on_rewrite: Literal["keep", "fork", "error"] = "keep"
    """What to do where the chat template rewrites history (see `tokendelta.Session`)."""

    @field_validator("tool_format")
    @classmethod
    def _format_exists(cls, name: str | None) -> str | None:
        formats = list(toolparse.formats())
        if name is not None and name not in formats:
            raise ValueError(f"unknown format of tool calls {name!r}; {nearest(name, formats)}")
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a backend has for the models and services that a method opens.

    Attributes:
        server: The URL, up to and with `/v1`, of a model of slime's `--sglang-config` by its name;
            raises ConfigError if there is none. None where slime does not run.
        policy: For frozen models that share the policy's engine (`local`); None where an engine
            belongs to its episode.
        environ: Where keys are.
    """

    server: Callable[[str], str] | None = None
    policy: Policy | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


class Method(ABC, Generic[OptionsT, TaskT]):
    """An agent loop with its reward, the same on every backend.

    One object serves all episodes of a process. `open` is awaited once before the first of them,
    `close` after the last; both run in the event loop of the episodes.

    Attributes:
        Options: Of the method, as its first type parameter has them; a run's file and command line
            are checked by it.
        name: Names run folders and the section of a run's file; of the class where "".
        fans_out: Whether an episode may have several segments even where no template rewrites
            history.
        distributions: Packages, by their names in the package index, that must reach every node
            beside ours.
        apart: Packages that must reach them for processes of ours alone (`turnwise.answers`):
            slime's own have other versions of them, or none.
        shipped: The folder of the policy that `--hf-checkpoint shipped` names.
        preset: The file of options that local training has where no `--config` is given.
        compared: Numbers of `Episode.metrics` that are compared beside the score: before and after
            training, and between two evaluations.
        may_change: Options that say nothing about what is played, `section.key` by field name: a
            run that goes on may be given them anew.
        options: The run's.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    name: ClassVar[str] = ""
    fans_out: ClassVar[bool] = False
    distributions: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[tuple[str, ...]] = ()
    shipped: ClassVar[Path | None] = None
    preset: ClassVar[Path | None] = None
    compared: ClassVar[tuple[str, ...]] = ()
    may_change: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A class of `Method[MyOptions, ...]` has those options unless it names others."""
        super().__init_subclass__(**keywords)
        for base in () if "Options" in vars(cls) else getattr(cls, "__orig_bases__", ()):
            for named in get_args(base)[:1]:
                if isinstance(named, type) and issubclass(named, MethodOptions):
                    cls.Options = named

    def __init__(self, options: OptionsT) -> None:
        """
        Raises:
            ConfigError: the options name what does not exist.
        """
        self.options: OptionsT = options

    @abstractmethod
    def task(self, row: Row) -> TaskT:
        """A data row as a task, the same on every backend.

        Raises:
            ConfigError: the row is no task; names `row.where`.
        """

    @abstractmethod
    async def run(self, rollout: Rollout[TaskT], policy: AnyPolicy) -> Episode:
        """Plays one episode. `turnwise.conversation.Conversation` asks the policy.

        Raises:
            BoundaryError: something beyond the policy failed: the episode is lost there.
            StopRun: no further episode could be played.
            ConfigError: no episode could be right.
        """

    async def open(self, services: Services) -> None:
        """Makes models, users, judge and sandbox ready, and asks whether each is there.

        Raises:
            ConfigError: one can't be had as it is asked for.
            PreflightError: one does not answer.
        """
        return None

    async def close(self) -> None:
        """Closes what `open` opened; `open` may be awaited again."""
        return None

    def group_scores(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        """The rewards of a group's members, where they depend on one another.

        Args:
            episodes: Every member of a group, in order; a lost or cancelled one has no score.

        Returns:
            One score a member; None where it had none, and nowhere else.
        """
        return [episode.score for episode in episodes]

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the policy is shown, by which its chat template is audited."""
        return ()

    def rows(self, split: str) -> Sequence[Row]:
        """The method's own tasks where a run names no data file: `train`, or what is evaluated.

        Raises:
            ConfigError: there is no such split.
        """
        raise ConfigError(
            f"{method_name(type(self))} has no tasks of its own; give --prompt-data and"
            " --eval-prompt-data"
        )

    def curves(self) -> Mapping[str, Sequence[Row]]:
        """Further tasks of its own that local training plays once at its end, by what they differ
        in: `{"length": rows}`. The points are named by `metadata["part"]` of the rows, in order."""
        return {}

    def about(self) -> str:
        """What its tasks are, in the plural: `retail tasks with the compact prompt`."""
        return "tasks"

    def work(self, task: TaskT) -> float:
        """How long an episode of the task takes compared with others, in any unit: of those that
        wait to be played the longest are started first, where the backend is ours to schedule."""
        return 0.0

    def prompt_tokens(self, tasks: Sequence[TaskT], profile: tokendelta.Profile) -> int:
        """Tokens of the longest first prompt of these tasks; 0 where it is not known before."""
        return 0

    async def baselines(
        self, tasks: Mapping[str, TaskT], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        """What fixed behaviours score on these tasks: `{"doing nothing": 0.05}`. After `open`."""
        return {}

    def pictures(self) -> Sequence[Picture]:
        """Pairs of numbers of its episodes for the report to set against each other, with what
        fixed behaviours have of them. After `baselines`, where there are any."""
        return ()

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        """What a result on the method's own tasks shows and what it does not: sentences."""
        return ()

    def players(self) -> Mapping[str, str]:
        """Who takes part beside the policy, by role, for reports: `{"user": "offline-1"}`."""
        return {}

    def checks(self, plan: Plan) -> Mapping[str, Check]:
        """The method's lines of `check`, by name."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Numbers of its services, totals since the start, for the trackers."""
        return {}


_told: set[tuple[str, frozenset[tuple[str, int]]]] = set()
"""Bugs that were logged, by method and place: a message may hold what a model wrote."""


async def play(method: Method[Any, TaskT], rollout: Rollout[TaskT], policy: AnyPolicy) -> Episode:
    """Plays one episode; every failure becomes its ending.

    A `BoundaryError` loses the episode where it says, with what was said until then. Any other
    exception is a bug of the method: it loses the episode to the environment, and is logged the
    first time that it is raised there.

    Raises:
        ConfigError, PreflightError, RunError: no further episode could be right, or played.
    """
    with playing(rollout.rollout_id, rollout.group_id, rollout.task_id):
        episode = await _play(method, rollout, policy)
    if (boundary := episode.ending.boundary) is not None:
        REGISTRY.failed(boundary, episode.ending.error or "")
    return episode


async def play_recorded(
    method: Method[Any, TaskT], rollout: Rollout[TaskT], policy: AnyPolicy
) -> Episode:
    """`play`, with what services answered in the episode's `info`, so that it can be played again.

    That is what the method asks through `Rollout.replay`.
    """
    kept = Replay()
    episode = await play(method, replace(rollout, replay=kept), policy)
    return replace(episode, info={**episode.info, CALLS: kept.calls}) if kept.calls else episode


async def _play(method: Method[Any, TaskT], rollout: Rollout[TaskT], policy: AnyPolicy) -> Episode:
    await own_round()
    try:
        return _episode(method, await method.run(rollout, policy))
    except (ConfigError, PreflightError, RunError):
        raise
    except BoundaryError as error:
        await own_round()
        lost, conversation = Ending.lost(error), error.conversation
    except Exception as error:
        await own_round()
        what = f"{type(error).__name__}: {error}"
        name = method_name(type(method))
        if (bug := (name, _raised_at(error))) not in _told:
            _told.add(bug)
            logger.exception("episode %s: a bug of %s", rollout.rollout_id, name)
        lost, conversation = Ending.lost(BoundaryError(Boundary.ENVIRONMENT, what)), None
    if conversation is not None and conversation.rollout is rollout:
        episode: Episode = conversation.episode(lost)
        return episode
    return unplayed(rollout, lost)


def _episode(method: Method[Any, Any], returned: object) -> Episode:
    if not isinstance(returned, Episode):
        cls = type(method).__qualname__
        raise TypeError(f"{cls}.run must return an Episode, and returned {returned!r:.80}")
    return returned


def _raised_at(error: Exception) -> frozenset[tuple[str, int]]:
    """File and line of every call that led to it: what one line of a library raises for two callers
    is two bugs, and how deep a function calls itself makes no other."""
    frames = traceback.walk_tb(error.__traceback__)
    return frozenset((frame.f_code.co_filename, line) for frame, line in frames)


def find_method(name: str | type[Method[Any, Any]]) -> type[Method[Any, Any]]:
    """The method `name`: of `apps.trainers`, or an import path `package.module:Class`.

    Raises:
        ConfigError: there is no such method, it can't be imported, or it is not written whole.
    """
    if isinstance(name, type):
        return _whole(name)
    path, colon, attribute = name.partition(":")
    if not colon:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ConfigError(
                f"method {name!r}: is neither a name nor an import path package.module:Class"
            )
        path, attribute = f"apps.trainers.{name}.method", "METHOD"
    try:
        found = getattr(_import(path), attribute)
    except (ImportError, AttributeError) as error:
        if colon:
            hint = _missing(error, path) or _meant(path, attribute)
            raise ConfigError(f"method {name}: {error}{hint}") from error
        here = _methods()
        hint = f"; {nearest(name, here)}" if here else ""
        raise ConfigError(
            f"method {name}: no {path} here ({error}); one of your own is named {name}:CLASS{hint}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"method {name}: {path}:{attribute} is no class of turnwise.Method")
    return _whole(found)


def _whole(cls: type[Method[Any, Any]]) -> type[Method[Any, Any]]:
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ConfigError(
            f"method {cls.__qualname__} ({cls.__module__}): it lacks {' and '.join(missing)}, which"
            " every method has"
        )
    return cls


def method_name(cls: type[Method[Any, Any]]) -> str:
    """What run folders and sections call the method: its `name`, else its class in snake case."""
    return cls.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def import_name(cls: type[Method[Any, Any]]) -> str:
    """By which `find_method` finds the class."""
    found = re.fullmatch(r"apps\.trainers\.(\w+)\.method", cls.__module__)
    return found[1] if found else f"{cls.__module__}:{cls.__qualname__}"


def make_method(name: str, options: Mapping[str, Any]) -> Method[Any, Any]:
    """The method `name` with its options, by field name.

    Raises:
        ConfigError: there is no such method, or its options are wrong.
    """
    cls = find_method(name)
    return new_method(cls, cls.Options(**options))


def _methods() -> list[str]:
    """The names of `apps.trainers` that are here."""
    try:
        folders = _import("apps.trainers").__path__
    except ImportError:
        return []
    return sorted(one.parent.name for folder in folders for one in Path(folder).glob("*/method.py"))


def _missing(error: Exception, module: str) -> str:
    """What to do where a module imports a package that is not here."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package == module.partition(".")[0]:
        return ""
    return (
        f", which {module} imports; `./pants run` has the locked packages alone: install it beside"
        " the packaged train.pex or run the agent behind --callback-url (docs/gateway.md)"
    )


def _meant(module: str, attribute: str) -> str:
    """The class of a module whose name is nearest to one that it has not."""
    found = vars(sys.modules[module]) if module in sys.modules else {}
    names = [
        name
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, Method) and one.__module__ == module
    ]
    return f"; {nearest(attribute, names)}" if names else ""


def _import(module: str) -> Any:
    """A module, found from the current folder as well, as `python -m` does."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    with own_code(f"the import of {module}", ImportError, AttributeError):
        return importlib.import_module(module)
