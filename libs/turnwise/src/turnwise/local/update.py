"""One GRPO update over packed rows: loss, gradient, clipping, AdamW.

The loss is that of `turnwise.objective`, summed over the trained tokens of all rows of a step:

    L = sum_t w_t * (clip_loss_t + kl_loss_coef * kl_t - entropy_coef * entropy_t)

1. pack samples into rows and lay advantage and weight of each sample along its trained tokens
   (`train_rows`);
2. for each row: log-probs of its trained tokens, loss, backward (`forward.token_logprobs`);
3. clip the gradient's norm, step.

Old log-probs are those of the engine that sampled, or the trainer's own (`Updater.logprobs`) laid
in with `replace(row, old_logprobs=...)`. Rollout and trainer are compared in every step: the first
step after a rollout sees the weights that sampled.

Shapes: S samples, N trained tokens of a row. Log-probs are natural logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokendelta
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from turnwise.command import RunError
from turnwise.local.forward import prepare, token_logprobs
from turnwise.objective import KL_CLAMP
from turnwise.stopping import not_finite

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """slime's options of the same names; see `turnwise.objective` for the formulas.

    Attributes:
        temperature: That of the rollout; log-probs are taken under it.
        eps_clip_high: None takes `eps_clip`.
        kl_loss_coef: Needs `ref_logprobs` in every row unless it is 0.
        clip_grad: Largest norm of the gradient; 0 switches clipping off.
    """

    lr: float
    temperature: float = 1.0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_eps: float = 1e-8
    clip_grad: float = 1.0
    eps_clip: float = 0.2
    eps_clip_high: float | None = None
    kl_loss_coef: float = 0.0
    entropy_coef: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """A packed row with what the loss needs per trained token.

    Attributes:
        batch: The tokens; trained where loss_mask is 1.
        advantages: float32[N].
        weights: float32[N], see `turnwise.objective.token_weights`; they sum to 1 over a step.
        old_logprobs: float32[N], the policy's before the update.
        ref_logprobs: float32[N], the reference's; None without a KL loss.
    """

    batch: tokendelta.MicroBatch
    advantages: Floats
    weights: Floats
    old_logprobs: Floats
    ref_logprobs: Floats | None = None

    @property
    def rollout_logprobs(self) -> Floats:
        """float32[N], as the engine gave them."""
        found: Floats = self.batch.logprobs[self.batch.loss_mask != 0]
        return found


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """What one update measured, before it changed the weights.

    Attributes:
        loss: The loss that was minimised.
        kl: Mean of `low_var_kl` against the reference over trained tokens; 0 without one.
        entropy: Mean over trained tokens, nats.
        clip_fraction: Trained tokens where the clip was active, of all.
        grad_norm: Before clipping.
        max_logprob_difference: Largest |rollout - trainer| log-prob of a trained token.
        trained_tokens: How many.
    """

    loss: float
    kl: float
    entropy: float
    clip_fraction: float
    grad_norm: float
    max_logprob_difference: float
    trained_tokens: int


def train_rows(
    samples: Sequence[tokendelta.Sample],
    advantages_S: ArrayLike,
    weights_S: ArrayLike,
    *,
    max_tokens: int,
) -> list[TrainRow]:
    """Packs samples; old log-probs are the rollout's.

    Args:
        samples: Those of one update.
        advantages_S: float[S].
        weights_S: float[S], the weight of each trained token of a sample.
        max_tokens: Tokens per row.

    Raises:
        tokendelta.LengthError: if a sample is longer than `max_tokens`.
        ValueError: if the lengths differ.
    """
    advantages = np.asarray(advantages_S, dtype=np.float32)
    weights = np.asarray(weights_S, dtype=np.float32)
    if not len(samples) == len(advantages) == len(weights):
        raise ValueError(
            f"{len(samples)} samples, {len(advantages)} advantages, {len(weights)} weights"
        )
    rows = []
    for batch in tokendelta.pack(samples, max_tokens=max_tokens):
        trained = np.flatnonzero(batch.loss_mask)
        segment = np.searchsorted(batch.cu_seqlens, trained, side="right") - 1
        sample = batch.sample_index[segment]
        rows.append(
            TrainRow(
                batch=batch,
                advantages=advantages[sample],
                weights=weights[sample],
                old_logprobs=batch.logprobs[trained],
            )
        )
    return rows


def policy_loss(
    logprobs_N: Tensor,
    entropy_N: Tensor,
    row: TrainRow,
    settings: UpdateSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of one row, and what is reported of it.

    Returns:
        loss, a number with gradient; kl float32[N]; clipped bool[N].
    """
    old, advantages, weights = (
        _tensor(array, logprobs_N) for array in (row.old_logprobs, row.advantages, row.weights)
    )
    high = settings.eps_clip if settings.eps_clip_high is None else settings.eps_clip_high
    ratio = (logprobs_N - old).exp()
    free = -ratio * advantages
    held = -ratio.clamp(1.0 - settings.eps_clip, 1.0 + high) * advantages
    loss = torch.maximum(free, held)
    kl = torch.zeros_like(loss)
    if row.ref_logprobs is not None:
        difference = _tensor(row.ref_logprobs, logprobs_N) - logprobs_N
        kl = (difference.expm1() - difference).clamp(-KL_CLAMP, KL_CLAMP)
        loss = loss + settings.kl_loss_coef * kl
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * entropy_N
    return (weights * loss).sum(), kl.detach(), (held > free).detach()


class Updater:
    """Owns the optimiser of a policy.

    Attributes:
        model: The policy; its weights change in place.
        optimizer: AdamW over all its parameters; part of a checkpoint.
    """

    def __init__(self, model: nn.Module, settings: UpdateSettings) -> None:
        prepare(model)
        self.model = model
        self.settings = settings
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.lr,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
        )

    def logprobs(self, rows: Sequence[TrainRow]) -> list[Floats]:
        """The policy's log-probs of the trained tokens of each row: float32[N] per row."""
        return trained_logprobs(self.model, rows, temperature=self.settings.temperature)

    def update(self, rows: Sequence[TrainRow]) -> UpdateMetrics:
        """One optimiser step over all rows.

        Raises:
            ValueError: if there is no trained token, or a KL loss and no reference log-probs.
            turnwise.command.RunError: if loss or gradient is not finite; weights are unchanged.
        """
        settings = self.settings
        count = sum(len(row.advantages) for row in rows)
        if count == 0:
            raise ValueError("an update needs at least one trained token")
        if settings.kl_loss_coef and any(row.ref_logprobs is None for row in rows):
            raise ValueError(
                f"kl_loss_coef is {settings.kl_loss_coef:g}, but a row has no ref_logprobs"
            )
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = kl = entropy = clipped = difference = 0.0
        for row in rows:
            if len(row.advantages) == 0:
                continue
            logprobs_N, entropy_N = token_logprobs(
                self.model,
                row.batch,
                temperature=settings.temperature,
                entropy_grad=settings.entropy_coef != 0,
            )
            row_loss, kl_N, clipped_N = policy_loss(logprobs_N, entropy_N, row, settings)
            row_loss.backward()  # type: ignore[no-untyped-call]
            loss += float(row_loss.detach())
            kl += float(kl_N.sum())
            entropy += float(entropy_N.detach().sum())
            clipped += float(clipped_N.sum())
            rollout = _tensor(row.rollout_logprobs, logprobs_N)
            difference = max(difference, float((logprobs_N.detach() - rollout).abs().max()))
        largest = settings.clip_grad or torch.inf
        norm = float(nn.utils.clip_grad_norm_(self.parameters, largest))
        if said := not_finite({"loss": loss, "gradient norm": norm}):
            raise RunError(f"{said}, largest rollout/trainer log-prob difference {difference:.3g}")
        self.optimizer.step()
        return UpdateMetrics(
            loss=loss,
            kl=kl / count,
            entropy=entropy / count,
            clip_fraction=clipped / count,
            grad_norm=norm,
            max_logprob_difference=difference,
            trained_tokens=count,
        )


@torch.no_grad()
def trained_logprobs(model: Any, rows: Sequence[TrainRow], *, temperature: float) -> list[Floats]:
    """What `model`, prepared, gives to the trained tokens of each row: float32[N] per row."""
    model.eval()
    found = []
    for row in rows:
        logprobs, _ = token_logprobs(model, row.batch, temperature=temperature)
        found.append(logprobs.cpu().numpy())
    return found


def max_difference(rows: Sequence[TrainRow], logprobs: Sequence[Floats]) -> float:
    """Largest |rollout - trainer| over the trained tokens of all rows; 0 without one."""
    pairs = zip(rows, logprobs, strict=True)
    found = [np.abs(row.rollout_logprobs - trainer).max(initial=0.0) for row, trainer in pairs]
    return float(max(found, default=0.0))


def _tensor(array: Floats, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device, like.dtype)
