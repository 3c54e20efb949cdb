"""A policy behind an endpoint reads the same text, cut by a tokenizer of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from turnwise.config import ConfigError
from turnwise.method import play
from turnwise.models.answer import ChatReply
from turnwise.models.config import ChatConfig
from turnwise.policy import EndpointPolicy
from turnwise.testing import byte_tokenizer

from apps.trainers.memagent.tests.reading import ANSWER, below, method, rollout, task


class Endpoint:
    """Answers with a number each time, and at last with the answer."""

    def __init__(self) -> None:
        self.config = ChatConfig(base_url="http://localhost:1/v1", model="m")
        self.prompts: list[str] = []
        self.limits: list[int] = []

    async def complete(self, messages: list[dict[str, Any]], **options: Any) -> ChatReply:
        self.prompts.append(messages[-1]["content"])
        self.limits.append(options["extra"]["max_tokens"])
        said = f" note {len(self.prompts)}\n" if "<section>" in self.prompts[-1] else ANSWER
        return ChatReply(said, "stop", 9, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


async def test_sections_joined_are_the_text_and_end_on_whole_characters(folder: Path) -> None:
    text = "день ночь 🙂 the third"
    client: Any = Endpoint()
    one = method(tokenizer=folder, chunk_tokens=7, max_memory_tokens=50, max_final_tokens=60)
    episode = await play(one, rollout(task(text)), EndpointPolicy(client=client))
    *updates, final = client.prompts
    sections = [below("section", prompt) for prompt in updates]
    assert "".join(sections) == text and not any("\ufffd" in section for section in sections)
    assert below("notes", updates[1]) == "note 1"
    assert below("notes", final) == f"note {len(updates)}"
    assert client.limits == [50] * len(updates) + [60]
    assert episode.score == 1.0 and episode.segments == ()


async def test_without_a_tokenizer_the_run_ends_with_what_to_do(tmp_path: Path) -> None:
    client: Any = Endpoint()
    for options in ({}, {"tokenizer": tmp_path / "gone"}):
        with pytest.raises(ConfigError, match=r"memagent\.tokenizer"):
            await play(method(**options), rollout(), EndpointPolicy(client=client))
