"""Jobs on a real Ray cluster on the CPU: submitted, followed, stopped, taken over."""

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "slime_standin"))
sys.path.append(str(Path(__file__).parent.parent))

import pytest
from slime_standin.desk import Desk, customer, make_tokenizer, save_tokenizer
from turnwise.command import PreflightError, RunError, StopRun
from turnwise.launch import ray_job, run, status, stop
from turnwise.launch.head import TOKEN, answers, start_head, stop_head, token_of
from turnwise.launch.preset import RayConfig
from turnwise.launch.processes import family, is_alive
from turnwise.launch.record import Head, read_record
from turnwise.testing.servers import (
    Call,
    FakeChat,
    FakeSGLang,
    Misbehaviour,
    Turn,
    body,
    disconnect,
    edit,
    hang,
)
from turnwise.testing.servers import status as status_of

LEDGER = ("started", "finished", "stopped", "lost", "cancelled", "in_flight")

HERE = Path(__file__).parent
STANDIN = HERE.parent / "slime_standin"
# In place of slime's train.py where only the job's life counts.
TRAIN = """
import sys, time
end = sys.argv[sys.argv.index("--num-rollout") + 1]
if end == "2":
    raise SystemExit("out of memory")
if end == "3":
    time.sleep(300)
if end == "4":
    import ray

    @ray.remote(num_gpus=1)
    class Engine:
        def start(self):
            return "waiting"

    ray.init()
    engine = Engine.remote()
    print(ray.get(engine.start.remote()), flush=True)
    time.sleep(300)
if end == "5":
    raise FileNotFoundError("ref_load /no does not exist")
if end == "6":
    import json

    with open("turnwise.json") as stream:
        folder = json.load(stream)["turnwise_run_dir"]
    numbers = {"train/train_rollout_logprob_abs_diff": 0.7}
    with open(folder + "/metrics.jsonl", "a") as stream:
        print(json.dumps({"step": 1, "kind": "slime", "numbers": numbers}), file=stream)
    time.sleep(300)
if end == "7":
    import json

    with open("turnwise.json") as stream:
        folder = json.load(stream)["turnwise_run_dir"]
    with open(folder + "/metrics.jsonl", "a") as stream:
        for step, score in ((0, 0.0), (7, 1.0)):
            scores = {f"task {n}": [score * (n < 7), n % 2] for n in range(8)}
            count = {"started": 16, "finished": 16, "stopped": {}, "lost": {}, "cancelled": 0}
            row = {"step": step, "kind": "eval", "dataset": "desk", "reward_mean": score,
                   "reward_stderr": 0.1, "coverage": 1.0, "ledger": count, "endings": {},
                   "metrics": {}, "baselines": {}, "services": {"user": "rules"}, "eval_s": 1.0,
                   "scores": scores}
            print(json.dumps(row), file=stream)
"""
CONFIG = """
[model]
name = "qwen2.5-0.5B"
[tau]
[ray]
python = "{python}"
slime-dir = "{slime}"
megatron-dir = "/megatron"
{address}
[cluster]
actor-num-gpus-per-node = 1
colocate = true
[rollout]
prompt-data = "/data/rows.jsonl"
num-rollout = 1
rollout-batch-size = 4
rollout-max-context-len = 4096
[ckpt]
hf-checkpoint = "/model"
ref-load = "{slime}"
"""


@pytest.fixture(scope="module")
def slime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slime")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    log = tmp_path_factory.mktemp("cluster") / "head.log"
    head = start_head(RayConfig(python=sys.executable), num_gpus=2, log=log)
    # As a user of somebody else's cluster has it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(Path(head.temp_dir) / TOKEN))
        yield head
    stop_head(head, log.parent)


def config(folder: Path, slime: Path, head: Head | None = None) -> Path:
    path = folder / "run.toml"
    address = f'address = "{head.address}"' if head else ""
    path.write_text(CONFIG.format(python=sys.executable, slime=slime, address=address))
    return path


def wait_for(run_dir: Path, text: str, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while text not in job_log(run_dir):
        assert time.monotonic() < until, job_log(run_dir)
        time.sleep(0.1)


def job_log(run_dir: Path) -> str:
    return "".join(path.read_text() for path in (run_dir / "logs").glob("turnwise-*.log"))


@contextmanager
def loop_thread() -> Iterator[Callable[[Coroutine[Any, Any, Any]], None]]:
    """Runs coroutines to their end in an event loop of another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Faults:
    """Misbehaviours by the number of a request.

    Attributes:
        met: How often each was sent.
    """

    def __init__(self, *rules: tuple[str, int, int, Callable[[], Misbehaviour]]) -> None:
        """Each rule is a name, a divisor, a remainder and what is sent."""
        self._rules = rules
        self.met: Counter[str] = Counter()

    def __call__(self, call: Call) -> Misbehaviour | None:
        for name, divisor, remainder, make in self._rules:
            if call.number % divisor == remainder:
                self.met[name] += 1
                return make()
        return None


def _unfinished(answer: dict[str, Any]) -> None:
    meta = answer["meta_info"]
    meta["finish_reason"] = {"type": "abort"}
    meta["output_token_logprobs"] = meta["output_token_logprobs"][:2]
    meta["completion_tokens"] = 2


def _thinking(answer: dict[str, Any]) -> None:
    message = answer["choices"][0]["message"]
    message["content"] = f"<think>then ###STOP###</think> {message['content']}"


def says(content: str) -> Misbehaviour:
    message = {"role": "assistant", "content": content}
    return body(json.dumps({"choices": [{"message": message}]}).encode())


ENGINE_FAULTS = (
    ("refused", 41, 5, lambda: status_of(400)),
    ("aborted", 37, 6, lambda: edit(_unfinished)),
    ("busy", 11, 3, lambda: status_of(503, Retry_After="0")),
    ("gone", 17, 4, disconnect),
)
USER_FAULTS = (
    ("out of scope", 23, 7, lambda: says("I can't. ###OUT-OF-SCOPE###")),
    ("429 with a time", 13, 1, lambda: status_of(429, Retry_After="0")),
    ("429", 17, 2, lambda: status_of(429)),
    ("late", 29, 3, lambda: hang(30)),
    ("empty", 31, 4, lambda: says("")),
    ("malformed", 37, 5, lambda: body(b"<html>", "text/html")),
    ("marker in a thought", 41, 6, lambda: edit(_thinking)),
)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[FakeSGLang, FakeChat, Path]]:
    """An engine and a customer that misbehave, in another thread, and the policy's folder."""
    tokenizer = make_tokenizer()
    desk = Desk(tokenizer, asks=1, wrong=lambda number: number % 3 == 2)
    server, user = FakeSGLang(desk.answer, delay_s=0.02), FakeChat(customer, delay_s=0.02)
    server.misbehave, user.misbehave = Faults(*ENGINE_FAULTS), Faults(*USER_FAULTS)
    with loop_thread() as wait:
        wait(server.__aenter__())
        wait(user.__aenter__())
        yield server, user, Path(save_tokenizer(tmp_path / "hf"))
        wait(server.stop())
        wait(user.stop())


def test_a_worker_with_the_runtime_environment_alone_plays_64_episodes_and_the_ledger_balances(
    tmp_path: Path, cluster: Head, servers: tuple[FakeSGLang, FakeChat, Path]
) -> None:
    server, user, policy = servers
    node = tmp_path / "node"
    shutil.copytree(STANDIN, node / "slime_standin")
    shutil.copytree(STANDIN / "slime", node / "slime")
    shutil.copy(HERE / "ray_standin.py", node / "train.py")
    run_dir = tmp_path / "runs" / "one"
    report = tmp_path / "report.json"
    sampled: dict[str, list[tuple[int, float]]] = {}

    def keep(call: Call, turn: Turn) -> dict[str, Any]:
        pairs = zip(turn.ids, turn.logprobs, strict=True)
        sampled.setdefault(call.session, []).extend(pairs)
        return {}

    server.more_meta = keep
    code = run(
        config(tmp_path, node, cluster),
        [
            *("--ray.megatron-dir", str(node)),
            *("--ray.env-vars.ROUTER_PORT", str(server.port)),
            *("--ray.env-vars.REPORT", str(report)),
            *("--hf-checkpoint", str(policy)),
            *("--rollout-batch-size", "8", "--over-sampling-batch-size", "8"),
            *("--n-samples-per-prompt", "8", "--global-batch-size", "64"),
            *("--dynamic-sampling-filter-path", "slime_standin.contract.keep_all"),
            *("--tau.user.base-url", f"{user.url}/v1", "--tau.user.key-env", ""),
            *("--tau.user.attempt-s", "5", "--tau.user.backoff-s", "0.01"),
            *("--tau.prompt", "compact", "--tau.max-turns", "8"),
        ],
        run_dir=run_dir,
        out=io.StringIO(),
    )
    assert code == 0
    found = json.loads(report.read_text())
    assert "working_dir_files" in found["folder"]
    assert all(file.startswith(found["folder"] + "/") for file in found["files"])
    assert (found["hook"], found["own"]) == ("turnwise.slime.hooks", "1")
    assert not any(Path(entry).is_relative_to(os.getcwd()) for entry in found["path"] if entry)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["train", "slime"]
    numbers = {
        key.removeprefix("rollout/turnwise/"): value for key, value in rows[1]["numbers"].items()
    }
    assert numbers["started"] == rows[0]["ledger"]["started"]
    assert (run_dir / "episodes.jsonl").stat().st_size and (run_dir / "report.html").is_file()
    check_samples(found["samples"], numbers, {tuple(turns) for turns in sampled.values()})
    check_faults(numbers, server, user)


def check_samples(
    samples: list[dict[str, Any]], numbers: dict[str, float], answered: set[Any]
) -> None:
    """What slime got: who failed has no reward, and who played has what was sampled."""
    assert len(samples) == 64
    unscored = [sample for sample in samples if sample["reward"] is None]
    assert 0 < len(unscored) < 32
    assert all(one["status"] == "aborted" and one["trained"] == 0 for one in unscored)
    assert {one["reward"] for one in samples} == {None, 0.0, 1.0}
    played = [one for one in samples if one["reward"] is not None]
    assert all(tuple(map(tuple, one["sampled"])) in answered for one in played)
    ledger = {name: numbers[name] for name in LEDGER}
    assert ledger["started"] == 64 and ledger["in_flight"] == 0
    assert ledger["lost"] + ledger["cancelled"] == len(unscored)
    assert ledger["started"] == sum(ledger.values()) - ledger["started"]
    assert ledger["lost"] == numbers["lost/engine"] + numbers["lost/user"]


def check_faults(numbers: dict[str, float], server: FakeSGLang, user: FakeChat) -> None:
    """Each fault that was sent is counted once, and nothing else is."""
    assert isinstance(server.misbehave, Faults) and isinstance(user.misbehave, Faults)
    engine, customers = server.misbehave.met, user.misbehave.met
    assert all(engine[name] for name, *_ in ENGINE_FAULTS), engine
    assert all(customers[name] for name, *_ in USER_FAULTS), customers
    assert numbers["lost/engine"] == engine["refused"]
    assert numbers["cancelled"] == engine["aborted"]
    assert numbers["lost/user"] == customers["out of scope"]
    busy = customers["429"] + customers["429 with a time"]
    assert numbers["user/rejections"] == busy
    assert numbers["user/retries"] == busy + customers["late"]
    assert numbers["user/empty_replies"] == customers["empty"] + customers["malformed"]
    unanswered = ("late", "malformed", "empty")
    answered = len(user.calls) - busy - sum(customers[name] for name in unanswered)
    assert numbers["user/requests"] == answered


def test_a_job_that_fails_is_a_failed_run_with_rays_word_and_the_log(
    tmp_path: Path, slime: Path, cluster: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.delenv("NO_PROXY", raising=False)
    run_dir = tmp_path / "runs" / "one"
    with pytest.raises(RunError, match="FAILED: .*exit code 1"):
        run(
            config(tmp_path, slime, cluster),
            ["--num-rollout", "2"],
            run_dir=run_dir,
            out=io.StringIO(),
        )
    assert "out of memory" in job_log(run_dir)
    assert status(run_dir, out=io.StringIO()) == 4
    assert is_alive(cluster.process)


def test_a_job_that_dies_of_an_exception_is_a_failed_run_that_says_which(
    tmp_path: Path, slime: Path, cluster: Head
) -> None:
    with pytest.raises(RunError, match="FAILED: FileNotFoundError: ref_load /no does not exist"):
        run(
            config(tmp_path, slime, cluster),
            ["--num-rollout", "5"],
            run_dir=tmp_path / "runs" / "one",
            out=io.StringIO(),
        )


def test_a_job_whose_rows_go_wrong_is_ended_with_the_cause(
    tmp_path: Path, slime: Path, cluster: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_job, "LOOK_S", 0.2)
    run_dir = tmp_path / "runs" / "one"
    out = io.StringIO()
    with pytest.raises(StopRun, match="was stopped: .* differ by 0.7 .*no checkpoint was saved"):
        run(config(tmp_path, slime, cluster), ["--num-rollout", "6"], run_dir=run_dir, out=out)
    record = read_record(run_dir)
    assert record is not None and record.ended == "STOPPED"
    assert ray_job.status(cluster.address, str(record.job)) == "STOPPED"
    assert "stopping the job: slime row of step 1: engine and trainer differ" in out.getvalue()
    assert (run_dir / "report.html").is_file()


def test_a_run_ends_with_the_verdict_of_its_evaluations(
    tmp_path: Path, slime: Path, cluster: Head
) -> None:
    run_dir, out = tmp_path / "runs" / "one", io.StringIO()
    assert (
        run(config(tmp_path, slime, cluster), ["--num-rollout", "7"], run_dir=run_dir, out=out) == 0
    )
    said = out.getvalue()
    assert "It learned: desk score 25.0 ± 9.4 % -> " in said and "+43.8 ± 6.2 points" in said, said
    assert "User: rules" in said and json.loads((run_dir / "summary.json").read_text())["learned"]
    assert f"report {run_dir}/report.html" in said


def test_a_head_of_our_own_has_a_token_of_its_own_whatever_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("a" * 64)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 64)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    head = start_head(RayConfig(python=sys.executable), num_gpus=0, log=tmp_path / "head.log")
    try:
        token = token_of(head)
        assert token is not None and token not in ("a" * 64, "b" * 64)
        assert answers(head.address, token)
        assert not answers(head.address, "a" * 64) and not answers(head.address, "b" * 64)
        assert Path(head.temp_dir).stat().st_mode & 0o077 == 0
        assert ray_job.status(head.address, "nobody", token) is None
    finally:
        stop_head(head, tmp_path / "kept")
    assert list((tmp_path / "kept").glob("session_*/dashboard.log"))
    assert not Path(head.temp_dir).exists()


def test_a_detached_run_is_refused_a_second_time_and_taken_over_without_harm_to_others(
    tmp_path: Path, slime: Path, cluster: Head
) -> None:
    other, mine = tmp_path / "others" / "other", tmp_path / "runs" / "one"
    path = config(tmp_path, slime, cluster)
    out = io.StringIO()
    wait = ["--num-rollout", "3"]
    run(path, wait, run_dir=other, detach=True, out=out)
    run(path, wait, run_dir=mine, detach=True, out=out)
    assert status(mine, out=out) == 0
    again = mine.with_name("two")
    with pytest.raises(PreflightError, match=r"still lives:\n  .*/runs/one: job turnwise-one-"):
        run(path, run_dir=again, out=out)
    assert not again.exists()
    assert run(path, run_dir=again, takeover=True, out=out) == 0
    record = read_record(mine)
    assert record is not None and record.ended == "STOPPED"
    assert status(other, out=out) == 0
    stop(other, out=out)
    assert "Running entrypoint" in job_log(other)
    assert "STOPPED" in out.getvalue().splitlines()[-1]
    assert is_alive(cluster.process)


def test_one_interrupt_ends_the_job_and_a_head_of_its_own_with_every_process(
    tmp_path: Path, slime: Path
) -> None:
    run_dir = tmp_path / "runs" / "one"
    path = config(tmp_path, slime)
    program = (
        "import sys; from pathlib import Path\n"
        "from turnwise.command import run_command\n"
        "from turnwise.launch import run\n"
        "sys.exit(run_command(lambda argv: run(Path(argv[0]), ['--num-rollout', '4'], "
        "run_dir=Path(argv[1])), sys.argv[1:]))\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(path), str(run_dir)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(run_dir, "waiting")
        record = read_record(run_dir)
        assert record is not None and record.head is not None
        members = family(record.head.process)
        assert len(members) > 5
        launcher.send_signal(signal.SIGINT)
        said, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == 130, said
        assert "stopping the job" in said and said.rstrip().endswith("interrupted")
        assert not [one for one in members if is_alive(one)]
        assert not Path(record.head.temp_dir).exists()
        ended = read_record(run_dir)
        assert ended is not None and ended.ended == "STOPPED" and ended.head is None
        assert list((run_dir / "logs/ray").glob("session_*/raylet.out"))
    finally:
        if launcher.poll() is None:
            launcher.kill()
            stop(run_dir)
