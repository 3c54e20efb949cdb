"""An engine and a customer's endpoint with fixed latencies, in a process of their own.

    python -m benchmarks.rollout.servers POLICY_S USER_S TOKENIZER_FOLDER

Prints both ports as JSON and serves until its input closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "libs/turnwise/tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "libs/turnwise/tests/slime_standin"))

from transformers import AutoTokenizer
from turnwise.testing.servers import Call, FakeChat, FakeSGLang, Turn

from benchmarks.rollout.method import TURNS


async def serve(policy_s: float, user_s: float, folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = [
        tokenizer.encode(f"Thank you. Could you tell me more about item {number}?")
        for number in range(TURNS)
    ]

    async def answer(call: Call) -> Turn:
        await asyncio.sleep(policy_s)
        ids = [*words[min(call.turn, TURNS - 1)], tokenizer.eos_token_id]
        return Turn(ids, [-0.5] * len(ids))

    def say(messages: list[dict[str, str]]) -> str:
        return "###STOP###" if len(messages) >= 2 * TURNS else "I would like to return the watch."

    engine, user = FakeSGLang(answer), FakeChat(say, delay_s=user_s)
    async with engine, user:
        print(json.dumps({"engine": engine.port, "user": user.port}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))
