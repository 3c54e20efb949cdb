"""Experts by rules: deterministic, quick, of different skill, and honest about what they find.

An expert's name is its skill: `answer-3-1-2` answers with grade 3 in maths, 1 in facts and 2 in
words; `search-2` writes queries, `reason-3` works out formulas. Whether an expert of grade g copes
with a task of grade t is drawn with the chance `COPES[t - g]`, by a hash of the expert's name and
what it was asked: the same expert is right or wrong about the same question every time.

| expert | does                                             | where it does not cope        |
|--------|--------------------------------------------------|-------------------------------|
| search | asks for the relation and the town (`QUERIES`)   | leaves the town out           |
| reason | works a formula out, or says that it can't       | a number nearby               |
| answer | reads off what was found where that tells it,    | a number nearby, or what is   |
|        | else answers by heart                            | true of another town          |

Of the truth of a question they know what its text tells, and of towns what is in `world.FACTS`.
Token counts are estimates, four characters each.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from turnwise.models import Answer, FrozenModel, Message
from turnwise.retrieval import Document

from apps.trainers.toolorchestra.laptop.world import (
    FACTS,
    GRADES,
    SUBJECTS,
    Problem,
    read_problem,
    told,
)
from apps.trainers.toolorchestra.prompts import asked_tool, read_data

COPES = {0: 0.97, 1: 0.2, 2: 0.03}
"""The chance to cope with a task so many grades above one's own; below or at it, that of 0."""
QUERIES = {1: 0.5, 2: 0.85, 3: 0.98}
"""The chance of a query with all that counts, by grade."""
UNKNOWN = "I can't work that out."
_CHARACTERS_A_TOKEN = 4


def chance(*names: object) -> float:
    """A number in [0, 1) that hangs on the names alone."""
    digest = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


class RuleExpert:
    """A frozen model by rules; see the module.

    Attributes:
        name: Its skill.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        kind, *grades = name.split("-")
        self._kind = kind
        self._grades = [int(grade) for grade in grades]

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> Answer:
        """See `turnwise.models.FrozenModel`; a seed changes nothing."""
        prompt = str(messages[-1]["content"])
        data = read_data(prompt)
        text = self.reply(asked_tool(prompt), data)
        return Answer(
            text=text,
            read_tokens=len(prompt) // _CHARACTERS_A_TOKEN,
            written_tokens=-(-len(text) // _CHARACTERS_A_TOKEN),
        )

    def reply(self, tool: str, data: dict[str, Any]) -> str:
        """What it says to the question and what was found."""
        problem = read_problem(str(data["question"]))
        if tool == "search":
            return f"<query>{self._query(str(data['question']), problem)}</query>"
        if tool == "enhance_reasoning":
            return self._worked_out(problem)
        return rf"\boxed{{{self._answer(problem, data['found'])}}}"

    def _query(self, question: str, problem: Problem | None) -> str:
        if problem is None or problem.subject != "facts":
            return question
        if chance(self.name, problem.text) < QUERIES[self._grades[0]]:
            return problem.about
        return problem.about.split(" of ")[0]

    def _worked_out(self, problem: Problem | None) -> str:
        if problem is None or problem.subject != "maths":
            return UNKNOWN
        return f"{problem.about} = {self._by_heart(problem, self._grades[0])}"

    def _answer(self, problem: Problem | None, found: Sequence[str]) -> str:
        if problem is None:
            return UNKNOWN
        text = "\n".join(map(str, found))
        if problem.subject == "maths" and f"{problem.about} = " in text:
            return text.rpartition(f"{problem.about} = ")[2].split("\n")[0]
        if problem.subject == "facts" and told(*problem.about.split(" of ")) in text:
            return problem.answer
        return self._by_heart(problem, self._grades[SUBJECTS.index(problem.subject)])

    def _by_heart(self, problem: Problem, grade: int) -> str:
        """The answer where it copes with the question, else a wrong one that looks like it."""
        draw = chance(self.name, problem.text)
        if draw < COPES[max(0, problem.grade - grade)]:
            return problem.answer
        if problem.subject != "facts":
            return str(int(problem.answer) + 1 + int(draw * 300) % 3)
        relation = problem.about.split(" of ")[0]
        values = {value for (other, _), value in FACTS.items() if other == relation}
        others = sorted(values - {problem.answer})
        return others[int(draw * len(others))]


def rule_models() -> dict[str, FrozenModel]:
    """Every expert by its name."""
    grades = [str(grade) for grade in GRADES]
    names = [f"{kind}-{grade}" for kind in ("search", "reason") for grade in grades]
    names += ["-".join(["answer", *skill]) for skill in itertools.product(grades, repeat=3)]
    return {name: RuleExpert(name) for name in names}


def documents() -> list[Document]:
    """A document for each fact, in the order of the towns."""
    return [Document("", told(relation, town)) for relation, town in FACTS]
