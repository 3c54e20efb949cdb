"""Tokens coloured by mask: for the terminal, and as a page that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from tokendelta.findings import Report
from tokendelta.sample import SampleSet

if TYPE_CHECKING:
    from rich.text import Text

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem }}
pre {{ white-space: pre-wrap; font-size: 13px }}
.tokens span {{ padding: 1px 0; border-radius: 2px; box-shadow: inset -1px 0 #0003 }}
.trained {{ background: #bfe8c4; color: #123 }}
.context {{ background: #e9e9ee; color: #334 }}
</style></head><body><h1>{title}</h1><pre>{report}</pre>
<h2>With text encoded again</h2><ul>{problems}</ul>
<h2>A sample conversation</h2><p><span class="trained">trained</span>
<span class="context">context</span>; a title shows the span and the turn.</p>
{samples}</body></html>
"""


def _tokens(tokenizer: Any, result: SampleSet) -> list[list[tuple[str, str, int, bool]]]:
    """(text, span, turn, trained) of every token of every sample."""
    rows = []
    for sample in result.samples:
        row: list[tuple[str, str, int, bool]] = []
        for span in sample.spans:
            for token in sample.ids[span.start : span.stop].tolist():
                text = str(tokenizer.decode([token], skip_special_tokens=False))
                row.append((text, span.kind, span.turn, span.trained))
        rows.append(row)
    return rows


def terminal_text(tokenizer: Any, result: SampleSet) -> Text:
    """The samples one below the other, trained tokens green, neighbours told apart by shade."""
    from rich.text import Text

    text = Text()
    for number, row in enumerate(_tokens(tokenizer, result)):
        text.append(f"sample {number}, weight {result.samples[number].weight:.3f}\n", "bold")
        for place, (token, _, _, trained) in enumerate(row):
            shade = ("green", "bold green") if trained else ("bright_black", "white")
            text.append(token, shade[place % 2])
        text.append("\n")
    return text


def html_page(
    title: str, report: Report, problems: list[str], tokenizer: Any, result: SampleSet
) -> str:
    """The report, the problems and the tokens as one page."""
    samples = []
    for number, row in enumerate(_tokens(tokenizer, result)):
        spans = "".join(
            f'<span class="{"trained" if trained else "context"}" title="{kind}, turn {turn}">'
            f"{escape(token)}</span>"
            for token, kind, turn, trained in row
        )
        weight = result.samples[number].weight
        samples.append(
            f'<h3>Sample {number}, weight {weight:.3f}</h3><pre class="tokens">{spans}</pre>'
        )
    return _PAGE.format(
        title=escape(title),
        report=escape(str(report)),
        problems="".join(f"<li>{escape(line)}</li>" for line in problems) or "<li>nothing</li>",
        samples="\n".join(samples),
    )
