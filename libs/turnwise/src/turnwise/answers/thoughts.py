"""What a text says after its thoughts. An answer is looked for there alone.

| text                                 | `final_text` | why                                    |
|--------------------------------------|--------------|----------------------------------------|
| `<think>a</think>b`                  | `b`          | a thought is not said                  |
| `a</think>b`                         | `b`          | the template of the prompt opened it   |
| `<think>a`                           | nothing      | an unclosed thought is no final answer |
| `b<think>a`                          | `b`          | what was said before it stands         |
| `<think>a<think>b</think>c</think>d` | `d`          | marks in a thought                     |
"""

from __future__ import annotations

import re

_MARK = re.compile(
    r"<(?P<slash>/?)(?:seed:)?(?:think|thinking|thought|reasoning)>"
    r"|\[(?P<square>/?)THINK\]|\u25c1(?P<triangle>/?)think\u25b7",
    re.IGNORECASE,
)


def final_text(text: str) -> str:
    """`text` without its thoughts, marks included; see the module."""
    said: list[str] = []
    at = 0
    thinking = False
    for mark in _MARK.finditer(text):
        closes = any(mark.groups())
        if not thinking:
            said.append(text[at : mark.start()])
        if closes and not thinking:
            said.clear()
        thinking = not closes
        at = mark.end()
    return "".join(said if thinking else [*said, text[at:]])
