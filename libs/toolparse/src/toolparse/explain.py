"""Shows a text with its calls, errors and repairs in colour.

./pants run libs/toolparse:explain -- --format qwen25 FILE
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolparse.driver.api import MODES, parse
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

    text = Text(parsed.source.text)
    for start, end, style in painted(parsed):
        text.stylize(STYLES[style], start, end)
    console.print(text, soft_wrap=True)
    console.rule()
    for call in parsed.attempts:
        start, end = call.span
        head = f"[{start}:{end}] {call.name or '(no name)'}"
        if call.error is None:
            repairs = f"  repaired: {', '.join(call.repairs)}" if call.repairs else ""
            console.print(Text(f"{head} {call.arguments_json}{repairs}", "green"))
        else:
            console.print(Text(f"{head} {call.status}: {call.error.message}", "red"))
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


def chosen_format(args: argparse.Namespace) -> str:
    """The format of the command line; ValueError where none is given or known."""
    if args.format:
        return str(args.format)
    if not args.template:
        raise ValueError("give --format NAME, or --template FILE to have it detected")
    found = detect(Path(args.template).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{args.template} writes no tool calls that are known; give --format")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command: 0 where every attempt is executable, 2 for wrong usage or input."""
    args = options().parse_args(argv)
    try:
        raw = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
        tools = json.loads(Path(args.tools).read_text(encoding="utf-8")) if args.tools else None
        parsed = parse(raw, chosen_format(args), tools, args.mode, thinking=args.thinking)
    except (OSError, ValueError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(parsed.to_dict(), ensure_ascii=False, indent=2))
        return 0
    from rich.console import Console

    report(parsed, Console(highlight=False))
    return 0


if __name__ == "__main__":
    # As other filters: where nobody reads on, it ends.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
