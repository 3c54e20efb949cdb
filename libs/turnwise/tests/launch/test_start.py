"""What happens around the job, without a cluster."""

import io
import json
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from turnwise.command import PreflightError, RunError
from turnwise.config import ConfigError
from turnwise.launch import bundle, ray_job, run, start, status, stop
from turnwise.launch.__main__ import control
from turnwise.launch.bundle import write_bundle
from turnwise.launch.engines import check_engines
from turnwise.launch.head import free_ports, node_environment, start_head, token_of
from turnwise.launch.plan import make_plan
from turnwise.launch.preset import RayConfig, read_run
from turnwise.launch.processes import Process, identify, is_alive
from turnwise.launch.record import Head, LaunchRecord, hostname, read_record, write_record

from examples.order_desk import OrderDesk

FILE = """
[model]
name = "qwen2.5-0.5B"
[tau]
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
ref-load = "{ref}"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    (tmp_path / "ref").mkdir()
    (tmp_path / "ref/config.json").touch()
    path.write_text(FILE.format(ref=tmp_path / "ref"))
    return path


def record(folder: Path, **changes: object) -> LaunchRecord:
    folder.mkdir(parents=True, exist_ok=True)
    made = LaunchRecord(address="http://127.0.0.1:1", job="job-1", host=hostname())
    made = made.model_copy(update=changes)
    write_record(folder, made)
    return made


@pytest.fixture
def living_head() -> Iterator[Head]:
    """A process in a session of its own that was started as a head is."""
    words = ["--dashboard-host", "127.0.0.1", "--dashboard-port", "1", "--temp-dir", "/nowhere/r"]
    script = "import time; print(1, flush=True); time.sleep(300)"
    child = subprocess.Popen(
        [sys.executable, "-c", script, *words], start_new_session=True, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"1\n"
    process = identify(child.pid)
    assert process is not None
    yield Head(process=process, address="http://127.0.0.1:1", join="h:1", temp_dir="/nowhere")
    child.kill()
    child.wait()


def test_a_dry_run_prints_the_plan_and_writes_nothing(file: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    assert run(file, run_dir=tmp_path / "runs/one", dry_run=True, out=out) == 0
    assert "--rollout-batch-size 4" in out.getvalue()
    assert not (tmp_path / "runs").exists()


def test_a_run_whose_head_lives_is_listed_and_refused(
    file: Path, tmp_path: Path, living_head: Head
) -> None:
    record(tmp_path / "runs/old", head=living_head)
    with pytest.raises(PreflightError) as error:
        run(file, run_dir=tmp_path / "runs/new", out=io.StringIO())
    assert f"runs/old: Ray head, process {living_head.process.pid}" in str(error.value)
    assert "--takeover" in str(error.value)
    assert not (tmp_path / "runs/new").exists()
    assert is_alive(living_head.process)


def test_a_takeover_ends_the_head_that_the_other_run_names(
    tmp_path: Path, living_head: Head
) -> None:
    old = tmp_path / "runs/old"
    record(old, head=living_head, job=None)
    start.make_room(tmp_path / "runs/new", takeover=True, out=io.StringIO())
    assert not is_alive(living_head.process)
    ended = read_record(old)
    assert ended is not None and ended.ended == "GONE" and ended.head is None


def test_a_head_that_is_gone_or_a_run_that_is_over_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(pid=2, started=0, boot="another")
    gone = Head(process=process, address="http://127.0.0.1:1", join="h:1", temp_dir="/nowhere")
    record(tmp_path / "runs/gone", head=gone)
    record(tmp_path / "runs/over", ended="SUCCEEDED")
    (tmp_path / "runs/rubbish").mkdir()
    (tmp_path / "runs/rubbish/launch.json").write_text("{")
    start.make_room(tmp_path / "runs/new", takeover=False, out=io.StringIO())


def test_a_load_folder_that_is_no_checkpoint_stops_before_anything_is_written(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt/notes").touch()
    with pytest.raises(PreflightError, match="has no latest_checkpointed_iteration.txt"):
        run(
            file,
            ["--load", str(tmp_path / "ckpt")],
            run_dir=tmp_path / "runs/one",
            out=io.StringIO(),
        )
    assert not (tmp_path / "runs").exists()


def test_a_reference_that_is_not_there_stops_before_a_head_is_started(
    file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PreflightError, match="--ref-load /gone: does not exist"):
        run(file, ["--ref-load", "/gone"], run_dir=tmp_path / "runs/one", out=io.StringIO())
    assert not (tmp_path / "runs").exists()


def test_models_that_slime_would_serve_on_the_same_ports_are_refused_before_the_start(
    file: Path, tmp_path: Path
) -> None:
    engines = tmp_path / "engines.yaml"
    flags = ["--sglang-config", str(engines)]
    group = "server_groups: [{worker_type: regular, num_gpus: 1, overrides: {OVERRIDES}}]"
    entry = f"  - name: MODEL # port: 1\n    {group}\n"

    def write(**overrides: str) -> None:
        entries = (
            entry.replace("MODEL", name).replace("OVERRIDES", said)
            for name, said in overrides.items()
        )
        engines.write_text("sglang:\n" + "".join(entries))

    write(policy="", base="nccl_port: 24001", judge="port: 24000, nccl_port: 24002")
    with pytest.raises(PreflightError, match="give policy and base the same ports") as error:
        run(file, flags, run_dir=tmp_path / "runs/a", out=io.StringIO())
    assert "dist_init_addr: '127.0.0.1:24002'" in str(error.value)
    assert not (tmp_path / "runs/a").exists()
    write(policy="", base="port: 24010", judge='"port": 24000')
    check_engines(make_plan(read_run(file, flags), run_dir=tmp_path))


def test_a_cluster_that_does_not_answer_is_a_failed_run_that_can_be_started_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str, token: str | None) -> object:
        raise PreflightError(f"no Ray cluster answers at {address}")

    monkeypatch.setattr(ray_job, "connect", refuse)
    run_dir = tmp_path / "runs/one"
    with pytest.raises(PreflightError, match="no Ray cluster answers at http://127.0.0.1:1"):
        run(file, ["--ray.address", "http://127.0.0.1:1"], run_dir=run_dir, out=io.StringIO())
    kept = read_record(run_dir)
    assert kept is not None and kept.ended == "FAILED"
    start.make_room(run_dir, takeover=False, out=io.StringIO())
    plan = json.loads((run_dir / "plan.json").read_text())
    assert plan["arguments"][:2] == ["--actor-num-gpus-per-node", "1"]
    assert json.loads((run_dir / "config.json").read_text())["model"]["name"] == "qwen2.5-0.5B"


def test_status_and_stop_of_a_folder_without_a_run_name_it(tmp_path: Path) -> None:
    for command in (status, stop):
        with pytest.raises(ConfigError, match="holds no run of the cluster"):
            command(tmp_path, out=io.StringIO())


def test_the_command_line_asks_after_a_run_and_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs/one"
    record(folder, ended="SUCCEEDED")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert control(["status", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "job job-1: SUCCEEDED" in said and 'last metrics: {"step": 2}' in said
    assert control(["stop", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: SUCCEEDED\n"
    with pytest.raises(SystemExit):
        control(["kill", str(folder)])


def test_a_run_of_another_machine_is_not_stopped_from_here(
    tmp_path: Path, living_head: Head
) -> None:
    record(tmp_path / "one", head=living_head, host="elsewhere")
    with pytest.raises(ConfigError, match="started on elsewhere, which has its head"):
        stop(tmp_path / "one", out=io.StringIO())
    assert is_alive(living_head.process)


@pytest.mark.parametrize(
    "changes",
    [
        {"temp_dir": "FOLDER"},
        {"address": "http://127.0.0.1:2"},
        {"address": "http://127.0.0.1:2", "temp_dir": "FOLDER"},
    ],
)
def test_a_record_that_names_another_folder_or_process_ends_and_deletes_nothing(
    tmp_path: Path, living_head: Head, changes: dict[str, str]
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "token").write_text("x")
    changed = {key: value.replace("FOLDER", str(precious)) for key, value in changes.items()}
    record(tmp_path / "one", job=None, head=living_head.model_copy(update=changed))
    with pytest.raises(ConfigError, match="is no Ray head at .* nothing was ended or deleted"):
        stop(tmp_path / "one", out=io.StringIO())
    assert is_alive(living_head.process) and (precious / "token").exists()


def test_a_token_goes_to_no_address_but_its_heads(tmp_path: Path, living_head: Head) -> None:
    elsewhere = living_head.model_copy(update={"address": "http://example.org:1"})
    assert token_of(elsewhere) is None
    with pytest.raises(ConfigError, match="/nowhere/token: No such file"):
        token_of(living_head)


@pytest.mark.parametrize(
    "text",
    [
        '{"adress": "x"}',
        "[]",
        "[" * 9999,
        "\xff",
        '{"address": 3}',
        '{"address": "file:///etc"}',
        '{"address": "http://h", "head": {"process": {"pid": -1, "started": 0, "boot": "x"}}}',
        '{"address": "http://h", "head": []}',
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "launch.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="launch.json: is no record of a launch"):
        status(tmp_path)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="x") as folder:
        yield Path(folder)


def test_a_taken_port_a_long_folder_and_a_missing_python_are_refused(
    tmp_path: Path, short: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"\[ray\] port {port} is taken"):
            start_head(RayConfig(port=port), num_gpus=0, log=tmp_path / "log")
    long = tmp_path / ("x" * 40)
    with pytest.raises(ConfigError, match="too long for Ray's sockets"):
        start_head(RayConfig(temp_dir=long), num_gpus=0, log=tmp_path / "log")
    assert not list(long.iterdir())
    with pytest.raises(ConfigError, match=r"\[ray\] python /no/python: No such file"):
        start_head(RayConfig(python="/no/python", temp_dir=short), num_gpus=0, log=tmp_path / "log")
    assert not list(short.iterdir())


def test_a_head_that_ends_at_once_is_a_failed_run_with_its_last_words(
    tmp_path: Path, short: Path
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nraise SystemExit('no room for the object store')\n")
    script.chmod(0o755)
    with pytest.raises(RunError, match="ended with status 1: no room for the object store"):
        start_head(
            RayConfig(python=str(script), temp_dir=short),
            num_gpus=0,
            log=tmp_path / "logs/head.log",
        )
    assert not list(short.iterdir())


def test_the_nodes_python_inherits_no_path_to_our_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "ours")
    monkeypatch.setenv("PEX_PATH", "ours")
    monkeypatch.setenv("GEMINI_API_KEY", "kept")
    made = node_environment({"A": "1"})
    assert "PYTHONPATH" not in made and "PEX_PATH" not in made
    assert made["GEMINI_API_KEY"] == "kept" and made["A"] == "1"


@pytest.mark.parametrize(
    ("said", "mend"),
    [
        ("No module named 'ray'", "run this with the Python of a node"),
        ("cannot import name 'a' from 'pex.vendor._vendored.attrs.attr'", "set PEX_ROOT to"),
    ],
)
def test_a_ray_that_cannot_be_imported_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, mend: str
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").write_text(f"raise ImportError({said!r})\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PreflightError, match="ray is not importable") as refused:
        ray_job.connect("http://127.0.0.1:9")
    assert mend in str(refused.value)


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(6)
    assert len(set(ports)) == 6
    for port in ports:
        with socket.socket() as one:
            one.bind(("", port))


def test_the_archive_holds_our_packages_compiled_and_what_the_image_lacks(tmp_path: Path) -> None:
    path = tmp_path / "code.zip"
    size = write_bundle(path, {"turnwise.json": "{}"}, "tau")
    assert size == path.stat().st_size < 20_000_000
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    assert {"turnwise/launch/slime_flags.tsv", "turnwise.json", "tau_trait/__init__.py"} <= names
    assert {"sandbox/child/seccomp.py", "sandbox/pool.py"} <= names
    assert "tau_trait-0.1.1.dist-info/METADATA" in names
    assert any(name.startswith("tokendelta/") and name.endswith(".so") for name in names)
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]
    assert not any(name.startswith(("torch/", "numpy/", "ray/")) for name in names)


def archived(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


class Lacking(OrderDesk):
    distributions = ("not-a-distribution",)


def test_an_archive_without_a_package_of_the_method_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "find_method", lambda name: Lacking)
    with pytest.raises(PreflightError, match="not-a-distribution is not installed here"):
        write_bundle(tmp_path / "code.zip", {}, "tests.lacking:Lacking")
    assert not (tmp_path / "code.zip").exists()


def test_a_method_of_an_app_is_sent_with_what_it_needs(tmp_path: Path) -> None:
    write_bundle(tmp_path / "code.zip", {}, "agentflow")
    tops = {name.split("/")[0] for name in archived(tmp_path / "code.zip")}
    assert {"bm25s", "math_verify", "latex2sympy2_extended"} <= tops
    # omegaconf, which slime imports, breaks beside another antlr4 than the image's.
    assert not any(top.startswith(("antlr4", "sympy")) for top in tops)
    # Their parser's own process has none where the node's omegaconf brings none.
    names = archived(tmp_path / "code.zip")
    assert "turnwise_apart/antlr4/__init__.py" in names
    assert any(name.startswith("turnwise_apart/antlr4_python3_runtime-") for name in names)


def test_a_method_of_ones_own_is_sent_with_the_files_beside_it_and_no_others_packages(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "code.zip", {}, "examples.order_desk:OrderDesk")
    names = archived(tmp_path / "code.zip")
    assert {"examples/order_desk.py", "examples/order_desk.toml"} <= names
    assert "apps/trainers/tau/policy/config.json" in names
    assert not any(name.startswith(("bm25s", "tau_trait")) for name in names)


def test_a_method_in_one_file_is_sent_as_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from examples.order_desk import OrderDesk\nclass Mine(OrderDesk):\n    pass\n"
    (tmp_path / "mine_in_a_file.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    write_bundle(tmp_path / "code.zip", {}, "mine_in_a_file:Mine")
    assert "mine_in_a_file.py" in archived(tmp_path / "code.zip")


def test_the_same_code_gives_the_same_archive(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.zip", {"x": "1"}, "examples.order_desk:OrderDesk")
    write_bundle(tmp_path / "b.zip", {"x": "1"}, "examples.order_desk:OrderDesk")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_package_that_was_not_compiled_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "tokendelta"
    source.mkdir()
    (source / "__init__.py").touch()
    monkeypatch.setattr(bundle, "PACKAGES", ("tokendelta",))
    monkeypatch.setattr(bundle, "_package_files", lambda name: [(f"{name}/x.py", source)])
    with pytest.raises(PreflightError, match="tokendelta has no compiled extension"):
        write_bundle(tmp_path / "code.zip", {}, "tau")
    assert not (tmp_path / "code.zip").exists()
