"""What some data sets put around a question to ask for one form of answer.

    asked_form("... on its own line after \\"Answer:\\".")     # "a last line `Answer: ...`"

A question that asks for another form than the one who asks it grades a model by whom it obeys.
"""

from __future__ import annotations

import re

_FORMS = (
    (
        re.compile(
            r"(?:last|final) line[^.\n]{0,60} of the (?:form|format)\W{0,4}\s*\**Answer\s*:"
            r"|own line after \W?Answer\s*:|Answer\s*:\s*\\?\$\\?(?:ANSWER|Answer)",
            re.IGNORECASE,
        ),
        "a last line `Answer: ...`",
    ),
    (
        re.compile(r"after\W{0,4}####|####\s*(?:<|\[|\{|answer|your|the)", re.IGNORECASE),
        "`#### ...`",
    ),
    (re.compile(r"<answer>", re.IGNORECASE), "`<answer>...</answer>`"),
    (
        re.compile(r"(?:answer|output|respond|reply)[^.\n]{0,60}\b(?:in|as)(?: an?)? JSON\b", re.I),
        "JSON",
    ),
)
_BOX = re.compile(r"\\+(?:boxed|fbox)(?![A-Za-z])")
_DAPO_HEAD = re.compile(r"\ASolve the following math problem step by step\.[^\n]*\n\n")
_DAPO_TAIL = re.compile(r"\n\nRemember to put your answer on its own line[^\n]*\Z")


def asked_form(question: str) -> str | None:
    """The form of answer that a question asks for, other than a box; None if it asks for none."""
    if _BOX.search(question):
        return None
    return next((name for pattern, name in _FORMS if pattern.search(question)), None)


def without_frame(question: str) -> str:
    """Without the frame of DAPO-Math-17K, which asks for a last line `Answer: ...`."""
    return _DAPO_TAIL.sub("", _DAPO_HEAD.sub("", question.strip())).strip()
