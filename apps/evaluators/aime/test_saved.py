"""Saved outputs as records: what is read, and the one error for what is not."""

import json
from pathlib import Path

import pytest
from apps.evaluators.aime.saved import read_saved
from turnwise.config import ConfigError


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_labels_are_read_as_those_of_data_files(tmp_path: Path, encoding: str) -> None:
    labels = [" 033 ", 33.0, "So <<30+3=33>>.\n#### 33", {"ground_truth": "33"}]
    rows = [{"question": f"q{n}", "label": label, "output": "o"} for n, label in enumerate(labels)]
    (run,) = read_saved(write(tmp_path / "a.json", json.dumps(rows), encoding))
    assert [saved.label for saved in run.outputs] == ["033", "33", "33", "33"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('"label": NaN, "output": "o"', "record [0]: label: is nan"),
        ('"label": null, "output": "o"', "record [0]: label: expected a text or a number"),
        ('"label": "\\frac12", "output": "o"', "record [0]: label: holds the control character"),
        ('"label": 1, "output": "o", "score": NaN', "score: expected a number, found nan"),
        ('"label": 1, "output": "o", "score": 1e400', "score: expected a number, found inf"),
        ('"label": 1, "output": "o", "score": true', "score: expected a number, found True"),
    ],
)
def test_a_record_that_can_be_graded_by_nobody_is_named(
    tmp_path: Path, fields: str, words: str
) -> None:
    path = write(tmp_path / "a.json", f'[{{"question": "q", {fields}}}]')
    with pytest.raises(ConfigError) as caught:
        read_saved(path)
    assert f"{path}: " in str(caught.value) and words in str(caught.value)


def test_half_a_character_in_a_question_is_named_and_in_an_output_is_the_models(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.json", '[{"question": "q\\ud83d", "label": 1, "output": "o"}]')
    with pytest.raises(ConfigError, match="question: holds .* half of a character"):
        read_saved(path)
    path = write(tmp_path / "b.json", '[{"question": "q", "label": 1, "output": "o\\ud83d"}]')
    assert read_saved(path)[0].outputs[0].output == "o\ud83d"
