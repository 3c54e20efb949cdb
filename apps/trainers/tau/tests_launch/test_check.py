import json
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from turnwise.launch import machine
from turnwise.launch.check import check
from turnwise.launch.flags import versions
from turnwise.users.config import GEMINI_KEY_ENV, GEMINI_URL

from apps.trainers.tau import checks
from apps.trainers.tau.prepare import prepare
from apps.trainers.tau.tests_launch.folders import write_policy, write_torch_dist

PARSER = """
import sys
def parse_args():
    assert "--custom-generate-function-path" in sys.argv
    assert "--custom-config-path" not in sys.argv
    if "--lr" in sys.argv:
        raise ValueError("lr is not for you")
"""
NODE = {
    "python": "3.12.3",
    "torch": "2.11.0",
    "transformers": "5.2.0",
    "ray": "2.60.0",
    "sglang": versions()["sglang"],
    "slime": "here",
    "megatron.core": "here",
    "flash_attn": "2.8.3",
    "fused_weight_gradient_mlp_cuda": "here",
}
SMI = "#!/bin/sh\nprintf 'NVIDIA H200, 143771, {used}\\nNVIDIA H200, 143771, 4\\n'\n"


class Endpoint(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint; the path's first part says how it behaves."""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        asked = json.loads(self.rfile.read(length))
        key = self.headers["Authorization"] or ""
        behaviour = self.path.split("/")[1]
        status = {"refuse": 401, "busy": 429, "lost": 404}.get(behaviour, 200)
        body: Any = {"choices": [{"message": {"content": f"yes from {asked['model']}"}}]}
        if status != 200:
            body = {"error": f"no to {key}"}
        if behaviour == "odd":
            body = {"answer": "yes"}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a node, made once."""
    folder = tmp_path_factory.mktemp("node")
    write_policy(folder / "hf")
    write_torch_dist(folder / "ref")
    prepare(["--local-dir", str(folder / "data"), "--exclude", "gt-write-fails"])
    utils = folder / "slime/slime/utils"
    utils.mkdir(parents=True)
    (utils / "arguments.py").write_text(PARSER)
    (folder / "slime/train.py").touch()
    (folder / "megatron").mkdir()
    (folder / "bin").mkdir()
    smi = folder / "bin/nvidia-smi"
    smi.write_text(SMI.format(used=4))
    smi.chmod(0o755)
    return folder


@pytest.fixture
def node(made: Path, tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folders with a run's file; everything is as it should be."""
    folder = tmp_path / "node"
    shutil.copytree(made, folder)
    (folder / "run.toml").write_text(
        f"""
[model]
name = "qwen2.5-0.5B"
[tau.user]
base-url = "{endpoint}/v1"
key-env = "USER_KEY"
[ray]
python = "{sys.executable}"
slime-dir = "{folder}/slime"
megatron-dir = "{folder}/megatron"
[cluster]
colocate = true
actor-num-gpus-per-node = 2
[ckpt]
hf-checkpoint = "{folder}/hf"
ref-load = "{folder}/ref"
load = "{folder}/run"
save = "{folder}/run"
[rollout]
num-rollout = 10
rollout-batch-size = 4
rollout-max-response-len = 512
rollout-max-context-len = 16384
prompt-data = "{folder}/data/retail_train_tasks.jsonl"
input-key = "index"
[eval]
eval-interval = 5
eval-prompt-data = ["dev", "{folder}/data/retail_dev_tasks.jsonl"]
"""
    )
    monkeypatch.setenv("USER_KEY", "secret-key")
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(machine, "node_versions", lambda ray: dict(NODE))
    monkeypatch.setattr(
        machine, "_git", lambda path: versions()["slime" if path.name == "slime" else "megatron"]
    )
    return folder


@pytest.fixture
def look(node: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*words: str) -> tuple[int, str]:
        code = check(
            "tau", ["--config", str(node / "run.toml"), "--runs", str(node / "runs"), *words]
        )
        return code, capsys.readouterr().out

    return run


Look = Callable[..., tuple[int, str]]


def failed(table: str) -> list[str]:
    return [line for line in table.splitlines() if "│ FAIL" in line]


def test_a_node_that_has_everything_passes_every_line(look: Look) -> None:
    code, table = look()
    assert failed(table) == []
    assert code == 0
    for found in (
        "slime's own parser accepts them",
        "first run: --load",
        "figures equal config.json",
        "qwen25 reads the template's call back",
        "481 tasks of retail train",
        "20 tasks of retail dev",
        "501 tasks: 1.0 for the ground truth, 0.0",
        "gemini-3.5-flash-lite at http",
        "40 training episodes x 7 replies",
        "2 x NVIDIA H200, 2 wanted",
        "for weights, gradients and optimizer",
        "the run starts a head of its own",
        "slime is at 624b824a898a, as it should",
    ):
        assert found in table, found
    assert "secret-key" not in table


def test_the_table_is_an_exit_code_3_if_one_line_fails_and_names_the_mend(
    look: Look, node: Path
) -> None:
    (node / "data/retail_dev_tasks.jsonl").unlink()
    code, table = look()
    assert code == 3
    (line,) = failed(table)
    assert "data dev" in line and "tau:prepare" in line


def break_row(node: Path) -> None:
    path = node / "data/retail_train_tasks.jsonl"
    lines = path.read_text().splitlines()
    lines[6] = '{"index": 500}'
    path.write_text("\n".join(lines))


def other_task(node: Path) -> None:
    path = node / "data/retail_train_tasks.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[2]["metadata"]["instruction"] = "Be someone else."
    path.write_text("\n".join(json.dumps(row) for row in rows))


def half_a_checkpoint(node: Path) -> None:
    (node / "ref/release/__0_0.distcp").write_bytes(b"")


def other_files(node: Path) -> None:
    (node / "run").mkdir()
    (node / "run/notes").touch()


def no_template(node: Path) -> None:
    (node / "hf/chat_template.jinja").unlink()


def other_calls(node: Path) -> None:
    path = node / "hf/chat_template.jinja"
    text = path.read_text()
    path.write_text(text.replace("<tool_call>", "[CALL]").replace("</tool_call>", "[/CALL]"))


def used_gpu(node: Path) -> None:
    (node / "bin/nvidia-smi").write_text(SMI.format(used=90_000))


def no_driver(node: Path) -> None:
    (node / "bin/nvidia-smi").unlink()


def other_size(node: Path) -> None:
    config = json.loads((node / "hf/config.json").read_text())
    (node / "hf/config.json").write_text(json.dumps({**config, "rope_theta": 10000.0}))


def no_tools(node: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    template += "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    (node / "hf/chat_template.jinja").write_text(template)


def set_key(node: Path, key: str, value: str) -> None:
    """Puts `value` where the file says something else."""
    name = key.rpartition(".")[2]
    file = node / "run.toml"
    file.write_text(re.sub(rf'(?m)^{name} = ".*"$', f'{name} = "{value}"', file.read_text()))


def untied(node: Path) -> None:
    config = json.loads((node / "hf/config.json").read_text())
    (node / "hf/config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


@pytest.mark.parametrize(
    ("damage", "name", "found"),
    [
        (
            break_row,
            "data",
            "tasks.jsonl:7: retail train has tasks 0 to 499, found '500'",
        ),
        (other_task, "data", "the instruction is not that of retail/train/2"),
        (half_a_checkpoint, "reference", "lacks *.distcp: it was not written to the end"),
        (other_files, "start", "is not empty, but has no latest_checkpointed_iteration.txt"),
        (no_template, "template", "chat template"),
        (other_calls, "tool format", "writes no tool calls that are known here"),
        (used_gpu, "GPUs", "1 of 2 are in use, up to 94 GB"),
        (no_driver, "GPUs", "no NVIDIA driver answers here"),
        (other_size, "model", "--rotary-base 1e+06, rope_theta 10000"),
        (untied, "model", "untie-embeddings-and-output-weights False, tie_word_embeddings False"),
    ],
)
def test_damage_is_found_and_named(
    look: Look, node: Path, damage: Callable[[Path], None], name: str, found: str
) -> None:
    damage(node)
    code, table = look()
    assert code == 3
    assert any(f"│ {name} " in line and found in line for line in failed(table)), table


@pytest.mark.parametrize(
    ("words", "name", "found"),
    [
        ("--eps-clip-hig 0.2", "configuration", "did you mean 'eps-clip-high'?"),
        ("--lr 1e-6", "flags", "slime's own parser: ValueError: lr is not for you"),
        ("--tau.user.key-env NO_KEY", "user", "variable NO_KEY is not set"),
        ("--tau.user.strategy human", "user", "nobody sits at the terminals"),
        ("--rollout-max-context-len 600", "tool format", "more than 600 with one turn"),
        ("--actor-num-gpus-per-node 4", "GPUs", "2 here, 4 wanted on each node"),
        ("--input-key prompt", "data", "prompt"),
        ("--ray.address http://127.0.0.1:1", "Ray", "nobody answers at http://127.0.0.1:1"),
        ("--ray.slime-dir /no", "versions", "slime's /no/train.py is not there"),
        ("--hf-checkpoint /no", "policy", "/no is no folder"),
    ],
)
def test_what_does_not_fit_is_found_and_named(
    look: Look, words: str, name: str, found: str
) -> None:
    code, table = look(*words.split())
    assert code == (2 if name == "configuration" else 3)
    assert any(f"│ {name} " in line and found in line for line in failed(table)), table


@pytest.mark.parametrize(
    ("behaviour", "found"),
    [("refuse", "401"), ("busy", "429"), ("lost", "404"), ("odd", "no chat completion")],
)
def test_an_endpoint_that_does_not_answer_well_is_named_and_the_key_is_never_shown(
    look: Look, endpoint: str, behaviour: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ASK_DEADLINE_S", 0.5)
    code, table = look("--tau.user.base-url", f"{endpoint}/{behaviour}")
    assert code == 3
    (line,) = failed(table)
    assert found in line and "look at [tau.user] base-url, model and key-env" in line
    assert "secret-key" not in table


def test_a_taken_port_is_found_before_ray_would_hang_on_it(look: Look) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, table = look("--ray.dashboard-port", str(port))
    assert code == 3
    assert f"taken: dashboard-port {port}" in failed(table)[0]


def test_an_offline_customer_needs_no_key_and_costs_nothing(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USER_KEY")
    code, table = look("--tau.user.strategy", "offline")
    assert code == 0
    assert "the customer costs nothing" in table


def test_text_strategies_need_no_tool_calls_of_the_template(look: Look, node: Path) -> None:
    no_tools(node)
    code, table = look()
    assert code == 3 and "the chat template takes no tools" in table
    words = ("--tau.agent-strategy", "react", "--rollout-max-context-len", "20000")
    code, table = look(*words)
    assert failed(table) == [] and code == 0
    assert "react needs none; the first prompt has" in table


def test_rows_that_few_shot_shows_in_its_prompt_are_found(look: Look, node: Path) -> None:
    code, table = look("--tau.agent-strategy", "few-shot")
    assert code == 3
    (line,) = failed(table)
    assert "is a demonstration of agent-strategy few-shot" in line
    assert "tau:prepare -- --exclude demonstrated" in line
    prepare(["--local-dir", str(node / "data"), "--exclude", "gt-write-fails", "demonstrated"])
    code, table = look("--tau.agent-strategy", "few-shot")
    assert failed(table) == [] and "478 tasks of retail train" in table


def test_a_customer_that_slime_serves_must_be_in_its_file(look: Look, node: Path) -> None:
    engines = node / "engines.yaml"
    group = "server_groups: [{worker_type: regular, num_gpus: 1, overrides: {port: 24000}}]"
    frozen = f"  - name: customer\n    update_weights: false\n    {group}\n"
    engines.write_text(f"sglang:\n  - name: policy\n{frozen}")
    for words in ("--tau.user.base-url", GEMINI_URL), ("--tau.user.key-env", GEMINI_KEY_ENV):
        set_key(node, *words)
    code, table = look("--tau.user.sglang", "customer")
    assert "sglang customer, but slime gets no sglang-config" in failed(table)[0]
    config = ("--sglang-config", str(engines))
    code, table = look("--tau.user.sglang", "costumer", *config)
    assert "has no model 'costumer'; there are policy, customer" in failed(table)[0]
    code, table = look("--tau.user.sglang", "customer", *config)
    assert code == 0 and "slime serves customer" in table and "the customer costs nothing" in table


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--tau.user.model nobody-knows", "give its prices"),
        ("--tau.user.read-price 100 --tau.user.write-price 100", "at these prices"),
        (
            "--tau.user.write-price 100 --tau.user.spend-cap-usd 0.01",
            "the run ends at spend-cap-usd $0.01",
        ),
    ],
)
def test_prices_are_the_files_own_or_asked_for(look: Look, words: str, found: str) -> None:
    code, table = look(*words.split())
    assert found in table
    assert code == (3 if "cap" in words else 0)


def test_tasks_whose_ground_truth_fails_are_noted(look: Look, node: Path) -> None:
    prepare(["--local-dir", str(node / "data")])
    code, table = look()
    assert code == 0
    assert "the ground truth of 19 has a write that fails" in table


def test_a_node_without_the_image_is_named(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "node_versions", lambda ray: {"python": "3.11.7", "ray": "2.60"})
    code, table = look()
    assert code == 3
    assert "lacks torch, transformers, sglang, slime" in failed(table)[0]


def test_another_commit_is_a_note_not_a_failure(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_git", lambda path: "f" * 40)
    code, table = look()
    assert code == 0
    assert "slime is at ffffffffffff, made for 624b824a898a" in table


def hugging_face_reference(node: Path) -> None:
    set_key(node, "ref-load", f"{node}/hf")


def no_tokenizer_config(node: Path) -> None:
    (node / "hf/tokenizer_config.json").unlink()


def older_checkpoint(node: Path) -> None:
    shutil.rmtree(node / "ref/release")
    (node / "ref/release/mp_rank_00").mkdir(parents=True)


@pytest.mark.parametrize("change", [hugging_face_reference, no_tokenizer_config, older_checkpoint])
def test_a_run_that_slime_would_take_fails_no_line(
    look: Look, node: Path, change: Callable[[Path], None]
) -> None:
    change(node)
    code, table = look()
    assert failed(table) == [] and code == 0, table


def test_a_reference_whose_type_slime_does_not_load_is_to_be_converted(
    look: Look, node: Path
) -> None:
    hugging_face_reference(node)
    config = json.loads((node / "hf/config.json").read_text())
    (node / "hf/config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    code, table = look()
    assert code == 3
    assert "slime loads no Hugging Face weights of type gpt2" in failed(table)[0]


@pytest.mark.parametrize("parser", ["import no_such_module", "import time; time.sleep(60)"])
def test_a_parser_that_does_not_answer_has_refused_nothing(
    look: Look, node: Path, monkeypatch: pytest.MonkeyPatch, parser: str
) -> None:
    monkeypatch.setattr("turnwise.launch.check.ASK_TIMEOUT_S", 2.0)
    (node / "slime/slime/utils/arguments.py").write_text(parser)
    code, table = look()
    assert failed(table) == [] and code == 0
    assert "│ skip" in table and "the job asks it when it starts" in table


@pytest.mark.parametrize(
    ("lacking", "words", "found"),
    [
        ("flash_attn", "--attention-backend flash", "attention-backend flash, but flash-attn"),
        ("flash_attn", "--attention-backend auto", None),
        ("fused_weight_gradient_mlp_cuda", "", "fuses the accumulation of gradients by Apex"),
        ("fused_weight_gradient_mlp_cuda", "--no-gradient-accumulation-fusion", None),
        ("slime", "", "lacks slime"),
    ],
)
def test_what_the_flags_need_of_the_node_is_looked_for(
    look: Look, monkeypatch: pytest.MonkeyPatch, lacking: str, words: str, found: str | None
) -> None:
    monkeypatch.setattr(machine, "node_versions", lambda ray: {**NODE, lacking: None})
    code, table = look(*words.split())
    assert code == (3 if found else 0), table
    if found:
        assert any(found in line for line in failed(table))


def test_a_machine_that_is_no_node_of_the_cluster_proves_no_failure(
    look: Look, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.launch.check.is_here", lambda address: False)
    for folder in ("hf", "ref", "data", "slime", "megatron", "bin"):
        shutil.rmtree(node / folder)
    monkeypatch.setattr(machine, "node_versions", lambda ray: {})
    code, table = look()
    assert failed(table) == [] and code == 0, table
    assert "this machine is no node of the cluster" in table


def test_a_spend_cap_below_the_estimate_is_said_and_is_no_failure(look: Look) -> None:
    words = "--tau.user.write-price 100 --tau.user.spend-cap-usd 1"
    code, table = look(*words.split())
    assert failed(table) == [] and code == 0
    assert "the run ends at spend-cap-usd $1" in table


def test_rows_under_another_key_are_read_as_the_run_reads_them(look: Look, node: Path) -> None:
    path = node / "data/retail_train_tasks.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps({"task": r["index"], "more": {}}) for r in rows))
    words = "--input-key task --metadata-key more --eval-interval 5"
    dev = node / "data/retail_dev_tasks.jsonl"
    dev.write_text('{"task": 3, "more": {"task_split": "dev"}}\n')
    code, table = look(*words.split())
    assert failed(table) == [] and code == 0, table
