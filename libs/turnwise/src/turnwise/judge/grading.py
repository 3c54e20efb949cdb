"""Whether an answer is right: by rule where a rule can tell, else by a judge model.

| the answer                                        | verdict                  | by      |
|---------------------------------------------------|--------------------------|---------|
| empty but for thoughts, or its last box is        | wrong, nobody is asked   | `empty` |
| its last box equals the truth, or is different    | right, wrong             | `rule`  |
| one short line without a box that equals it       | right                    | `rule`  |
| else (no box, words, a formula too costly)        | the judge model's        | `judge` |
| the same without a judge model                    | wrong                    | `rule`  |
| a comparison that was late or broke               | the judge model's        | `judge` |
| that without a judge model, no verifier starts    | unknown                  | `rule`  |
| the judge model fails or gives no verdict         | unknown                  | `judge` |

1. Only the answer is graded, and of it what stands outside `<think>`: an unclosed thought holds no
   answer. There is no way to hand in a transcript in its place.
2. The judge model is greedy, and asked once for the same question, answer and truth, so that equal
   answers of a group get equal scores.
3. Unknown is no score: `Verdict.score` raises at `Boundary.JUDGE`, and the episode is lost.
4. A share of what the rule decided can be shown to the judge model too. That changes no verdict; it
   measures how often the two disagree.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from turnwise.answers import Check, MathVerifier, boxed, final_text
from turnwise.answers.notation import without_phrase
from turnwise.config import Config, ConfigError
from turnwise.episode import Boundary, BoundaryError
from turnwise.judge.asking import ask_verdict, check_greedy, identity
from turnwise.judge.cache import VerdictCache
from turnwise.judge.prompt import VERSION, build_messages
from turnwise.models import FrozenModel

MAX_LINE = 100
"""Characters of an answer without a box that may be a formula as it stands."""
_EXCERPT = 200
_INFRASTRUCTURE = ("late", "broken")


class JudgeConfig(Config):
    """How answers are graded."""

    audit: float = Field(default=0.0, ge=0, le=1)
    """Share of the answers that the rule decided which the judge model is shown as well."""
    cache: Path | None = None
    """JSONL file of the judge model's verdicts, which are used again; none keeps them in memory."""
    workers: int = Field(default=2, ge=1)
    """Processes at most that compare formulas; each starts when the others are busy."""
    cpu_s: float = Field(default=5.0, gt=0)
    """Processor seconds for one comparison of formulas."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about an answer.

    Attributes:
        correct: None is unknown.
        by: Who decided, or failed to.
        prediction: What stands in the answer's last box; None without one.
        rule: What the rule said; None if it could not tell.
        judged: What the judge model said; None if it was not asked or failed.
        error: Why it is unknown, else "".
    """

    correct: bool | None
    by: Literal["empty", "rule", "judge"]
    prediction: str | None = None
    rule: bool | None = None
    judged: bool | None = None
    error: str = ""

    def score(self) -> float:
        """1.0 for a right answer, 0.0 for a wrong one.

        Raises:
            BoundaryError: at `Boundary.JUDGE`, it is unknown.
        """
        if self.correct is None:
            raise BoundaryError(Boundary.JUDGE, self.error)
        return float(self.correct)

    def row(self) -> dict[str, Any]:
        """For the trace."""
        return {
            "correct": self.correct,
            "by": self.by,
            "prediction": self.prediction,
            "rule": self.rule,
            "judged": self.judged,
            "error": self.error,
        }


class Judge:
    """See the module. Shared by all episodes.

    Attributes:
        config: As given.
        counts: Answers by `empty`, `rule`, `judge` and `unknown`, and what became of audits.
        verifier: Compares formulas.
        cache: Verdicts of the judge model.
    """

    def __init__(
        self,
        config: JudgeConfig | None = None,
        *,
        model: FrozenModel | None = None,
        verifier: MathVerifier | None = None,
    ) -> None:
        """
        Args:
            config: How answers are graded.
            model: The judge model; without it the rule decides alone.
            verifier: Shared with others, and then closed by them.

        Raises:
            ConfigError: the model draws, an audit has no model, or the cache is another kind of
                file.
        """
        self.config = config or JudgeConfig()
        if self.config.audit and model is None:
            raise ConfigError("audit: needs a judge model")
        if model is not None:
            check_greedy(model)
        self.counts: Counter[str] = Counter()
        self.verifier = verifier or MathVerifier(
            workers=self.config.workers, cpu_s=self.config.cpu_s
        )
        self.cache = VerdictCache(self.config.cache)
        self._owns_verifier = verifier is None
        self._model = model
        self._identity = "" if model is None else identity(model)

    async def grade(self, question: str, answer: str, truth: str) -> Verdict:
        """The verdict on `answer`; raises on no answer and on no failure of the judge.

        Args:
            question: As it was put to the policy.
            answer: The final answer, with its reasoning or without. Never a transcript.
            truth: What is right: a formula or words, without a box.

        Raises:
            ValueError: there is no truth, so that nothing can be right.
            RunError: the cache's file can't be written.
        """
        if not truth.strip():
            raise ValueError(f"the truth of {question!r:.80} is empty")
        verdict = await self._grade(question, answer, truth)
        self.counts["unknown" if verdict.correct is None else verdict.by] += 1
        return verdict

    async def check(self) -> None:
        """Starts the verifier and has it compare something; the model is checked with the others.

        Raises:
            BoundaryError: at `Boundary.JUDGE`, it can't.
        """
        found = await self.verifier.check(r"\frac{1}{2}", "0.5")
        if found.equal is not True:
            raise BoundaryError(Boundary.JUDGE, f"math-verify does not compare: {found}")

    def metrics(self) -> dict[str, float]:
        """`judge/...`, over all answers so far.

        `graded`, and of these the numbers `empty`, `rule`, `judge` and `unknown`; `judged_share`
        (decided by the judge model); `cache_hits`; `costly`, `late` and `broken` comparisons. With
        audits `audited`, `audit_failures`, and of those audited the shares `disagreement`,
        `rule_too_strict` (the model says right) and `rule_too_lax` (it says wrong).
        """
        counts = self.counts
        decided = ("empty", "rule", "judge", "unknown")
        graded = sum(counts[name] for name in decided)
        row = {"graded": graded, **{name: counts[name] for name in decided}}
        row["cache_hits"] = self.cache.hits
        row |= {name: self.verifier.checks[name] for name in ("costly", "late", "broken")}
        found = {name: float(value) for name, value in row.items()}
        found["judged_share"] = counts["judge"] / graded if graded else 0.0
        if self.config.audit:
            audited = counts["audited"]
            found["audited"] = float(audited)
            found["audit_failures"] = float(counts["audit_failures"])
            if audited:
                strict, lax = counts["too_strict"], counts["too_lax"]
                found["disagreement"] = (strict + lax) / audited
                found["rule_too_strict"] = strict / audited
                found["rule_too_lax"] = lax / audited
        return {f"judge/{name}": value for name, value in found.items()}

    async def close(self) -> None:
        """Ends the processes of its own verifier."""
        if self._owns_verifier:
            await self.verifier.close()

    async def _grade(self, question: str, answer: str, truth: str) -> Verdict:
        answer = final_text(answer)
        prediction = boxed(answer)
        if not answer.strip() or prediction == "":
            return Verdict(False, "empty", prediction)
        try:
            check = await self._rule(answer, prediction, truth)
        except BoundaryError as error:
            return Verdict(None, "rule", prediction, error=str(error))
        if check.equal is not None:
            judged = await self._audit(question, answer, truth, check.equal)
            return Verdict(check.equal, "rule", prediction, check.equal, judged)
        if self._model is not None:
            try:
                judged = await self._ask(self._model, question, answer, truth)
            except BoundaryError as error:
                return Verdict(None, "judge", prediction, error=str(error))
            return Verdict(judged, "judge", prediction, None, judged)
        if check.why in _INFRASTRUCTURE:
            return Verdict(None, "rule", prediction, error=f"the comparison was {check.why}")
        return Verdict(False, "rule", prediction)

    async def _rule(self, answer: str, prediction: str | None, truth: str) -> Check:
        if prediction is not None:
            return await self.verifier.check(prediction, truth)
        line = answer.strip()
        if len(line) > MAX_LINE or "\n" in line or without_phrase(line) != line:
            return Check(None, "words")
        check = await self.verifier.check(line, truth)
        return Check(None, "words") if check.equal is False else check

    async def _audit(self, question: str, answer: str, truth: str, rule: bool) -> bool | None:
        """What the judge model says to some of what the rule decided: always the same ones."""
        share = int(self._key(question, answer, truth)[:8], 16) / 16**8
        if self._model is None or share >= self.config.audit:
            return None
        try:
            judged = await self._ask(self._model, question, answer, truth)
        except BoundaryError:
            self.counts["audit_failures"] += 1
            return None
        self.counts["audited"] += 1
        if judged != rule:
            self.counts["too_strict" if judged else "too_lax"] += 1
        return judged

    async def _ask(self, model: FrozenModel, question: str, answer: str, truth: str) -> bool:
        async def ask() -> tuple[bool, dict[str, Any]]:
            verdict, reply = await ask_verdict(model, build_messages(question, answer, truth))
            return verdict, {
                "judge": self._identity,
                "truth": truth,
                "answer": answer[-_EXCERPT:],
                "reply": reply,
            }

        return await self.cache.get(self._key(question, answer, truth), ask)

    def _key(self, question: str, answer: str, truth: str) -> str:
        parts = json.dumps([VERSION, self._identity, question, answer, truth])
        return hashlib.sha256(parts.encode()).hexdigest()
