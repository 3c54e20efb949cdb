"""Makes the two tables of this package out of facts about slime.

    python -m turnwise.launch.make_tables FLAGS_JSON SLIME_CHECKOUT

`FLAGS_JSON` lists what slime's argument parsers accept: an object with `slime_commit`,
`megatron_commit`, `sglang_version` and `flags`, in which each flag has `source` (the parser that
adds it), `action`, and where present `type`, `nargs` and `choices`. `SLIME_CHECKOUT` is a folder
with slime at that commit; its `scripts/models/*.sh` each set the shell array `MODEL_ARGS`.

`slime_flags.tsv`: a line a flag with name, owner, kind, count and choices, tab separated.
`slime_models.tsv`: a line a model with its name and its arguments, space separated.
Lines that begin with # tell the versions. Nothing but facts is taken over: no help texts.

The image's Megatron-LM is patched and takes a few more switches than the one at that commit. Those
that the models' scripts use are added with the owner `image`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# How an argparse action takes its value. Whatever is not listed stores what it is given.
SWITCHES = {
    "_StoreTrueAction",
    "_StoreFalseAction",
    "BooleanOptionalAction",
    "DeprecatedAction",
    "DeprecatedStoreConstAction",
    "DeprecatedStoreTrueAction",
}
# Converters by the name of the function that argparse is given.
KINDS = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "loads": "json",
    "json_list_type": "json",
    "human_readable_int": "size",
}
# A flag that another one follows, or nothing.
SWITCH = re.compile(r"(?:(?<=^)|(?<= ))(--\S+)(?= --|$)")
SHELL = 'source "$1" && printf "%s\\n" "${MODEL_ARGS[@]}"'


def flag_row(name: str, fact: Mapping[str, Any]) -> str:
    """A line of `slime_flags.tsv`."""
    action = fact["action"]
    kind = "switch" if action in SWITCHES else KINDS.get(fact.get("type", ""), "text")
    if "choices" in fact and kind == "text":
        kind = "choice"
    nargs = fact.get("nargs")
    repeat = "append" if action == "_AppendAction" else ""
    count = " ".join(word for word in ("" if nargs is None else str(nargs), repeat) if word)
    choices = " ".join(str(choice) for choice in fact.get("choices", ()))
    return "\t".join((name, fact["source"], kind, count, choices)).rstrip("\t")


def flag_rows(facts: Mapping[str, Any], models: Iterable[str]) -> Iterator[str]:
    """The lines of `slime_flags.tsv`, versions first; `models` are the other table's."""
    yield f"# slime {facts['slime_commit']}"
    yield f"# megatron {facts['megatron_commit']}"
    yield f"# sglang {facts['sglang_version']}"
    rows = {name: flag_row(name, fact) for name, fact in facts["flags"].items() if name != "--help"}
    for line in models:
        for name in SWITCH.findall(line.partition("\t")[2]):
            rows.setdefault(name, f"{name}\timage\tswitch")
    yield from (rows[name] for name in sorted(rows))


def model_rows(checkout: Path, commit: str) -> Iterator[str]:
    """The lines of `slime_models.tsv`, the version first.

    Raises:
        subprocess.CalledProcessError: a script of the checkout fails.
    """
    yield f"# slime {commit}"
    for script in sorted((checkout / "scripts/models").glob("*.sh")):
        done = subprocess.run(
            ["bash", "-euc", SHELL, "bash", str(script)],
            capture_output=True,
            text=True,
            check=True,
        )
        words = done.stdout.replace(", ", ",").split("\n")
        yield f"{script.stem}\t{' '.join(word for word in words if word)}"


def main(argv: list[str]) -> None:
    """Writes both tables beside this file."""
    parser = argparse.ArgumentParser(prog="python -m turnwise.launch.make_tables")
    parser.add_argument("flags_json", type=Path, help="the flags of slime's argument parsers")
    parser.add_argument("slime_checkout", type=Path, help="a folder with slime at that commit")
    given = parser.parse_args(argv)
    facts = json.loads(given.flags_json.read_text(encoding="utf-8"))
    models = list(model_rows(given.slime_checkout, facts["slime_commit"]))
    for name, lines in (
        ("slime_flags.tsv", flag_rows(facts, models)),
        ("slime_models.tsv", models),
    ):
        text = "\n".join(lines) + "\n"
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
