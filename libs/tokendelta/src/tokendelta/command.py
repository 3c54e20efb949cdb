"""The audit as a command: what a chat template does, and what naive accounting would get wrong.

    audit --tokenizer FOLDER_OR_TEMPLATE [--template-kwargs JSON] [--html FILE] [--json FILE]

A folder is loaded as a Hugging Face tokenizer. A template file is audited with a stand-in
vocabulary, in which every word is a token; its counts are then of words, not of the model's tokens.
Exit codes: 0, or 2 for a usage error, a template that renders nothing, or a file that is not there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tokendelta.command_view import html_page, terminal_text
from tokendelta.compat import get_token_delta
from tokendelta.errors import TokenDeltaError
from tokendelta.probes import TOOLS, Messages, call, tool, user
from tokendelta.profile import Profile
from tokendelta.sample import SampleSet
from tokendelta.session import Session


class UsageError(Exception):
    """A message for the person at the keyboard."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    from rich.console import Console

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        options = _options(arguments)
        tokenizer = _load(Path(options.tokenizer))
        kwargs = _template_kwargs(options.template_kwargs)
        profile = Profile.from_tokenizer(tokenizer, tools=TOOLS, template_kwargs=kwargs)
        report = profile.report()
        problems = naive_problems(tokenizer)
        result, prompt = sample_conversation(profile)
        console.print(str(report), markup=False)
        console.print("\nwith text encoded again (slime's get_token_delta):")
        for line in problems or ["nothing was found to go wrong"]:
            console.print(f"  {line}", markup=False)
        console.print(f"\na sample conversation, {prompt} prompt tokens; trained tokens are green")
        console.print(terminal_text(tokenizer, result))
        if options.html:
            page = html_page(Path(options.tokenizer).name, report, problems, tokenizer, result)
            Path(options.html).write_text(page, encoding="utf-8")
        if options.json:
            text = json.dumps({**report.data, "naive": problems}, ensure_ascii=False, indent=1)
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    except (UsageError, TokenDeltaError, OSError) as error:
        errors.print(f"audit: {error}", markup=False)
        return 2
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="audit", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tokenizer", required=True, help="a folder of a Hugging Face tokenizer, or a .jinja file"
    )
    parser.add_argument(
        "--template-kwargs", default="{}", help='as JSON, such as {"enable_thinking": false}'
    )
    parser.add_argument("--html", help="write the same as a page to this file")
    parser.add_argument("--json", help="write the findings as data to this file")
    return parser.parse_args(arguments)


def _template_kwargs(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--template-kwargs is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"--template-kwargs is {type(value).__name__}, expected a JSON object")
    return value


def _load(path: Path) -> Any:
    if path.is_dir():
        try:
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise UsageError("a tokenizer folder needs the package transformers") from error
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
        except Exception as error:
            raise UsageError(f"{path} holds no tokenizer that loads: {error}") from error
        if not tokenizer.chat_template:
            raise UsageError(f"the tokenizer in {path} has no chat template")
        return tokenizer
    if not path.is_file():
        raise UsageError(f"{path} is neither a folder nor a template file")
    from tokendelta.command_tokenizer import TemplateTokenizer

    return TemplateTokenizer(path.read_text(encoding="utf-8"))


def _conversations() -> list[tuple[str, Messages]]:
    thought = "<think>\nThey want to know.\n</think>\n\n"
    asked = {"role": "assistant", "content": "I look it up."}
    return [
        ("plain", [user("Hello."), _said("Good day."), user("Where is it?"), _said("On its way.")]),
        ("one tool", [user("Where is it?"), asked, tool("sent"), _said("It was sent.")]),
        ("two tool results", [user("Both?"), asked, tool("sent"), tool("lost", 1), _said("So.")]),
        (
            "thinking",
            [user("Hello."), _said(f"{thought}Good day."), user("And?"), _said(f"{thought}Yes.")],
        ),
    ]


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def naive_problems(tokenizer: Any) -> list[str]:
    """What goes wrong when turns are recovered from rendered text, one line a finding."""
    problems = []
    for name, messages in _conversations():
        for count in range(2, len(messages) + 1):
            try:
                ids, mask = get_token_delta(tokenizer, messages[:count])
            except Exception as error:
                problems.append(f"{name}, message {count}: {type(error).__name__}: {error}")
                break
            text = str(messages[count - 1]["content"])
            rest = _behind(tokenizer, ids, mask, text)
            if rest.strip() != rest and rest:
                problems.append(
                    f"{name}, message {count}: {rest!r} behind the text is trained, and whitespace"
                    " behind a stop token is never sampled"
                )
    return problems


def _behind(tokenizer: Any, ids: list[int], mask: list[int], text: str) -> str:
    """The trained text behind an assistant's own."""
    trained = [i for i, flag in zip(ids, mask, strict=True) if flag]
    decoded = str(tokenizer.decode(trained, skip_special_tokens=False)) if trained else ""
    at = decoded.rfind(text.split("\n")[-1])
    return decoded[at + len(text.split("\n")[-1]) :] if at >= 0 else ""


def sample_conversation(profile: Profile) -> tuple[SampleSet, int]:
    """A conversation of three turns with a tool, and the length of its first prompt."""
    session = Session(profile, on_rewrite="fork")
    session.start([user("Where is order 7?")])
    prompt = len(session.prompt)
    findings = profile.findings
    stop = findings.stops[0] if findings.stops else ""
    shown = {
        "role": "assistant",
        "content": "",
        "tool_calls": [call("find_order", "7", "call00001")],
    }
    try:
        _say(session, profile, f"{findings.tool_call_open}find_order 7{stop}", shown)
        session.append_env([tool("sent", call_id="call00001")])
    except TokenDeltaError:
        # No tools in this template: the conversation goes on with the person.
        session.append_env([user("Please.")])
    thought = "I know.".join((findings.reasoning_open, findings.reasoning_close))
    _say(session, profile, f"{thought if findings.reasoning_close else ''}It was sent.{stop}", None)
    session.append_env([user("Thanks.")])
    _say(session, profile, f"You are welcome.{stop}", None)
    return session.samples(), prompt


def _say(session: Session, profile: Profile, text: str, message: Any) -> None:
    ids = profile.encoder.encode_inside(text)
    session.append_sampled(ids, [0.0] * len(ids), message=message)


if __name__ == "__main__":
    # As other filters: where nobody reads on, it ends.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
