"""Grades final answers: by rule first, by a judge model where no rule can tell.

judge = Judge(JudgeConfig(audit=0.05), model=models["judge"])
verdict = await judge.grade(question, answer, truth)
verdict.score()                             # 1.0 or 0.0; BoundaryError if nobody can tell
await judge.close()

`AssertionJudge` tells whether a conversation meets what is asserted about it.
"""

from turnwise.judge.assertions import AssertionJudge
from turnwise.judge.grading import Judge, JudgeConfig, Verdict

__all__ = ["AssertionJudge", "Judge", "JudgeConfig", "Verdict"]
