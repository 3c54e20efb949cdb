"""How many ids a model can sample is what its config.json says, whatever its tokenizer knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from turnwise.policy import model_vocabulary


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('{"vocab_size": 151936}', 151936),
        ('{"text_config": {"vocab_size": 262208}, "vocab_size": 1}', 262208),
        ('{"vocab_size": -1}', None),
        ('{"vocab_size": "many"}', None),
        ('{"text_config": []}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_the_vocabulary_is_the_models_own(tmp_path: Path, text: str, size: int | None) -> None:
    (tmp_path / "config.json").write_text(text)
    assert model_vocabulary(tmp_path) == size


def test_a_folder_without_a_config_says_nothing(tmp_path: Path) -> None:
    assert model_vocabulary(tmp_path) is None
