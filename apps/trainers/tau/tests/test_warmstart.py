import asyncio
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokendelta
import torch
from taubench.prompts import prompt_view
from taubench.splits import family_splits
from turnwise.config import ConfigError
from turnwise.local.supervised import Schedule, copy_batches, replay_batches

from apps.trainers.tau.demonstrations import corpus, play, record
from apps.trainers.tau.supervised import (
    POOL,
    build_model,
    train_copying,
    train_replay,
)
from apps.trainers.tau.synthetic import make_case
from apps.trainers.tau.tokenizer import train_tokenizer
from apps.trainers.tau.warmstart import WarmstartConfig, main, warmstart

CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
IDENTIFIERS = ("#W2378156", "9624127908", "credit_card_4190576", "james.li4495@example.com")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(corpus(1, 300))


def encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def test_an_identifier_has_the_same_tokens_in_a_sentence_and_in_json(tokenizer: Any) -> None:
    for text in IDENTIFIERS:
        alone = encode(tokenizer, text)
        assert len(alone) <= 16
        for around in (f"Return {text} via", f"is {text}.", f'{{"a": "{text}"}}', f'["{text}", '):
            ids = encode(tokenizer, around)
            assert any(ids[at : at + len(alone)] == alone for at in range(len(ids))), around


def test_every_group_of_digits_is_one_token(tokenizer: Any) -> None:
    for width in (1, 2, 3):
        for number in range(10**width):
            assert len(encode(tokenizer, f"{number:0{width}}")) == 1


@pytest.mark.parametrize(
    "text", ["", "héé 日本 \n\n\t x", "{'a': \"b\"}", "\ud7ff\u2028<tool_call>"]
)
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


def test_a_vocabulary_without_room_for_words_is_refused() -> None:
    with pytest.raises(ValueError, match="1400"):
        train_tokenizer(["a"], vocab_size=500)


def test_the_template_only_appends(tokenizer: Any) -> None:
    tools = prompt_view("compact").tools("retail")
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "Look:", "tool_calls": [CALL, CALL]},
        {"role": "user", "content": "Bye."},
        {"role": "assistant", "content": "Bye."},
    ]
    whole = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    for size in (1, 2, 3, 5, 6, 7):
        part = tokenizer.apply_chat_template(messages[:size], tools=tools, tokenize=False)
        assert whole.startswith(part)
    assert "cancel_pending_order(order_id, reason)\n" in whole
    assert "user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n" in whole
    assert 'Look:\n<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>\n<to' in whole


def test_demonstrations_hold_the_experts_words_and_train_on_them_alone(tokenizer: Any) -> None:
    found = record(tokenizer, seed=2, count=12, mistake_share=0.5)
    for index in range(12):
        case = make_case(2, index, mistake_share=0.5)
        part = slice(found.offsets[index], found.offsets[index + 1])
        said = tokenizer.decode(found.ids[part][found.trained[part]], skip_special_tokens=False)
        assert said == "".join(f"{turn}<|im_end|>" for turn in case.turns)
        assert found.flawed[index] == (case.mistake is not None)
        whole = tokenizer.decode(found.ids[part], skip_special_tokens=False)
        assert whole.startswith("<|im_start|>system\nYou help") and "<tool_response>" in whole


def test_demonstrations_do_not_depend_on_the_workers(tokenizer: Any) -> None:
    one = record(tokenizer, seed=2, count=120, mistake_share=0.5, workers=1)
    two = record(tokenizer, seed=2, count=120, mistake_share=0.5, workers=2)
    for name in ("ids", "trained", "offsets", "flawed"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_an_expert_that_does_not_do_what_it_says_is_a_bug(tokenizer: Any) -> None:
    case = make_case(2, 0, mistake_share=0.0)
    silent = dataclasses.replace(case, turns=("Done.",))
    with pytest.raises(RuntimeError, match="mistake None"):
        asyncio.run(play(silent, tokenizer, tokendelta.Profile.from_tokenizer(tokenizer)))


def test_copy_batches_ask_for_every_repeat_and_never_for_the_first() -> None:
    schedule = Schedule(steps=30, learning_rate=1e-3, seed=0)
    for ids, trained in copy_batches(schedule, 2048, 7, 4):
        width = int(np.argmin(~trained[0])) - 1
        assert 4 <= width <= 32 and ids.min() >= 7
        assert not trained[:, : width + 1].any() and trained[:, width + 1 :].all()
        np.testing.assert_array_equal(ids[:, width:], ids[:, :-width])


def test_a_pass_over_the_data_meets_every_demonstration_once(tokenizer: Any) -> None:
    data = record(tokenizer, seed=2, count=40, mistake_share=0.5)
    batches = replay_batches(0, data, 2_048, pool=POOL)
    seen = 0
    while seen < len(data):
        ids, trained = next(batches)
        assert ids.size <= 2_048 and ids.shape == trained.shape
        seen += len(ids)
    assert seen == len(data)


def test_the_rate_rises_falls_and_never_reaches_nothing() -> None:
    schedule = Schedule(steps=100, learning_rate=1.0, seed=0)
    rates = [schedule.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.2) and max(rates) == rates[5] == 1.0
    assert rates[5:] == sorted(rates[5:], reverse=True) and 0.05 < rates[-1] < 0.06


def test_a_width_that_heads_do_not_divide_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="64"):
        build_model(tokenizer, hidden_size=100, layers=1, seed=0)


def test_replay_learns_the_experts_words_and_copying_the_random_ones(tokenizer: Any) -> None:
    torch.set_num_threads(1)
    data = record(tokenizer, seed=2, count=4, mistake_share=0.0)
    lines: list[str] = []
    schedule = Schedule(steps=60, learning_rate=4e-3, seed=0)
    model = build_model(tokenizer, hidden_size=64, layers=1, seed=0)
    accuracy = train_replay(model, schedule, data, batch_tokens=2_048, log=lines.append)
    assert accuracy > 0.5 and len(lines) == 1
    losses = []
    for steps in (1, 40):
        model = build_model(tokenizer, hidden_size=64, layers=1, seed=0)
        schedule = Schedule(steps=steps, learning_rate=4e-3, seed=0)
        train_copying(model, schedule, reserved=7, rows=2, log=lines.append)
        losses.append(float(lines[-1].split()[4]))
    assert losses[1] < losses[0]


TINY: dict[str, Any] = {
    "dialogues": 30,
    "copy_steps": 2,
    "copy_rows": 2,
    "replay_steps": 3,
    "batch_tokens": 1_024,
    "hidden_size": 64,
    "layers": 1,
    "device": "cpu",
}


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_the_same_settings_give_the_same_policy_on_a_cpu(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    first = warmstart(WarmstartConfig(out=tmp_path / "a", **TINY))
    second = warmstart(WarmstartConfig(out=tmp_path / "b", **TINY))
    warmstart(WarmstartConfig(out=tmp_path / "c", **{**TINY, "seed": 2}))
    assert first["replay_accuracy"] == second["replay_accuracy"]
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    saved = json.loads((tmp_path / "a" / "warmstart.json").read_text())
    assert saved["settings"]["dialogues"] == 30 and "out" not in saved["settings"]


def test_a_policy_that_is_there_is_gone_on_from(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    warmstart(WarmstartConfig(out=tmp_path / "a", **TINY))
    own = {name: TINY[name] for name in ("dialogues", "replay_steps", "batch_tokens", "device")}
    # With a learning rate of nothing the weights stay what they were, in bfloat16.
    further: dict[str, Any] = {"hf_checkpoint": str(tmp_path / "a"), **own}
    same = warmstart(WarmstartConfig(out=tmp_path / "b", learning_rate=1e-12, **further))
    warmstart(WarmstartConfig(out=tmp_path / "c", learning_rate=1e-2, **further))
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    assert "copy_accuracy" not in same and same["settings"]["hf_checkpoint"].endswith("a")
    files = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("a", "c")]
    assert files[0] == files[1]
    with pytest.raises(ConfigError, match="layers is for a new policy"):
        WarmstartConfig(hf_checkpoint=str(tmp_path / "a"), layers=2)


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        warmstart(WarmstartConfig(out=tmp_path))


def test_a_value_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="mistake-share"):
        WarmstartConfig(mistake_share=1.5)


def test_help_ends_without_doing_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "--mistake-share" in capsys.readouterr().out


def test_tune_and_held_out_are_not_what_synthetic_cases_are_named_after() -> None:
    real = {task.id for part in ("tune", "held_out") for task in getattr(family_splits(), part)}
    assert not {make_case(1, index, mistake_share=0.5).task.id for index in range(500)} & real
