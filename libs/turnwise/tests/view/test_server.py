import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from run.pages import add_trace, run_folder
from run.rows import eval_row, train_row
from runs.answering import answering
from turnwise.command import PreflightError
from turnwise.config import ConfigError
from turnwise.inflight import playing, waiting
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import dump
from turnwise.run.metrics import SlimeRow, as_row
from turnwise.view.command import ViewOptions, known_names, view
from turnwise.view.control import TOKEN_HEADER

from view.serving import serving


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        async with self.session.get(f"{self.url}/api/{path}", params=query) as response:
            assert response.status == status, await response.text()
            return await response.json()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(tmp_path) as url, aiohttp.ClientSession() as session:
        yield Client(session, url)


def files_of(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


async def test_looking_at_a_run_changes_nothing_in_its_folder(
    tmp_path: Path, client: Client
) -> None:
    run_folder(tmp_path)
    before = files_of(tmp_path)
    await client.get("runs")
    for path in ("run", "status", "episodes"):
        await client.get(path, run="tau-run")
    for path in ("episode", "group", "raw"):
        await client.get(path, run="tau-run", line=0)
    await client.get("tokens", run="tau-run", line=0, segment=0, start=0, stop=9)
    assert files_of(tmp_path) == before


async def test_runs_are_found_in_folders_of_folders_and_their_checkpoints_are_none(
    tmp_path: Path, client: Client
) -> None:
    inner = run_folder(tmp_path / "a" / "b")
    (inner.checkpoints / "step_1").mkdir(parents=True)
    (inner.checkpoints / "step_1" / "config.json").write_text("{}")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text("{}")
    RunFolder.create(tmp_path / "begun", "tau", {"method": "tau"})
    (tmp_path / "link").symlink_to(inner.path)
    (tmp_path / "loop").symlink_to(tmp_path)
    found = await client.get("runs")
    assert sorted(run["name"] for run in found["runs"]) == ["a/b/tau-run", "begun", "link"]


async def test_a_run_that_has_only_begun_is_shown(tmp_path: Path, client: Client) -> None:
    RunFolder.create(tmp_path / "begun", "tau", {"method": "tau"})
    found = await client.get("run", run="begun")
    assert found["method"] == "tau" and found["verdict"] == ""
    assert "metrics.jsonl is missing" in found["gaps"]


async def test_a_broken_row_is_named_and_the_others_are_shown(
    tmp_path: Path, client: Client
) -> None:
    folder = run_folder(tmp_path, steps=2)
    with folder.metrics.open("ab") as stream:
        stream.write(b'{"step": 1}\n' + dump(as_row(train_row(step=3))).encode() + b"\n{torn")
    folder.summary.write_text("{")
    found = await client.get("run", run="tau-run")
    assert found["steps"] == 3
    assert any("metrics.jsonl:5 is left out: kind" in gap for gap in found["gaps"])
    assert any("summary.json" in gap for gap in found["gaps"])


async def test_rows_of_earlier_versions_are_read(tmp_path: Path, client: Client) -> None:
    folder = RunFolder.create(tmp_path / "early", "tau", {"method": "tau"})
    later = {"metrics", "services", "service_totals", "baselines", "compared", "pictures"}
    later |= {"dataset", "mean_logprob_diff", "tis_mean", "tis_clip_fraction"}
    for row in (eval_row(), train_row(step=1), train_row(step=2)):
        early = {name: value for name, value in as_row(row).items() if name not in later}
        folder.append_metrics({**early, "user": "offline", "noop_baseline": 0.0})
    found = await client.get("run", run="early")
    assert found["steps"] == 2 and found["score"] is not None
    assert found["gaps"] == ["episodes.jsonl is missing"]


async def test_slimes_numbers_are_drawn(tmp_path: Path, client: Client) -> None:
    folder = run_folder(tmp_path)
    for step in (1, 2):
        folder.append_metrics(as_row(SlimeRow(step=step, numbers={"train/loss": 0.5 / step})))
    found = await client.get("run", run="tau-run")
    assert [chart["title"] for chart in found["slime_charts"]] == ["train/loss"]


async def test_two_runs_are_paired_over_the_tasks_that_both_have(
    tmp_path: Path, client: Client
) -> None:
    for name, scores, lr in (
        ("a", {"t1": [0.0, 0.0], "t2": [0.0], "only": [1.0]}, 0.1),
        ("b", {"t1": [1.0, 0.0], "t2": [1.0]}, 0.2),
    ):
        folder = RunFolder.create(tmp_path / name, "tau", {"tau": {"lr": lr, "seed": 1}})
        for step in (1, 2):
            folder.append_metrics(as_row(train_row(step=step)))
        folder.append_metrics(as_row(eval_row(scores=scores)))
    query = [("run", "a"), ("run", "b")]
    async with client.session.get(f"{client.url}/api/compare", params=query) as response:
        found = await response.json()
    (pair,) = found["differences"][0]["found"]
    assert pair["text"].startswith(
        "+75.0 ± 25.0 points (+3.0 standard errors), paired over 2 tasks"
    )
    assert pair["only_one"] == 1
    assert found["options"] == [["tau.lr", ["0.1", "0.2"]]]
    reward = next(chart for chart in found["charts"] if chart["title"] == "Reward in training")
    assert [one["name"] for one in reward["data"]["series"]] == ["a", "b"]
    assert reward["data"]["series"][0]["x"] == [1, 2]
    query.append(("by", "seconds"))
    async with client.session.get(f"{client.url}/api/compare", params=query) as response:
        found = await response.json()
    reward = next(chart for chart in found["charts"] if chart["title"] == "Reward in training")
    assert reward["data"]["series"][0]["x"] == [7, 10]


async def test_a_group_shows_what_its_rollouts_share(tmp_path: Path, client: Client) -> None:
    folder = run_folder(tmp_path, steps=0, ended=False)
    for rollout, answer in (("g/0", "Let me look."), ("g/1", "Let it be.")):
        add_trace(folder, step=1, kind="train", rollout_id=rollout, answer=answer)
    found = await client.get("group", run="tau-run", line=1)
    assert found["kept"] == 2 and found["common_messages"] == 2
    assert [column["rollout_id"] for column in found["columns"]] == ["g/0", "g/1"]


async def test_an_episode_without_tokens_shows_its_messages(tmp_path: Path, client: Client) -> None:
    folder = run_folder(tmp_path, steps=0, ended=False)
    add_trace(folder, step=1, kind="train", segments=())
    found = await client.get("episode", run="tau-run", line=1)
    assert found["segments"] == [] and len(found["messages"]) == 5


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("run", {"run": "../tau-run"}, "no such run"),
        ("run", {"run": "/etc"}, "no such run"),
        ("run", {}, "no such run"),
        ("episode", {"run": "tau-run", "line": 99}, "episodes.jsonl:100: no episode"),
        ("episode", {"run": "tau-run", "line": "-1"}, "line: expected a number"),
        ("tokens", {"run": "tau-run", "line": 0, "segment": 7}, "the episode has 1"),
        ("episodes", {"run": "tau-run", "least_step": "x"}, "least_step"),
        ("episodes", {"run": "tau-run", "start": "x"}, "can't be read"),
        ("compare", {"run": "tau-run"}, "two or more"),
    ],
)
async def test_what_is_not_there_is_one_clear_error(
    tmp_path: Path, client: Client, path: str, query: dict[str, Any], said: str
) -> None:
    run_folder(tmp_path)
    found = await client.get(path, status=404, **query)
    assert said in found["error"]


async def test_an_unknown_name_of_the_server_is_refused(tmp_path: Path, client: Client) -> None:
    run_folder(tmp_path)
    for host, status in (
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("", 421),
        ("LOCALHOST:1", 200),
        ("[::1]:8765", 200),
    ):
        async with client.session.get(f"{client.url}/api/runs", headers={"Host": host}) as response:
            assert response.status == status, host
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("name", ["..%2Fserver.py", "%2Fetc%2Fpasswd", "server.py", "nothing"])
async def test_only_the_pages_own_files_are_served(client: Client, name: str) -> None:
    async with client.session.get(f"{client.url}/assets/{name}") as response:
        assert response.status == 404
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]


def test_a_server_that_is_open_to_others_knows_this_machines_names() -> None:
    assert known_names(ViewOptions()) == {"127.0.0.1", "localhost", "::1"}
    open_ = known_names(ViewOptions(host="0.0.0.0", names=("Big.example",)))
    assert "big.example" in open_ and len(open_) == 6


def test_a_folder_that_is_none_and_a_port_that_is_taken_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--runs-dir .*/none: no such folder"):
        view([str(tmp_path / "none")])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--runs-dir .*/file: is a file; name a folder"):
        view([str(tmp_path / "file")])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PreflightError, match=f"--port {port}: .*name another port"):
            view([str(tmp_path), "--port", str(port)])


async def test_a_request_needs_the_token_of_the_address(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, ended=False)
    pause = b'{"command":"pause"}'
    async with serving(tmp_path) as url, aiohttp.ClientSession() as session:
        address = f"{url}/api/control?run=tau-run"
        async with session.post(address, data=pause, headers={TOKEN_HEADER: ""}) as response:
            assert response.status == 403 and "--control" in (await response.json())["error"]
    async with serving(tmp_path, "secret") as url, aiohttp.ClientSession() as session:
        address = f"{url}/api/control?run=tau-run"
        for headers in ({}, {TOKEN_HEADER: ""}, {TOKEN_HEADER: "secre"}, {"token": "secret"}):
            sent = session.post(f"{address}&token=secret", data=pause, headers=headers)
            async with sent as response:
                assert response.status == 403, headers
        # What a page of another site asks before it may send the header.
        asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        async with session.options(address, headers=asked) as response:
            assert response.status == 405
            assert "Access-Control-Allow-Origin" not in response.headers
    assert not (folder.path / "control.jsonl").exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"nonsense", "can't be read"),
        (b'{"command":"fly"}', "can't be read"),
        (b'{"command":"set","arguments":{"seed":"1"}}', "what was drawn was drawn with it"),
        (b'{"command":"pause","more":1}', "can't be read"),
    ],
)
async def test_a_request_that_is_none_is_refused(tmp_path: Path, body: bytes, said: str) -> None:
    folder = run_folder(tmp_path, ended=False)
    with answering(folder.path):
        async with serving(tmp_path, "secret") as url, aiohttp.ClientSession() as session:
            headers = {TOKEN_HEADER: "secret"}
            sent = session.post(f"{url}/api/control?run=tau-run", data=body, headers=headers)
            async with sent as response:
                assert response.status == 409 and said in (await response.json())["error"]


async def test_the_status_of_a_run_is_told_and_what_may_be_asked(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, ended=False)
    async with serving(tmp_path, "secret") as url, aiohttp.ClientSession() as session:
        address = f"{url}/api/status?run=tau-run"
        async with session.get(address) as response:
            assert not (await response.json())["headline"]
        with answering(folder.path) as run, playing("4/0/1", "4/0", "t"), waiting("judge"):
            run.writer.tick()
            async with session.get(address) as response:
                found = await response.json()
        assert found["alive"] and "pause" in found["commands"] and "lr" in found["keys"]
        tables = {title: rows for title, _, rows in found["tables"]}
        assert tables["waits"][0][:2] == ["judge", "1"]
