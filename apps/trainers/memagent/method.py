"""MemAgent as a method, on every backend: see `apps.trainers.memagent.episode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokendelta
from turnwise.config import ConfigError
from turnwise.episode import Episode
from turnwise.method import Method
from turnwise.policy import AnyPolicy, EndpointPolicy
from turnwise.rollout import Rollout
from turnwise.rows import Row

from apps.trainers.memagent.episode import run_episode
from apps.trainers.memagent.laptop import stories
from apps.trainers.memagent.laptop.baselines import fixed_memories
from apps.trainers.memagent.options import MemAgentOptions
from apps.trainers.memagent.prompts import make_prompts
from apps.trainers.memagent.reader import TextReader, TokenReader
from apps.trainers.memagent.task import Task, to_task
from apps.trainers.memagent.template import Template

if TYPE_CHECKING:
    from turnwise.launch.plan import Plan
    from turnwise.preflight import Check

FOLDER = Path(__file__).parent


class MemAgentMethod(Method[MemAgentOptions, Task]):
    """A policy that reads a long text in sections and keeps a memory; a segment for each turn."""

    Options = MemAgentOptions
    name = "memagent"
    fans_out = True
    distributions = ("bm25s",)
    shipped = FOLDER / "policy"
    preset = FOLDER / "presets" / "laptop.toml"

    def __init__(self, options: MemAgentOptions) -> None:
        """See `Method`."""
        super().__init__(options)
        self._prompts = make_prompts(options.prompt, options.order)
        self._token_reader: tuple[tokendelta.Profile, TokenReader] | None = None
        self._text_reader: TextReader | None = None

    def task(self, row: Row) -> Task:
        """See `Method`."""
        return to_task(row)

    async def run(self, rollout: Rollout[Task], policy: AnyPolicy) -> Episode:
        """See `Method`."""
        if isinstance(policy, EndpointPolicy):
            return await run_episode(rollout, policy, self._texts(), self.options)
        return await run_episode(rollout, policy, self._tokens(policy.profile), self.options)

    async def close(self) -> None:
        """Forgets encoded texts."""
        self._token_reader = self._text_reader = None

    def rows(self, split: str) -> Sequence[Row]:
        """The generated texts: `train`, `tune`, `held-out`, or that by `lengths` or `orders`."""
        return stories.rows(split, per_cell=self.options.eval_per_cell)

    def work(self, task: Task) -> float:
        """Sections of its text, about."""
        return task.length / self.options.chunk_tokens

    def curves(self) -> Mapping[str, Sequence[Row]]:
        """Texts up to eight times as long as those to train on, and the orders of the evidence."""
        count = self.options.curve_per_cell
        names = {"length of the text": "lengths", "order of the evidence": "orders"}
        return {what: stories.rows(split, per_cell=count) for what, split in names.items() if count}

    def prompt_tokens(self, tasks: Sequence[Task], profile: tokendelta.Profile) -> int:
        """Of an update with the longest problem, a whole section and a memory at its limit."""
        template = Template(profile, self._prompts)
        longest = max((task.problem for task in tasks), key=len)
        section = np.zeros(self.options.chunk_tokens, dtype=np.int32)
        memory = np.zeros(self.options.max_memory_tokens, dtype=np.int32)
        return len(template.update(template.encode(longest), memory, section))

    async def baselines(
        self, tasks: Mapping[str, Task], tokenizer: Any, profile: tokendelta.Profile
    ) -> Mapping[str, float]:
        """What readers score on the generated texts that keep nothing, or one section's facts."""
        if self.options.prompt != "compact":
            return {}
        return await fixed_memories(self.run, tasks, tokenizer, profile)

    def about(self) -> str:
        """See `Method`."""
        return f"questions on texts in sections of {self.options.chunk_tokens} tokens"

    def claim(self, split: str, *, shipped: bool) -> tuple[str, ...]:
        """See `Method`."""
        return stories.claim(split, shipped=shipped)

    def checks(self, plan: Plan) -> Mapping[str, Check]:
        """See `Method`."""
        from apps.trainers.memagent.checks import make_checks

        return make_checks(self.options, plan)

    def _tokens(self, profile: tokendelta.Profile) -> TokenReader:
        if self._token_reader is None or self._token_reader[0] is not profile:
            reader = TokenReader(profile, self._prompts, self.options)
            self._token_reader = (profile, reader)
        return self._token_reader[1]

    def _texts(self) -> TextReader:
        if self._text_reader is None:
            profile = load_profile(self.options.tokenizer)
            self._text_reader = TextReader(profile, self._prompts, self.options)
        return self._text_reader


def load_profile(folder: Path | None) -> tokendelta.Profile:
    """The tokenizer that cuts sections for an endpoint.

    Raises:
        ConfigError: there is none.
    """
    if folder is None:
        raise ConfigError(
            "memagent.tokenizer: a policy behind an endpoint needs a tokenizer that cuts the text;"
            " name the folder of its model's"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return tokendelta.Profile.from_tokenizer(tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"memagent.tokenizer {folder}: {str(error).splitlines()[0]}; name a folder with"
            " tokenizer.json and a chat template"
        ) from error


METHOD = MemAgentMethod
