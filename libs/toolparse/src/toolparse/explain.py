"""Shows a text with its calls, errors and repairs in colour.

./pants run libs/toolparse:explain -- --format qwen25 FILE
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolparse.driver.api import MODES, parse
from toolparse.driver.tools import ToolSet
from toolparse.grammars.detect import detect
from toolparse.grammars.table import formats
from toolparse.result.model import Parsed

# Which style a character takes; a later entry is painted over an earlier one.
STYLES: Final = {
    "content": "default",
    "reasoning": "italic dim",
    "markup": "dim",
    "ok": "green",
    "bad": "red",
    "name": "bold cyan",
    "value": "bold green",
    "fault": "bold white on red",
    "stop": "dim strike",
}


# A model's escape sequences are shown, not obeyed.
_VISIBLE: Final = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    code: 0xFFFD for code in range(0x7F, 0xA0)
}


def painted(parsed: Parsed) -> list[tuple[int, int, str]]:
    """(start, end, style) in characters, in painting order."""
    spans: list[tuple[int, int, str]] = []
    source = parsed.source
    spans += [(*span, "reasoning") for span in parsed.reasoning_spans]
    spans += [(*source.span(span), "markup") for span in parsed.markup_byte_spans]
    for call in parsed.attempts:
        good = call.error is None
        spans.append((*call.span, "ok" if good else "bad"))
        if call.name_span:
            spans.append((*call.name_span, "name"))
        if good:
            spans += [(*span, "value") for span in (call.value_spans or {}).values()]
    for error in parsed.errors:
        at = source.char(error.offset)
        if error.span[0] < at < error.span[1]:
            spans.append((at, at + 1, "fault"))
    if parsed.stop_span:
        spans.append((*parsed.stop_span, "stop"))
    return spans


def report(parsed: Parsed, console: Any) -> None:
    """The painted text, then one line per attempt, error and flag."""
    from rich.text import Text

    text = Text(parsed.source.text.translate(_VISIBLE))
    for start, end, style in painted(parsed):
        text.stylize(STYLES[style], start, end)
    console.print(text, soft_wrap=True)
    console.rule()
    for call in parsed.attempts:
        start, end = call.span
        head = f"[{start}:{end}] {call.name or '(no name)'}"
        if call.error is None:
            repairs = f"  repaired: {', '.join(call.repairs)}" if call.repairs else ""
            line = f"{head} {call.arguments_json}{repairs}".translate(_VISIBLE)
            console.print(Text(line, "green"))
        else:
            line = f"{head} {call.status}: {call.error.message}".translate(_VISIBLE)
            console.print(Text(line, "red"))
    for flag in parsed.flags:
        console.print(
            Text(f"[{flag.span[0]}:{flag.span[1]}] {flag.kind}: {flag.message}", "yellow")
        )
    if not parsed.attempts:
        console.print("no call found")


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="explain", description=__doc__.split("\n")[0])
    parser.add_argument("file", help="the text that a model wrote; - reads standard input")
    parser.add_argument("--format", help=f"one of: {', '.join(formats())}")
    parser.add_argument("--template", help="a chat template file that names the format")
    parser.add_argument("--tools", help="a JSON file with the tool declarations")
    parser.add_argument("--mode", default="strict", choices=MODES)
    parser.add_argument("--thinking", action="store_true", help="the prompt opened the thinking")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


class Wrong(Exception):
    """Wrong usage or input, in one sentence."""


def text_of(path: str, flag: str) -> str:
    """The text of a file; Wrong names the flag, the file and what is wrong with it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Wrong(f"{flag} {path}: {error.strerror or error}; give a file") from None
    except ValueError as error:
        raise Wrong(f"{flag} {path}: {error}; give a text file in UTF-8") from None


def declared(path: str) -> ToolSet:
    """The tools of a JSON file."""
    want = "give a JSON list of tool declarations, as in a chat request"
    text = text_of(path, "--tools")
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"--tools {path}: no JSON that can be read ({error}); {want}") from None
    if not isinstance(tools, list):
        raise Wrong(f"--tools {path}: found {type(tools).__name__}, not a list; {want}")
    try:
        return ToolSet(tools)
    except ValueError as error:
        raise Wrong(f"--tools {path}: {error}") from None


def written(path: str) -> bytes:
    """What the model wrote."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Wrong(f"{path}: {reason}; give a file, or - for standard input") from None


def chosen_format(args: argparse.Namespace) -> str:
    """The format of the command line; Wrong where none is given or known."""
    if args.format:
        return str(args.format)
    if not args.template:
        raise Wrong("give --format NAME, or --template FILE to have it detected")
    found = detect(text_of(args.template, "--template"))
    if found is None:
        raise Wrong(
            f"--template {args.template}: it writes no tool calls that are known; give --format"
        )
    return found


def show(parsed: Parsed, as_json: bool) -> None:
    """Prints the result."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if as_json:
        print(json.dumps(parsed.to_dict(), ensure_ascii=False, indent=2))
    else:
        from rich.console import Console

        class Piped(Console):
            def on_broken_pipe(self) -> None:
                """rich itself would end the process with exit code 1."""
                raise BrokenPipeError

        report(parsed, Piped(highlight=False))
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command: 0; 2 for wrong usage or input; 4 where the output cannot be written."""
    args = options().parse_args(argv)
    try:
        raw = written(args.file)
        tools = declared(args.tools) if args.tools else None
        parsed = parse(raw, chosen_format(args), tools, args.mode, thinking=args.thinking)
    except (Wrong, ValueError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    try:
        show(parsed, args.json)
    except BrokenPipeError:
        # Who reads has seen enough; what is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"explain: cannot write the result: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
