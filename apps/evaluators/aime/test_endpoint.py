"""Whole evaluations of a model behind an endpoint on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from turnwise.evaluation import policies

from apps.evaluators.aime import eval as command
from apps.evaluators.aime.fakes import (
    at,
    byte_tokenizer,
    evaluate,
    means,
    rows,
    said,
    serving,
    summary,
    write_policy,
)
from apps.evaluators.aime.problems import sample

KEY = "sk-never-to-be-written-4711"
Json = dict[str, Any]


def know(body: Json) -> Json:
    question = body["messages"][0]["content"]
    label = next(p.label for p in sample() if question.startswith(str(p.prompt)))
    return said(f"Surely \\boxed{{{label}}}")


def test_an_endpoint_is_sent_the_sampling_and_a_seed_and_its_key_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DESK_KEY", KEY)
    folder = tmp_path / "run"
    more = ["--n-samples-per-eval-prompt", "2", "--api-key-env", "DESK_KEY"]
    prices = ["--read-price", "1", "--write-price", "10"]
    with serving(know) as endpoint:
        assert evaluate(folder, *more, *prices, policy=at(endpoint.url)) == 0
    assert endpoint.keys == {f"Bearer {KEY}"}
    asked = [(b["temperature"], b["top_p"], b["max_tokens"]) for b in endpoint.asked]
    assert set(asked) == {(0.7, 0.95, 4096)}
    assert len({body["seed"] for body in endpoint.asked}) == len(asked) == 24
    found = summary(folder)
    assert means(folder)["avg@2"] == 1.0
    # 24 answers of 100 tokens read and 30 written.
    assert found["usd"] == pytest.approx(24 * (100 * 1 + 30 * 10) / 1e6)
    out = capsys.readouterr()
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert KEY.encode() not in written and KEY not in out.out + out.err


@pytest.mark.parametrize(
    ("reply", "kind", "score"),
    [
        (said(None, "length"), "stopped", 0.0),
        (said(""), "finished", 0.0),
        (400, "stopped", 0.0),
        (401, "lost", None),
        ({"choices": []}, "lost", None),
        (said("\\boxed{2}", "error"), "lost", None),
    ],
)
def test_an_empty_answer_is_wrong_and_asked_for_once_but_a_refusal_is_lost(
    tmp_path: Path, reply: Json | int, kind: str, score: float | None
) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"prompt": "1 + 1?", "label": "2"}\n')
    folder = tmp_path / "run"
    more = ["--data", str(data), "--n-samples-per-eval-prompt", "1"]
    # Where the only prompt is too long (400), nothing is measured.
    unmeasured = score is None or reply == 400
    with serving(lambda body: reply) as endpoint:
        assert evaluate(folder, *more, policy=at(endpoint.url)) == (4 if unmeasured else 0)
    # An answer that is none is asked for again.
    assert len(endpoint.asked) == (3 if isinstance(reply, dict) and score is None else 1)
    (row,) = rows(folder)
    assert (row["kind"], row["score"]) == (kind, score)


def test_an_endpoint_that_fails_for_some_problems_lowers_the_coverage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "ANSWER_DEADLINE_S", 8.0)
    folder = tmp_path / "run"

    def say(body: Json) -> Json | int:
        reply = know(body)
        return 500 if "divided by" in body["messages"][0]["content"] else reply

    with serving(say) as endpoint:
        argv = ["--n-samples-per-eval-prompt", "1"]
        assert evaluate(folder, *argv, policy=at(endpoint.url)) == 0
    assert means(folder)["avg@1"] == 1.0
    assert (summary(folder)["coverage"], summary(folder)["lost_as_failed"]) == (0.5, 0.5)


def test_an_sglang_server_is_sent_ids_with_the_sampling_and_a_seed(tmp_path: Path) -> None:
    folder, tokenizer = tmp_path / "run", byte_tokenizer()
    policy = ["--hf-checkpoint", str(write_policy(tmp_path / "policy"))]

    def say(body: Json) -> Json | int:
        prompt = tokenizer.decode(body["input_ids"])
        if "path goes" in prompt:
            return 400
        return said(next(f"\\boxed{{{p.label}}}" for p in sample() if str(p.prompt) in prompt))

    with serving(say) as endpoint:
        server = ["--sglang-url", endpoint.url, "--n-samples-per-eval-prompt", "2"]
        assert evaluate(folder, *server, policy=policy) == 0
    first = summary(folder)["measures"][0]
    assert (first["estimate"]["mean"], first["estimate"]["trials"]) == (1.0, 18)
    assert (first["low"], first["high"]) == (0.75, 1.0)
    params = [body["sampling_params"] for body in endpoint.asked]
    assert {(p["temperature"], p["top_p"]) for p in params} == {(0.7, 0.95)}
    assert all(p["max_new_tokens"] <= 4096 for p in params)
    assert len({p["sampling_seed"] for p in params}) == 24


def test_nobody_at_the_url_exits_with_3_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        assert evaluate(tmp_path / "run", policy=at(f"{url}/v1")) == 3
        error = capsys.readouterr().err
        assert f"--base-url {url}/v1, --model m: " in error and "nobody answers" in error
        weights = str(write_policy(tmp_path / "policy"))
        policy = ["--hf-checkpoint", weights, "--sglang-url", url]
        assert evaluate(tmp_path / "run", policy=policy) == 3
        assert f"--sglang-url {url}: nobody answers" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_model_that_the_endpoint_does_not_know_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(know) as endpoint:
        policy = ["--base-url", endpoint.url, "--model", "n"]
        assert evaluate(tmp_path / "run", policy=policy) == 3
    assert "--model n: no answer" in capsys.readouterr().err
    assert not endpoint.asked and not (tmp_path / "run").exists()


def test_a_killed_evaluation_loses_the_attempt_under_way_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child: list[subprocess.Popen[bytes]] = []

    def say(body: Json) -> Json:
        if len(endpoint.asked) == 6:
            child[0].kill()
        return know(body)

    with serving(say) as endpoint:
        once = ["--n-samples-per-eval-prompt", "1", "--concurrency", "1"]
        argv = [*at(endpoint.url), *once, "--run-dir", str(folder)]
        child.append(
            subprocess.Popen(
                [sys.executable, "-m", command.__name__, *argv],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.DEVNULL,
            )
        )
        assert child[0].wait() == -9
        assert len(rows(folder)) == 5
        assert evaluate(folder, *once, "--resume", policy=at(endpoint.url)) == 0
    asked = [body["messages"][0]["content"] for body in endpoint.asked]
    assert len(asked) == 13 and len(set(asked)) == 12
    assert means(folder)["avg@1"] == 1.0
