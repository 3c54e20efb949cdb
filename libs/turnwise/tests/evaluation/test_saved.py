"""Saved outputs as records: what is read, and the one error for what is not."""

import json
from pathlib import Path

import pytest
from turnwise.config import ConfigError
from turnwise.evaluation.saved import read_saved


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_label_is_any_json_value(tmp_path: Path, encoding: str) -> None:
    labels = [" 033 ", 33.0, None, {"cities": [["Paris"]]}]
    rows = [{"question": f"q{n}", "label": label, "output": "o"} for n, label in enumerate(labels)]
    (run,) = read_saved(write(tmp_path / "a.json", json.dumps(rows), encoding))
    assert [saved.label for saved in run.outputs] == labels


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('"label": NaN, "output": "o"', "record [0]: label: is nan"),
        ('"label": 1, "output": "o", "score": 1%s' % ("0" * 400), "score: expected a number"),
        ('"label": 1, "output": "o", "trial": 10000', "trial: expected a number from 0 to 9999"),
        ('"label": 1, "output": "o", "trial": 1%s' % ("0" * 400), "trial: expected a number"),
        ('"label": 1, "output": "o", "kind": []', "record [0]: "),
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
