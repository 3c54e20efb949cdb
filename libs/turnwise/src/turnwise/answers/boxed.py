"""The final answer of a solution: what stands in its last box.

| text                          | `boxed`        | why                                             |
|-------------------------------|----------------|-------------------------------------------------|
| `\\boxed{1} or \\boxed{2}`    | `2`            | the last one counts                             |
| `\\boxed{x = \\fbox{3}}`      | `3`            | of boxes in each other, the one begun last      |
| `\\framebox[2em]{3}`        | `3`            | other commands for a frame, and their options   |
| `\\boxed{\\{1, 2\\}}`         | `\\{1, 2\\}`   | an escaped brace opens and closes nothing       |
| `\\boxed 12`, `\\boxed{ 12 }` | `12`           | a bare number needs no braces; space goes       |
| `\\boxed{1}, so \\boxed{2`    | None           | the last one is cut off: there is no answer     |
| `\\boxed{}`                   | (empty text)   | the answer is there, and empty                  |

The last box counts since Hendrycks et al. 2021 (MATH), whose answers are given so.
"""

from __future__ import annotations

import re
from collections import deque

_BOX = re.compile(
    r"\\(?:boxed|fbox|framebox|bbox)(?![A-Za-z])(?:\s*\[[^\[\]{}]{0,80}\])*\s*(?P<open>\{)?"
)
_BARE = re.compile(r"[-+]?\d[\d.,/]*(?<=\d)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def boxed(text: str) -> str | None:
    """What the last box holds, without space around it; None without a whole one.

    Raises on no text, and takes time linear in its length.
    """
    found = next(iter(deque(_BOX.finditer(text), maxlen=1)), None)
    if found is None:
        return None
    if found["open"] is None:
        bare = _BARE.match(text, found.end())
        return bare[0] if bare else None
    depth = 1
    for brace in _BRACE.finditer(text, found.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[found.end() : brace.start()].strip()
    return None
