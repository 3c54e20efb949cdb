"""MemAgent's lines of `check`: what would fail on the nodes is said before the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from turnwise.preflight import Line, run_checks
from turnwise.testing import byte_tokenizer

from apps.trainers.memagent.checks import kv_bytes, make_checks
from apps.trainers.memagent.options import MemAgentOptions

MODEL = {
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
}


class Flags:
    """slime's flags, as a plan holds them."""

    def __init__(self, **given: Any) -> None:
        self.options = {
            f"--{name.replace('_', '-')}": [
                str(one) for one in (value if isinstance(value, list) else [value])
            ]
            for name, value in given.items()
        }

    def value(self, name: str) -> str | None:
        values = self.options.get(name)
        return values[0] if values else None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    byte_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    return folder


def rows(path: Path, *contexts: str, label: Any = "Ann") -> Path:
    lines = [
        json.dumps({"prompt": "Who?", "label": label, "metadata": {"context": context}})
        for context in contexts
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def lines(data: Path, checkpoint: Path, *, context: int = 8192, **options: Any) -> dict[str, Line]:
    flags: Any = Flags(
        prompt_data=data,
        input_key="prompt",
        label_key="label",
        hf_checkpoint=checkpoint,
        rollout_max_response_len=1024,
        rollout_max_context_len=context,
        rollout_batch_size=2,
        n_samples_per_prompt=8,
    )
    checks = make_checks(MemAgentOptions(**{"chunk_tokens": 100, **options}), flags)
    return {line.name: line for line in run_checks(checks)}


def test_rows_that_can_be_read_are_told_with_their_longest_text(
    tmp_path: Path, checkpoint: Path
) -> None:
    found = lines(rows(tmp_path / "a.jsonl", "x" * 50, "x" * 640), checkpoint)
    assert {line.verdict for line in found.values()} == {"ok"}
    assert "2 problems, texts of up to 640 characters" in found["data"].found
    assert "640 tokens, 7 sections" in found["sections"].found


def test_a_row_that_is_no_task_is_named_by_file_and_line(tmp_path: Path, checkpoint: Path) -> None:
    found = lines(rows(tmp_path / "a.jsonl", "x", label="the"), checkpoint)
    assert found["data"].verdict == "FAIL" and "a.jsonl:1" in found["data"].found


def test_a_text_that_would_stop_the_run_fails_and_one_that_is_cut_is_told(
    tmp_path: Path, checkpoint: Path
) -> None:
    data = rows(tmp_path / "a.jsonl", "x" * 640)
    assert lines(data, checkpoint, max_chunks=6)["sections"].verdict == "FAIL"
    assert lines(data, checkpoint, max_chunks=7)["sections"].verdict == "ok"
    cut = lines(data, checkpoint, max_chunks=6, on_overlong="centre")["sections"]
    assert cut.verdict == "note" and "cuts 40 tokens" in cut.found


def test_a_turn_that_does_not_fit_its_context_fails(tmp_path: Path, checkpoint: Path) -> None:
    data = rows(tmp_path / "a.jsonl", "x" * 640)
    (needed,) = {
        int(word) for word in lines(data, checkpoint)["context"].found.split() if word.isdigit()
    }
    assert lines(data, checkpoint, context=needed)["context"].verdict == "ok"
    assert lines(data, checkpoint, context=needed - 1)["context"].verdict == "FAIL"


def test_keys_and_values_cost_what_the_model_says(checkpoint: Path) -> None:
    assert kv_bytes(checkpoint) == 56 * 1024
    assert kv_bytes(checkpoint / "gone") is None


def test_the_cache_of_an_episode_does_not_grow_with_its_text(
    tmp_path: Path, checkpoint: Path
) -> None:
    short = lines(rows(tmp_path / "a.jsonl", "x" * 640), checkpoint)
    long = lines(rows(tmp_path / "b.jsonl", "x" * 64_000), checkpoint, max_chunks=None)
    assert short["kv"].found.split(" for an episode")[0] == long["kv"].found.split(" for an")[0]
    assert short["host"].found != long["host"].found


def test_what_is_read_again_is_in_the_rows(tmp_path: Path, checkpoint: Path) -> None:
    data = rows(tmp_path / "a.jsonl", "x" * 640)
    assert "episodes of 8 rows" in lines(data, checkpoint)["host"].found
    more = lines(data, checkpoint, callbacks=2)["host"]
    assert "episodes of 10 rows" in more.found
