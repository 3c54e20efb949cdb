"""What the offline user has to say: a task's instruction taken apart.

The instruction speaks to the person who plays the user ("You want to return the watch. If the
agent asks, ..."). Its sentences are sorted into facts about the user, requests, which are
turned into the first person, and directions for acting, which are never spoken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FACTS = ("user id", "name", "email", "zip code", "date of birth")

_ABBREVIATION = re.compile(r"\b(?:i\.e|e\.g|a\.m|p\.m|Mr|Mrs|Ms|Dr|vs|etc)\.$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]['\")]?\s+(?=[A-Z\"'#(])|\n+|;\s+(?=(?:Return|Cancel|For) #?\w)")
# An introduction up to the clause in which the user's wish begins.
_INTRODUCTION = re.compile(
    r"^(?:Your|You|You're|Hi)\b.*?(?:,|;|\band\b|\.)\s*(?:and\s+)?(?=you(?:'d|'re|r)?\b)",
    re.IGNORECASE,
)
_SCENE = re.compile(
    r"^(?:if|when|unless|once|after \d)\b.*\b(?:agent|asks?|asked|says?|tells?|told|not possible|"
    r"doesn't work|refuses?)\b"
    r"|\bif (?:and only if )?(?:the agent|asked|you are asked)\b"
    r"|^(?:be|sound|act|always|make sure|make everything|try to paraphrase|try to be|pretend|"
    r"under no circumstances|your memory|in the middle|use both|halfway|provide all)\b"
    r"|\buntil the agent\b|\bmeant to test\b",
    re.IGNORECASE,
)
_MANNER = re.compile(
    r"\b(?:do not|don't|never|not want to|reluctant to|not prefer to) (?:mention|reveal|say|"
    r"provide|speak|offer|share|tell|give|be transferred)\b|\bagent asks\b|\bnot say anything\b",
    re.IGNORECASE,
)
_PERSONA = re.compile(
    r"^(?:you are|you're|you like to|you speak|you want to be|you tend|you always|you use|"
    r"you randomly)\b",
    re.IGNORECASE,
)
_ACT = re.compile(
    r"\b(?:cancel|return|exchange|refund|modify|change|book|upgrade|downgrade|add|remove)\b",
    re.IGNORECASE,
)
_WISH = re.compile(
    _ACT.pattern
    + r"|\b(?:wants?|need|wish|wonder|would like|like to know|order|ordered|received|fine with|"
    r"ok with|willing|prefer|paypal|card|payment|certificate|flight|flying|fly|bags?|"
    r"address)\b|#\w",
    re.IGNORECASE,
)
_SPEECH = (
    (re.compile(r"^(?:mention|say|tell (?:the )?(?:agent|them))(?: that)? ", re.IGNORECASE), ""),
    (re.compile(r"^insist that ", re.IGNORECASE), ""),
    (re.compile(r"^insist ", re.IGNORECASE), "I insist "),
    (re.compile(r"^(?:first,? )?try to ", re.IGNORECASE), "I want to "),
    (re.compile(r"^(?:also |finally,? )?ask (?=the agent)", re.IGNORECASE), "I want to ask "),
)
_OBJECT = re.compile(
    r"\b(to|for|with|of|from|at|by|gives?|tells?|offers?|asks?|lets?|charges?|helps?|refunds?|pays?|"
    r"caused?|compensate)"
    r" you\b(?!\s+(?:want|are|were|have|had|need|would|can|will|do|did|booked|ordered|received|"
    r"also))",
    re.IGNORECASE,
)
_FIRST_PERSON = (
    (re.compile(r"\byou're\b|\byou are\b", re.IGNORECASE), "I am"),
    (re.compile(r"\byou were\b", re.IGNORECASE), "I was"),
    (re.compile(r"\byourself\b", re.IGNORECASE), "myself"),
    (re.compile(r"\byours\b", re.IGNORECASE), "mine"),
    (re.compile(r"\byour\b", re.IGNORECASE), "my"),
    (re.compile(r"\byou\b", re.IGNORECASE), "I"),
    (re.compile(r"\bthe (?:service |customer service )?agent's\b", re.IGNORECASE), "your"),
    (re.compile(r"\bthe (?:service |customer service )?agent\b", re.IGNORECASE), "you"),
)
_ORDER_ID = re.compile(r"#W?\d{7}\b|\bW?\d{7}\b")
_EMAIL = re.compile(r"\b[\w.]+@[\w.]+\w")
_REASON = re.compile(r"no longer needed|ordered by mistake|(?<=because )[^.;]+", re.IGNORECASE)
_ZIP = re.compile(r"\b\d{5}\b")


@dataclass(frozen=True, slots=True)
class Script:
    """What the user knows and wants.

    Attributes:
        facts: Values by the names in `FACTS`: what the instruction says about the user.
        requests: First-person sentences in the instruction's order, at least one.
        order_ids: Order, reservation and confirmation numbers that occur in the instruction.
        reason: Why the user wants it, if the instruction says so.
    """

    facts: Mapping[str, str]
    requests: tuple[str, ...]
    order_ids: tuple[str, ...]
    reason: str | None


def split_sentences(text: str) -> list[str]:
    """Sentences without surrounding space; abbreviations do not end one."""
    sentences: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(text):
        piece = text[start : end.end()].strip()
        if _ABBREVIATION.search(piece):
            continue
        sentences.append(piece)
        start = end.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence.strip(" .;")]


def first_person(sentence: str) -> str:
    """ "You want your money" as "I want my money"; the agent becomes "you"."""
    text = sentence
    for pattern, replacement in _SPEECH:
        text = pattern.sub(replacement, text)
    text = _OBJECT.sub(r"\1 me", text)
    for pattern, replacement in _FIRST_PERSON:
        text = pattern.sub(replacement, text)
    text = text.strip(" ;")
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _facts(user_id: str, instruction: str, profile: Mapping[str, Any]) -> dict[str, str]:
    """Values of the profile that the instruction mentions, so nothing else can be given away.

    An e-mail address or a zip code of the instruction counts even if it is not the profile's.
    """
    name = profile["name"]
    full_name = f"{name['first_name']} {name['last_name']}"
    known = {
        "user id": user_id,
        "name": full_name,
        "email": profile["email"],
        "zip code": profile["address"]["zip"],
        "date of birth": profile.get("dob", ""),
    }
    lowered = instruction.lower()
    facts = {fact: value for fact, value in known.items() if value and value.lower() in lowered}
    for fact, pattern in (("email", _EMAIL), ("zip code", _ZIP)):
        if fact not in facts and (found := pattern.search(instruction)):
            facts[fact] = found.group()
    return facts


def _order_ids(instruction: str, profile: Mapping[str, Any]) -> tuple[str, ...]:
    own = [*profile.get("orders", ()), *profile.get("reservations", ())]
    mentioned = [number for number in own if re.search(rf"{re.escape(number)}\b", instruction)]
    written = _ORDER_ID.findall(instruction)
    return tuple(dict.fromkeys([*written, *mentioned]))


def _is_direction(sentence: str) -> bool:
    """Whether the sentence tells how to act the user, not what the user wants."""
    if _SCENE.search(sentence):
        return True
    plain = re.sub(r"\([^)]*\)", "", sentence)
    return _MANNER.search(sentence) is not None and not _ACT.search(plain)


def _without_introduction(sentence: str, facts: Mapping[str, str]) -> str:
    """Cuts what tells who the user is; "" if nothing else is said."""
    lowered = sentence.lower()
    if not any(value.lower() in lowered for value in facts.values()):
        return sentence
    rest = sentence
    while any(value.lower() in rest.lower() for value in facts.values()):
        introduction = _INTRODUCTION.match(rest)
        if introduction is None:
            return rest if _WISH.search(rest) and not _PERSONA.match(rest) else ""
        rest = rest[introduction.end() :]
    return rest


def write_script(user_id: str, instruction: str, profile: Mapping[str, Any]) -> Script:
    """Takes an instruction apart.

    Args:
        user_id: The user's key in the users table.
        instruction: The task's instruction.
        profile: The user's record there; only used to recognise facts in the instruction.
    """
    facts = _facts(user_id, instruction, profile)
    requests = []
    for sentence in split_sentences(instruction):
        rest = _without_introduction(sentence, facts)
        if not rest or _is_direction(rest):
            continue
        if _PERSONA.match(rest) and not _WISH.search(rest):
            continue
        requests.append(first_person(rest))
    reason = _REASON.search(instruction)
    return Script(
        facts=facts,
        requests=tuple(requests) or (first_person(instruction),),
        order_ids=_order_ids(instruction, profile),
        reason=first_person(reason.group()) if reason else None,
    )
