"""The golden table of profiles: one row for each template of the shared data.

Written by `python profile_table.py`; the columns are explained in its first line.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from tokendelta.findings import Findings

PATH = Path(__file__).parent / "profiles.tsv"
_COLUMNS = (
    "template",
    "stop style",
    "stops",
    "last stop",
    "separator",
    "generation prompt",
    "header",
    "reasoning",
    "tool call",
    "tool group",
    "facts",
    "ways to user, tool, mixed by turn kind",
    "effects on user, tool, mixed by turn kind, without and with earlier reasoning",
)


def row_of(name: str, findings: Findings) -> str:
    """The findings as one line. Effects: append, Rewrite, Mixed, ? unknown."""
    letters = {"append": "a", "rewrite": "R", "mixed": "M", "unknown": "?"}
    facts = [
        fact
        for fact, holds in (
            ("tools", findings.takes_tools),
            ("calls", findings.shows_calls),
            ("system", findings.takes_system),
            ("dated", findings.dated),
        )
        if holds
    ]
    ways = []
    for rule in findings.rules.values():
        way = rule.way[0]
        if rule.literals is not None and rule.literals.transform != "verbatim":
            way += f"({rule.literals.transform})"
        ways.append(way + "t" * rule.needs_tools + "c" * rule.uses_calls)
    effects = "".join(letters[change.effect] for change in findings.changes.values())
    cells = [
        name,
        findings.stop_style,
        " ".join(findings.stops),
        findings.last_stop,
        json.dumps(findings.separator, ensure_ascii=False),
        json.dumps(findings.generation_prompt, ensure_ascii=False),
        findings.header,
        json.dumps([findings.reasoning_open, findings.reasoning_close], ensure_ascii=False),
        json.dumps(findings.tool_call_open, ensure_ascii=False),
        findings.tool_group,
        " ".join(facts),
        " ".join("".join(ways[i : i + 3]) for i in range(0, len(ways), 3)),
        " ".join(effects[i : i + 6] for i in range(0, len(effects), 6)),
    ]
    return "\t".join(cells)


@lru_cache(maxsize=1)
def read_table() -> dict[str, str]:
    lines = PATH.read_text(encoding="utf-8").splitlines()[1:]
    return {line.split("\t", 1)[0]: line for line in lines}


def main() -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    from driving import TEMPLATES, load_template
    from tokendelta import Profile

    rows = [row_of(n, Profile.from_tokenizer(load_template(n)).findings) for n in TEMPLATES]
    PATH.write_text("\n".join(["\t".join(_COLUMNS), *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
