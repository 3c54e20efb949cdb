"""What frozen models behind an endpoint cost, with a cap."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from turnwise.episode import Boundary, BoundaryError
from turnwise.inflight import waiting

CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for English where an endpoint does not count; it errs to the high side."""

LOOK_AGAIN_S = 0.05
"""Between two looks at whether requests under way have given back what they set aside."""


class SpendCapReached(BoundaryError):
    """The next request might cost more than is left of the cap; it was not sent."""


@dataclass(slots=True)
class Spend:
    """Tokens and US dollars of one endpoint.

    Attributes:
        read_price, write_price: US dollars per million tokens read and written.
        cap_usd: Nothing is sent that might take the sum beyond it; None sets no cap.
        requests: Answers that were paid for.
        read_tokens, written_tokens: As the endpoint counts.
        usd: Their price.
        estimated: Answers without a count, whose tokens were estimated.
        pledged_usd: The most that requests under way may cost.
        refusal: Why the last request was not sent; empty while none was refused.
    """

    read_price: float = 0.0
    write_price: float = 0.0
    cap_usd: float | None = None
    requests: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    usd: float = 0.0
    estimated: int = 0
    pledged_usd: float = 0.0
    refusal: str = ""

    def price(self, read: float, written: float) -> float:
        """US dollars for that many tokens."""
        return (read * self.read_price + written * self.write_price) / 1e6

    def pledge(self, read: float, written: float, *, boundary: Boundary) -> float:
        """Sets the price of a request of at most that many tokens aside, and returns it.

        Raises:
            SpendCapReached: the cap does not allow it.
        """
        price = self.price(read, written)
        if self.cap_usd is not None and self.usd + self.pledged_usd + price > self.cap_usd:
            self.refusal = (
                f"the spend cap of ${self.cap_usd:.2f} is reached: ${self.usd:.4f} spent on "
                f"{self.requests} requests, ${self.pledged_usd:.4f} set aside for those under way, "
                f"the next may cost ${price:.4f}; raise the cap to go on"
            )
            raise SpendCapReached(boundary, self.refusal)
        self.pledged_usd += price
        return price

    async def reserve(self, read: float, written: float, *, boundary: Boundary) -> float:
        """As `pledge`, but waits while only what requests under way set aside is in the way.

        They cost far less than the most they may, as a rule: a cap that a hundred of them could
        break together is not reached.

        Raises:
            SpendCapReached: what is spent leaves too little, whatever comes of the others.
        """
        price = self.price(read, written)
        while (
            self.cap_usd is not None
            and self.usd + price <= self.cap_usd < self.usd + self.pledged_usd + price
        ):
            with waiting("spend cap"):
                await asyncio.sleep(LOOK_AGAIN_S)
        return self.pledge(read, written, boundary=boundary)

    def release(self, pledged: float) -> None:
        """Ends what `pledge` set aside."""
        self.pledged_usd = max(0.0, self.pledged_usd - pledged)

    def pay(self, read: int, written: int, *, estimated: bool) -> None:
        """Counts an answer."""
        self.requests += 1
        self.read_tokens += read
        self.written_tokens += written
        self.usd += self.price(read, written)
        self.estimated += estimated

    def row(self) -> dict[str, float]:
        """For metrics: `requests`, `read_tokens`, `written_tokens`, `usd`, `estimated`."""
        return {
            "requests": float(self.requests),
            "read_tokens": float(self.read_tokens),
            "written_tokens": float(self.written_tokens),
            "usd": self.usd,
            "estimated": float(self.estimated),
        }
