import json

import miniatures
import pytest
from tokendelta.command import main


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(miniatures.DROPS_THINKING, encoding="utf-8")
    return path


def test_the_command_prints_profile_problems_and_tokens(template, tmp_path, capsys) -> None:
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    arguments = ["--tokenizer", str(template), "--html", str(page), "--json", str(data)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "stop tokens" in out and "<|im_end|>" in out
    assert "is never sampled" in out and "It was sent." in out
    html = page.read_text(encoding="utf-8")
    assert 'class="trained"' in html and "&lt;|im_end|&gt;" in html and "<script" not in html
    assert json.loads(data.read_text(encoding="utf-8"))["stop_style"] == "terminator"


@pytest.mark.parametrize("name", miniatures.MINIATURES)
def test_every_miniature_can_be_audited(name, tmp_path, capsys) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(miniatures.MINIATURES[name].template, encoding="utf-8")
    assert main(["--tokenizer", str(path)]) == 0
    assert "sample 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tokenizer", "nowhere.jinja"], "neither a folder nor a template file"),
        (["--tokenizer", "{template}", "--template-kwargs", "[1]"], "expected a JSON object"),
        (["--tokenizer", "{template}", "--template-kwargs", "{"], "is no JSON"),
        (["--tokenizer", "{broken}"], "the chat template raised"),
        (["--tokenizer", "{folder}"], "holds no tokenizer"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(arguments, said, template, tmp_path, capsys):
    broken = tmp_path / "broken.jinja"
    broken.write_text("{{ raise_exception('Never.') }}", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    paths = {"{template}": template, "{broken}": broken, "{folder}": tmp_path / "empty"}
    assert main([str(paths.get(argument, argument)) for argument in arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
