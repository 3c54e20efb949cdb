"""Whole evaluations of a model behind an endpoint on this machine."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from taubench import Task, load_tasks
from taubench.users import compact_user
from turnwise.command import run_command
from turnwise.evaluation import policies
from turnwise.evaluation.command import evaluate_benchmark

from apps.evaluators.tau.benchmark import TauBench

KEY = "sk-never-to-be-written-4711"
Json = dict[str, Any]
Say = Callable[[list[Json]], Json | int]


class Endpoint:
    """Answers from a thread of its own with `say`, which gets the messages; checks each id."""

    def __init__(self, say: Say) -> None:
        self.say, self.url = say, ""
        self.asked: list[list[Json]] = []
        self.keys: set[str | None] = set()
        self.tools: list[Any] = []
        self.customers = 0

    def talk(self, messages: list[Json]) -> str:
        """What a model as customer says: its part, then that it is enough."""
        replies = sum(message["role"] == "assistant" for message in messages)
        place = next(
            n for n, task in enumerate(TASKS) if task.instruction[:40] in messages[0]["content"]
        )
        return OPENINGS[place] if replies == 0 else "###STOP###"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.keys.add(request.headers.get("Authorization"))
        self.tools.append(body.get("tools"))
        messages = body["messages"]
        if messages[0]["content"] == "Hello":
            if body["model"] not in ("m", "customer"):
                return web.json_response({"error": "no such model"}, status=404)
            return web.json_response(said("Hello"))
        if body["model"] == "customer":
            self.customers += 1
            return web.json_response(said(self.talk(messages)))
        self.asked.append(messages)
        for place, message in enumerate(messages):
            calls = message.get("tool_calls", [])
            follow = messages[place + 1 : place + 1 + len(calls)]
            answered = [after.get("tool_call_id") for after in follow]
            readable = all(
                isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls
            )
            if answered != [call["id"] for call in calls] or not readable:
                return web.json_response({"error": "tool_call_ids do not match"}, status=400)
        reply = self.say(messages)
        if isinstance(reply, int):
            text = "context_length_exceeded" if reply == 400 else ""
            return web.Response(status=reply, text=text)
        return web.json_response(reply)


@contextmanager
def serving(say: Say) -> Iterator[Endpoint]:
    endpoint, loop, ready = Endpoint(say), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", endpoint.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def work() -> None:
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def said(text: str | None, *calls: tuple[str, str], finish: str = "stop") -> Json:
    message: Json = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    return {
        "choices": [{"message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
    }


TASKS = load_tasks("retail", "dev")[:2]


@pytest.fixture(autouse=True)
def two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(self: TauBench, options: Any, method: Any) -> Any:
        return method.rows(options.task_split)[:2]

    monkeypatch.setattr(TauBench, "rows", rows)
    monkeypatch.setattr(policies, "ANSWER_DEADLINE_S", 3.0)


def ground_truth(messages: list[Json]) -> Json:
    """Makes the calls of the task's ground truth, then says goodbye until the customer leaves."""
    task = _task_of(messages)
    done = sum(message["role"] == "tool" for message in messages)
    actions = [action for action in task.actions if action.name != "respond"]
    if done < len(actions):
        action = actions[done]
        return said(None, (action.name, json.dumps(dict(action.kwargs))))
    return said("Done. " + " ".join(task.outputs) + " Is there anything else?")


def _task_of(messages: list[Json]) -> Task:
    opening = messages[1]["content"]
    return TASKS[OPENINGS.index(opening)]


def _openings() -> list[str]:
    return [asyncio.run(compact_user().reset(task)) for task in TASKS]


OPENINGS = _openings()


def evaluate(url: str, folder: Path, *more: str) -> int:
    fixed = ["--task-split", "dev", "--prompt", "compact", "--trials", "1", "--model", "m"]
    argv = ["--base-url", url, *fixed, "--run-dir", str(folder), *more]
    return run_command(partial(evaluate_benchmark, TauBench()), argv)


def rows(folder: Path) -> list[Json]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def summary(folder: Path) -> Json:
    data: Json = json.loads((folder / "summary.json").read_text())
    return data


def test_ground_truth_calls_pass_and_the_key_is_sent_but_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DESK_KEY", KEY)
    folder = tmp_path / "run"
    with serving(ground_truth) as endpoint:
        assert evaluate(endpoint.url, folder, "--api-key-env", "DESK_KEY") == 0
    assert endpoint.keys == {f"Bearer {KEY}"}
    assert all(endpoint.tools)
    assert summary(folder)["measures"][0]["estimate"]["mean"] == 1.0
    assert summary(folder)["coverage"] == 1.0
    assert all(row["segments"] == [] for row in rows(folder))
    report = (folder / "report.html").read_text()
    assert "not known" in report and OPENINGS[0][:20] in report
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    out = capsys.readouterr()
    assert KEY.encode() not in written
    assert KEY not in out.out + out.err


@pytest.mark.parametrize(
    ("call", "observation", "unreadable"),
    [
        (("get_order_details", '{"order_id": '), "are not JSON", 1),
        (("get_order_details", "[1]"), "must be a JSON object", 1),
        (("summon_manager", "{}"), "", 0),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_and_the_endpoint_accepts_what_follows(
    call: tuple[str, str], observation: str, unreadable: int, tmp_path: Path
) -> None:
    def say(messages: list[Json]) -> Json:
        return said(None, call) if messages[-1]["role"] == "user" else said("Goodbye")

    with serving(say) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run") == 0
    row = rows(tmp_path / "run")[0]
    assert row["ending"] == "finished"
    assert row["metrics"]["parse_errors"] == unreadable
    answer = next(message for message in row["transcript"] if message["role"] == "tool")
    assert answer["content"] and observation in answer["content"]
    model = next(message for message in row["transcript"] if message["role"] == "assistant")
    arguments = model["tool_calls"][0]["function"]["arguments"]
    assert arguments == (call[1] if unreadable else json.loads(call[1]))


def test_unreadable_calls_in_a_row_stop_the_episode(tmp_path: Path) -> None:
    with serving(lambda messages: said(None, ("calculate", "{"))) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run") == 0
    assert {row["ending"] for row in rows(tmp_path / "run")} == {"stopped:format"}
    assert summary(tmp_path / "run")["coverage"] == 1.0


def test_the_first_of_several_calls_is_made_and_every_id_is_answered(tmp_path: Path) -> None:
    calls = [("get_order_details", '{"order_id": "#W1"}'), ("get_order_details", "{}")]

    def say(messages: list[Json]) -> Json:
        return said(None, *calls) if messages[-1]["role"] == "user" else said("Goodbye")

    with serving(say) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run") == 0
    row = rows(tmp_path / "run")[0]
    assert row["ending"] == "finished"
    assert [left["reason"] for left in row["info"]["dropped_calls"]] == ["not first"]
    last = endpoint.asked[-1]
    assert [m["tool_call_id"] for m in last if m["role"] == "tool"] == ["c0", "c1"]
    assert "was not carried out" in last[-1]["content"]


def as_text(messages: list[Json]) -> Json:
    """`ground_truth`, written as a text strategy asks for it."""
    task = _task_of(messages)
    done = sum(message["role"] == "assistant" for message in messages)
    actions = [action for action in task.actions if action.name != "respond"]
    taken = {"name": "respond", "arguments": {"content": "Done. " + " ".join(task.outputs)}}
    if done < len(actions):
        taken = {"name": actions[done].name, "arguments": dict(actions[done].kwargs)}
    return said(f"Thought: as asked.\nAction: {json.dumps(taken)}")


@pytest.mark.parametrize("strategy", ["act", "react"])
def test_a_text_strategy_offers_no_tools_and_reads_the_words(strategy: str, tmp_path: Path) -> None:
    with serving(as_text) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run", "--agent-strategy", strategy) == 0
    assert not any(endpoint.tools)
    assert summary(tmp_path / "run")["measures"][0]["estimate"]["mean"] == 1.0
    heard = [m["content"] for m in endpoint.asked[-1] if m["role"] == "user"][1:]
    assert heard and all(words.startswith("Observation: ") for words in heard)
    row = rows(tmp_path / "run")[0]
    assert row["metrics"]["tool_calls"] > 0 and row["metrics"]["parse_errors"] == 0


def test_words_without_an_action_are_unreadable_to_a_text_strategy(tmp_path: Path) -> None:
    with serving(lambda messages: said("Hello there")) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run", "--agent-strategy", "act") == 0
    row = rows(tmp_path / "run")[0]
    assert row["ending"] == "stopped:format" and row["metrics"]["parse_errors/no_action"] == 3


def test_a_model_plays_the_customer_until_its_cap_and_the_evaluation_goes_on_with_a_higher_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, cache = tmp_path / "run", tmp_path / "replies.jsonl"
    with serving(ground_truth) as endpoint:
        played = [
            "--user.strategy", "llm", "--user.model", "customer", "--user.key-env", "",
            "--user.deadline-s", "10",
            "--user.base-url", endpoint.url, "--user.max-tokens", "3", "--user.write-price",
            "1000", "--user.user-cache", str(cache), "--concurrency", "1",
        ]  # fmt: skip
        capped = [*played, "--user.spend-cap-usd"]
        assert evaluate(endpoint.url, folder, *capped, "0.010") == 4
        error = capsys.readouterr().err
        assert "the spend cap of $0.01 is reached" in error
        assert "1 of 2 trials have their score, go on with --resume" in error
        assert endpoint.customers == 2
        assert (folder / "report.html").is_file()
        assert evaluate(endpoint.url, folder, *capped, "1", "--resume") == 0
        assert endpoint.customers == 4
        data = summary(folder)
        assert (data["coverage"], data["measures"][0]["estimate"]["mean"]) == (1.0, 1.0)
        assert data["services"]["user"].startswith("llm-")
        assert "offline" not in json.dumps(data["claim"])
        (row,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        # Of both processes, each with its greeting.
        assert row["service_totals"]["user/usd"] == pytest.approx(6 * 0.003)
        assert evaluate(endpoint.url, tmp_path / "again", *played, "--user.user-replay") == 0
        assert endpoint.customers == 4
        assert summary(tmp_path / "again")["measures"] == data["measures"]


def test_an_answer_cut_for_its_length_scores_0(tmp_path: Path) -> None:
    with serving(lambda messages: said("I will", finish="length")) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run") == 0
    assert {row["ending"] for row in rows(tmp_path / "run")} == {"stopped:tokens"}


def test_a_failing_endpoint_loses_trials_and_lowers_the_coverage(tmp_path: Path) -> None:
    def say(messages: list[Json]) -> Json | int:
        return 500 if _task_of(messages) is TASKS[0] else ground_truth(messages)

    with serving(say) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run") == 0
    assert summary(tmp_path / "run")["coverage"] == 0.5
    assert "lost:engine" in {row["ending"] for row in rows(tmp_path / "run")}
    assert summary(tmp_path / "run")["measures"][0]["estimate"]["mean"] == 1.0


def test_nobody_at_the_url_exits_with_3_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        assert evaluate(url, tmp_path / "run") == 3
    error = capsys.readouterr().err
    assert url in error and "nobody answers" in error
    assert not (tmp_path / "run").exists()


def test_a_key_that_is_not_set_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DESK_KEY", raising=False)
    with serving(ground_truth) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run", "--api-key-env", "DESK_KEY") == 2
    assert "--api-key-env: the environment variable DESK_KEY is not set" in capsys.readouterr().err
    assert not endpoint.asked and not (tmp_path / "run").exists()


def test_a_conversation_that_does_not_fit_is_the_policys_ending(tmp_path: Path) -> None:
    with serving(lambda messages: 400) as endpoint:
        # Not a token was sampled, so nothing was measured.
        assert evaluate(endpoint.url, tmp_path / "run") == 4
    assert {row["ending"] for row in rows(tmp_path / "run")} == {"stopped:context"}


def test_a_model_that_the_endpoint_does_not_know_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ground_truth) as endpoint:
        assert evaluate(endpoint.url, tmp_path / "run", "--model", "n") == 3
    error = capsys.readouterr().err
    assert "--model n" in error and "no such model" in error
    assert not endpoint.asked and not (tmp_path / "run").exists()


def test_a_key_in_place_of_its_variables_name_is_refused_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate("http://127.0.0.1:9/v1", tmp_path / "run", "--api-key-env", KEY) == 2
    out = capsys.readouterr()
    assert "must be the name of a variable" in out.err and KEY not in out.out + out.err
