"""The customers of a run: those of `taubench.tau2`, one maker a domain."""

from __future__ import annotations

from taubench.tau2 import DOMAINS
from taubench.tau2.users import UserConfig, UserMaker
from turnwise.config import ConfigError
from turnwise.method import Services
from turnwise.users import User

CHECK_DEADLINE_S = 60.0


class Customers:
    """Makes the customer of each episode, by its domain."""

    def __init__(self, config: UserConfig, services: Services) -> None:
        """
        Raises:
            ConfigError: they can't be had here.
        """
        if config.strategy == "human" and services.server is not None:
            raise ConfigError("customer.strategy: nobody sits at a terminal of the nodes")
        if config.sglang:
            if services.server is None:
                raise ConfigError("customer.sglang: is for runs through slime, which serves it")
            config = config.served_at(services.server)
        self._config, self._environ = config, services.environ
        self._makers: dict[str, UserMaker] = {}

    @property
    def domains(self) -> list[str]:
        """Those of which there was a customer so far."""
        return list(self._makers)

    def __call__(self, domain: str) -> User:
        return self._maker(domain)()

    async def check(self) -> None:
        """Asks whether their model answers, if they have one.

        Raises:
            BoundaryError: it does not.
        """
        if self._config.strategy not in ("offline", "human"):
            await self._maker(DOMAINS[0]).check(CHECK_DEADLINE_S)

    def metrics(self) -> dict[str, float]:
        """`user/...`, summed over the domains."""
        sums: dict[str, float] = {}
        for maker in self._makers.values():
            for name, value in maker.metrics().items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    async def close(self) -> None:
        """Closes the connections to their model."""
        for maker in self._makers.values():
            await maker.close()

    def _maker(self, domain: str) -> UserMaker:
        if domain not in self._makers:
            try:
                self._makers[domain] = UserMaker(self._config, domain=domain, environ=self._environ)
            except ConfigError as error:
                raise ConfigError(f"customer.{error}") from None
        return self._makers[domain]
