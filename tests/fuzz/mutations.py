"""What becomes of a file or an option on its way from somebody else."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 10**26, -(10**400), 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "0", "true", "\u0000", "\ud800", "\u202e", "\x1b[2J", "../..", "/",
    "a" * 5000,
    [], {}, [[]], [None], {"": None}, ["x", 1], {"x": {"y": []}}, [-1], [10**26],
)  # fmt: skip
TEXTS: tuple[bytes, ...] = (
    b"", b"null", b"[]", b"{}", b"0", b'"x"', b"NaN", b"{", b"\xff\xfe", b"\xef\xbb\xbf{}",
    b"[" * 100_000, b'{"a":' * 20_000, b"\x00" * 64, b'{"step":' + b"9" * 5000 + b"}",
    b"# a text\n", b'{"a": 1, "a": 2}', b"<html>", b"\n\n\n",
)  # fmt: skip
TEMPLATES: tuple[str, ...] = (
    "{{ 1 / 0 }}", "{{ tools.x.y.z }}", "{% for m in messages %}", "{{ raise_exception('no') }}",
    "{{ messages[7].content }}", "turnwise_probe", "{{ messages }}", "{{ ''.join(messages) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ messages | tojson(indent='x') }}",
    "{{ namespace.__class__ }}", "{% include 'x' %}", "{{ messages[0]['content'] * 10 ** 12 }}",
    "{{ undefined_function() }}", "{{ messages | map('upper') | list }}", "{{ range(10 ** 9) }}",
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}", "{{ '%d' % 'x' }}",
    "{{ messages | sort(attribute='x.y') }}", "{{ strftime_now('%d') }}{{ messages }}{{ tools }}",
    "{% set messages = 3 %}{{ messages[0] }}", "\ufeff", "{{ messages[0].content | int + [] }}",
)  # fmt: skip
WORDS: tuple[str, ...] = (
    "", "x", "0", "-1", "1", "2", "1e9", "nan", "inf", "-inf", "9" * 26, "0.5", "true", "none",
    "[]", "{}", "\u202e", "\x1b[2J", "a" * 300, "/", "/dev/null", "..", "\ud800", "1,2", "--",
    "os:system",
    "math:pi", "json", "0x10", "1_000", "\u0664", "é",
)  # fmt: skip


def mutate_json(rng: Random, value: Any) -> tuple[Any, str]:
    """One change somewhere in a JSON value, and what it is."""
    value = copy.deepcopy(value)
    parent, key = _place(rng, value)
    if parent is None:
        new = rng.choice(VALUES)
        return new, f"the whole = {new!r:.60}"
    how = rng.random()
    if how < 0.15 and isinstance(parent, dict):
        del parent[key]
        return value, f"without {key!r:.60}"
    if how < 0.25:
        parent[key] = [parent[key]]
        return value, f"{key!r:.60} in a list"
    if how < 0.35 and isinstance(parent[key], int) and not isinstance(parent[key], bool):
        parent[key] += rng.choice((-1, 1, 7, 10**6, -(10**6)))
        return value, f"{key!r:.60} = {parent[key]}"
    parent[key] = rng.choice(VALUES)
    return value, f"{key!r:.60} = {parent[key]!r:.60}"


def _place(rng: Random, value: Any) -> tuple[Any, Any]:
    """A container and a key of it: level by level, so that long lists are not all that is met."""
    parent, key = None, None
    inner = value
    while isinstance(inner, dict | list) and inner and rng.random() < (0.6 if key else 0.95):
        parent = inner
        key = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
        inner = parent[key]
    return parent, key


def mutate_file(rng: Random, path: Path) -> str:
    """Changes a file in place; says how."""
    kinds: list[Callable[[Random, Path], str]] = [_whole, _cut, _bytes, _folder, _gone, _link]
    if path.suffix in (".json", ".jsonl"):
        kinds += [_json] * 16
    if path.suffix == ".jinja":
        kinds += [_template] * 16
    return f"{path.name}: {rng.choice(kinds)(rng, path)}"


def _json(rng: Random, path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    at = rng.randrange(len(lines)) if path.suffix == ".jsonl" else 0
    text = lines[at] if path.suffix == ".jsonl" else "\n".join(lines)
    changed, how = mutate_json(rng, json.loads(text))
    text = json.dumps(changed)
    lines[at:] = [text, *lines[at + 1 :]] if path.suffix == ".jsonl" else [text]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return how


def _template(rng: Random, path: Path) -> str:
    text = rng.choice(TEMPLATES)
    if rng.random() < 0.4:
        whole = path.read_text(encoding="utf-8")
        at, end = sorted((rng.randrange(len(whole)), rng.randrange(len(whole))))
        text = whole[:at] + rng.choice(("", text)) + whole[end:]
    path.write_text(text, encoding="utf-8")
    return repr(text[:80])


def _whole(rng: Random, path: Path) -> str:
    content = rng.choice(TEXTS)
    path.write_bytes(content)
    return f"is {content[:20]!r}"


def _cut(rng: Random, path: Path) -> str:
    size = rng.randrange(path.stat().st_size + 1)
    os.truncate(path, size)
    return f"cut to {size} bytes"


def _bytes(rng: Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(content) + 1)
        content[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    path.write_bytes(content)
    return "some bytes changed"


def _folder(rng: Random, path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "a folder"


def _gone(rng: Random, path: Path) -> str:
    path.unlink()
    return "gone"


def _link(rng: Random, path: Path) -> str:
    path.unlink()
    path.symlink_to(rng.choice((path.name, "/dev/null", "nowhere", ".")))
    return f"a link to {os.readlink(path)}"


def copy_tree(source: Path, target: Path) -> Path:
    """A copy to be broken, in place of the one before."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def empty(folder: Path) -> Path:
    """The folder, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
