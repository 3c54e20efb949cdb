"""AdamW for weights of any precision: float32 masters, states in 8 bits or on the host.

| weights  | what is stepped                                                                    |
|----------|------------------------------------------------------------------------------------|
| float32  | the weights themselves                                                             |
| bfloat16 | a float32 copy of each (its master), rounded into the weight after each step: a     |
|          | step of 1e-6 is smaller than half a unit in the last of bfloat16's eight bits, and  |
|          | would be lost (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1)             |

Gradients of bfloat16 weights are summed over the rows of a step in float32. With `offload`, masters
and moments are on the host and visit the device weight by weight when they are stepped: the same
arithmetic on the same device, so the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from turnwise.config import ConfigError

OptimizerName = Literal["adam", "adam8bit"]

MASTERS = "masters"
"""Key of a saved state under which the masters are."""


class PolicyOptimizer:
    """Steps a policy's trained weights.

    Args:
        weights: Those with `requires_grad`, all of one device.
        name: `adam` is torch's AdamW; `adam8bit` bitsandbytes', whose moments take a byte each
            (Dettmers et al. 2022, arXiv 2110.02861).
        offload: Keep masters and moments on the host.

    Raises:
        ConfigError: `adam8bit` without bitsandbytes.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        name: OptimizerName = "adam",
        offload: bool = False,
    ) -> None:
        self._weights = list(weights)
        self._offload = offload
        self._masters = [_master(weight, offload) for weight in self._weights]
        self._gradients: dict[int, Tensor] = {}
        for index, weight in enumerate(self._weights):
            if self._masters[index] is not weight:
                hooked: Any = weight
                hooked.register_post_accumulate_grad_hook(self._summed(index))
        settings: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        self._inner: torch.optim.Optimizer
        # One kernel a step, without copies of all moments, where it is not a CPU that must give
        # the numbers that it always gave.
        self._fused = name == "adam" and any(one.is_cuda for one in self._weights)
        if name == "adam8bit":
            self._inner = _adam8bit()(self._masters, **settings)
        else:
            self._inner = torch.optim.AdamW(self._masters, **settings, fused=self._fused or None)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """As of any optimiser of torch; `lr` may be set."""
        return self._inner.param_groups

    @property
    def state(self) -> Mapping[Tensor, Any]:
        """Moments by master."""
        return self._inner.state

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        self._gradients.clear()
        for weight in self._weights:
            weight.grad = None

    def clip(self, largest: float) -> float:
        """Scales the gradient down to a norm of `largest`; returns the norm that it had.

        Args:
            largest: 0 leaves it as it is.
        """
        if self._native:
            return float(nn.utils.clip_grad_norm_(self._weights, largest or torch.inf))
        gradients = [gradient for _, gradient in self._collected()]
        if not gradients:
            return 0.0
        norm = float(nn.utils.get_total_norm(gradients))
        if 0 < largest < norm:
            # As torch scales; a norm that is not finite is refused by the caller.
            torch._foreach_mul_(gradients, largest / (norm + 1e-6))
        return norm

    def step(self) -> None:
        """Steps all weights that have a gradient."""
        if self._offload:
            self._step_one_by_one()
            return
        for index, gradient in self._gradients.items():
            self._masters[index].grad = gradient
        self._inner.step()
        with torch.no_grad():
            for index in self._gradients:
                self._masters[index].grad = None
                self._weights[index].copy_(self._masters[index])
        self._gradients.clear()

    def state_dict(self) -> dict[str, Any]:
        """torch's, with the masters of weights that have one."""
        state = self._inner.state_dict()
        if not self._native:
            state[MASTERS] = [master.detach() for master in self._masters]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave for the same weights and options.

        Raises:
            ValueError: it is of other weights or another precision.
        """
        left = dict(state)
        masters = left.pop(MASTERS, None)
        if (masters is None) != self._native:
            raise ValueError("its weights are of another precision")
        self._inner.load_state_dict(left)
        if masters is None:
            return
        if [one.shape for one in masters] != [one.shape for one in self._masters]:
            raise ValueError("its masters have other shapes")
        with torch.no_grad():
            for own, saved in zip(self._masters, masters, strict=True):
                own.copy_(saved)

    @property
    def _native(self) -> bool:
        """Whether the weights are their own masters."""
        return all(one is other for one, other in zip(self._weights, self._masters, strict=True))

    def _summed(self, index: int) -> Any:
        # torch keeps hooks where the garbage collector sees no cycle, so this one holds neither the
        # optimiser nor a weight.
        sums = self._gradients

        def hook(weight: Tensor) -> None:
            gradient = weight.grad
            assert gradient is not None
            weight.grad = None
            if index in sums:
                sums[index] += gradient
            else:
                sums[index] = gradient.float()

        return hook

    def _collected(self) -> Iterator[tuple[int, Tensor]]:
        """Gradients of either kind by the place of their weight."""
        for index, weight in enumerate(self._weights):
            gradient = self._gradients.get(index, weight.grad)
            if gradient is not None:
                yield index, gradient

    def _step_one_by_one(self) -> None:
        gradients = dict(self._collected())
        self.zero_grad()
        for index in list(gradients):
            weight, master = self._weights[index], self._masters[index]
            with self._on_device(master, weight.device):
                # A weight without a gradient is left out by `step`.
                master.grad = gradients.pop(index)
                self._inner.step()
                master.grad = None
                if master is not weight:
                    with torch.no_grad():
                        weight.copy_(master)

    @contextmanager
    def _on_device(self, master: nn.Parameter, device: torch.device) -> Iterator[None]:
        """Brings a master and its moments to the device, and back to the host."""
        at_home = master.data
        moments = self._inner.state[master]
        hosted = {name: one for name, one in moments.items() if self._travels(one)}
        master.data = at_home.to(device, non_blocking=True)
        moments.update({n: one.to(device, non_blocking=True) for n, one in hosted.items()})
        try:
            yield
        finally:
            if master.device != at_home.device:
                at_home.copy_(master.data)
            master.data = at_home
            moments = self._inner.state[master]
            for name, one in moments.items():
                if self._travels(one):
                    moments[name] = _to_host(one, hosted.get(name))

    def _travels(self, value: object) -> bool:
        """Of a state: tensors; the count of steps, a number, where the kernel wants it there."""
        return isinstance(value, Tensor) and (self._fused or value.dim() > 0)


def _master(weight: nn.Parameter, offload: bool) -> nn.Parameter:
    if weight.dtype == torch.float32:
        return weight
    copy = weight.detach().float()
    return nn.Parameter(_to_host(copy, None) if offload else copy)


def _to_host(tensor: Tensor, into: Tensor | None) -> Tensor:
    """On the host, in memory that the device can read directly where there is one."""
    if tensor.device.type == "cpu":
        return tensor
    if into is None or not into.is_pinned():
        into = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return into.copy_(tensor)


def _adam8bit() -> Any:
    try:
        import bitsandbytes  # type: ignore[import-not-found]  # pants: no-infer-dep
    except ImportError:
        raise ConfigError(
            "--optimizer adam8bit needs the package bitsandbytes, which is not installed: install"
            " it, or keep the moments on the host with --optimizer-cpu-offload"
        ) from None
    return bitsandbytes.optim.AdamW8bit
