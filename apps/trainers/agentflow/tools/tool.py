"""A tool: a name, a description, a schema of its arguments, its limits, and what it does.

    class Dice(Tool):
        name = "dice"
        description = "Throws dice and gives their sum."

        class Arguments(ToolArguments):
            count: int = Field(ge=1, le=100, description="How many dice to throw.")

        @classmethod
        def build(cls, parts: ToolParts) -> Dice:
            return cls()

        @property
        def limits(self) -> tuple[str, ...]:
            return ("At most 100 dice.",)

        async def run(self, arguments: Arguments, *, seed: int) -> ToolResult:
            dice = random.Random(seed)
            return ToolResult(str(sum(dice.randint(1, 6) for _ in range(arguments.count))))

A class in a module of this folder is found by its name; one elsewhere is named in the option
`tools` by its import path, `package.module:Class`. Nothing else lists the tools: what the planner
is shown, what its words are checked against and what is run is the same object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict
from turnwise.models import FrozenModel

if TYPE_CHECKING:
    from sandbox import Sandbox


class ToolPrompts(Protocol):
    """How the models of tools are asked."""

    def generate(self, task: str) -> str:
        """The tool base_generator."""
        ...

    def code(self, task: str, *, packages: Sequence[str]) -> str:
        """The tool python_coder.

        Args:
            packages: What a program can import beside the standard library.
        """
        ...


class ToolArguments(BaseModel):
    """Base of a tool's arguments: JSON types as they are, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gives back.

    Attributes:
        text: For the memory, in words.
        failed: Why it brought nothing that the planner asked for, a short word such as
            `timed_out`; None if it did.
        read_tokens, written_tokens: Of the models that it asked.
        steps: What went on inside, for the trace: pairs of author and text.
    """

    text: str
    failed: str | None = None
    read_tokens: int = 0
    written_tokens: int = 0
    steps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParts:
    """What tools are built from; a tool takes what it needs.

    Attributes:
        models: Frozen models by role.
        sandbox: Runs code, for tools that say so; None where none may.
        prompts: How models are asked.
        documents: JSONL file of the documents to search.
    """

    models: Mapping[str, FrozenModel]
    prompts: ToolPrompts
    sandbox: Sandbox | None = None
    documents: Path | None = None


class Tool(ABC):
    """See the module.

    Attributes:
        name: Lower-case words joined by `_`.
        description: What it does and what for, one or two sentences.
        Arguments: Its arguments; each field has a description.
        runs_code: Whether the sandbox has to be started for it.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    Arguments: ClassVar[type[ToolArguments]]
    runs_code: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def build(cls, parts: ToolParts) -> Tool:
        """
        Raises:
            ConfigError: a part that it needs is not there.
        """

    @property
    @abstractmethod
    def limits(self) -> tuple[str, ...]:
        """What it can't do, a sentence each, with the numbers in force."""

    @abstractmethod
    async def run(self, arguments: Any, *, seed: int) -> ToolResult:
        """Does it; a failure that the planner can do something about is a result.

        Raises:
            BoundaryError: what it stands on is broken.
        """

    def facts(self) -> Mapping[str, str]:
        """What a trace says about it, such as the isolation in force."""
        return {}

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """JSON schema of the arguments: `properties` and `required`."""
        schema = cls.Arguments.model_json_schema()
        properties = {
            name: {key: value for key, value in field.items() if key != "title"}
            for name, field in schema.get("properties", {}).items()
        }
        return {"properties": properties, "required": schema.get("required", [])}
