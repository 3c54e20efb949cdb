"""One GRPO update over packed rows: loss, gradient, clipping, AdamW.

The loss is that of `turnwise.objective`, summed over the trained tokens of all rows of a step:

    L = sum_t w_t * (clip_loss_t + kl_loss_coef * kl_t - entropy_coef * entropy_t)

1. pack samples into rows and lay advantage and weight of each sample along its trained tokens
   (`train_rows`);
2. for each row: log-probs of its trained tokens, loss, backward (`forward.token_logprobs`);
3. clip the gradient's norm, step.

Old log-probs are those of the engine that sampled; with a correction for the difference between it
and the trainer (`turnwise.local.correction`) the trainer's own from before the first update, laid
in by `replace(row, old_logprobs=...)`, and None in that first one, whose forward pass gives them.
Rollout and trainer are compared in every step: the first one after a rollout sees the weights that
sampled.

Shapes: S samples, N trained tokens of a row. Log-probs are natural logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tokendelta
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from turnwise.command import RunError
from turnwise.local.correction import Correction, correct
from turnwise.local.forward import prepare, token_logprobs
from turnwise.local.optimizer import OptimizerName, PolicyOptimizer
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
        optimizer, offload: See `turnwise.local.optimizer`.
        recompute: Activation checkpointing, see `turnwise.local.forward.prepare`.
        chunk_size: Tokens whose logits are held at once, see `turnwise.local.head`.
        correction: For what engine and trainer differ in; None takes the engine's log-probs as old.
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
    optimizer: OptimizerName = "adam"
    offload: bool = False
    recompute: bool = False
    chunk_size: int | None = None
    correction: Correction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """A packed row with what the loss needs per trained token.

    Attributes:
        batch: The tokens; trained where loss_mask is 1.
        advantages: float32[N].
        weights: float32[N], see `turnwise.objective.token_weights`; they sum to 1 over a step.
        old_logprobs: float32[N], the policy's before the first update on the rollout; None where
            this is that update.
        ref_logprobs: float32[N], the reference's; None without a KL loss.
    """

    batch: tokendelta.MicroBatch
    advantages: Floats
    weights: Floats
    old_logprobs: Floats | None
    ref_logprobs: Floats | None = None

    @property
    def rollout_logprobs(self) -> Floats:
        """float32[N], as the engine gave them."""
        found: Floats = self.batch.logprobs[self.batch.loss_mask != 0]
        return found

    @property
    def segments(self) -> NDArray[np.int64]:
        """int64[N], the segment of the row that each trained token is in."""
        return _segments(self.batch)


@dataclass(frozen=True, slots=True)
class RowTokens:
    """The trained tokens of a row in an update, before it changed the weights.

    Attributes:
        logprobs: float32[N], the policy's.
        ratios: float32[N], its probability over the old one.
        clipped: bool[N], where the clip was active.
    """

    logprobs: Floats
    ratios: Floats
    clipped: NDArray[np.bool_]


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
        mean_logprob_difference: Its mean over trained tokens.
        trained_tokens: How many.
        tis_mean: Mean ratio of trainer and engine over trained tokens, before any bound; None
            without a correction.
        tis_clip_fraction: Trained tokens whose ratio lay outside the bounds, of all; None likewise.
        tokens: Of each row with trained tokens, in order.
    """

    loss: float
    kl: float
    entropy: float
    clip_fraction: float
    grad_norm: float
    max_logprob_difference: float
    mean_logprob_difference: float
    trained_tokens: int
    tis_mean: float | None = None
    tis_clip_fraction: float | None = None
    tokens: tuple[RowTokens, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RowLoss:
    """What the loss of a row says beside its value.

    Attributes:
        ratios: float32[N], the policy's probability over the old one.
        kl: float32[N].
        clipped: bool[N].
        tis: float32[N], the ratios of the correction; None without one.
        tis_bounded: bool[N]; None likewise.
    """

    ratios: Tensor
    kl: Tensor
    clipped: Tensor
    tis: Tensor | None = None
    tis_bounded: Tensor | None = None


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
        sample = batch.sample_index[_segments(batch)]
        rows.append(
            TrainRow(
                batch=batch,
                advantages=advantages[sample],
                weights=weights[sample],
                old_logprobs=batch.logprobs[batch.loss_mask != 0],
            )
        )
    return rows


def policy_loss(
    logprobs_N: Tensor,
    entropy_N: Tensor,
    row: TrainRow,
    settings: UpdateSettings,
) -> tuple[Tensor, RowLoss]:
    """The loss of one row, a number with gradient, and what is reported of it."""
    advantages, weights = (_tensor(array, logprobs_N) for array in (row.advantages, row.weights))
    if row.old_logprobs is None:
        old = logprobs_N.detach()
    else:
        old = _tensor(row.old_logprobs, logprobs_N)
    high = settings.eps_clip if settings.eps_clip_high is None else settings.eps_clip_high
    ratio = (logprobs_N - old).exp()
    free = -ratio * advantages
    held = -ratio.clamp(1.0 - settings.eps_clip, 1.0 + high) * advantages
    loss = torch.maximum(free, held)
    tis = bounded = None
    if settings.correction is not None:
        segments = torch.from_numpy(row.segments).to(logprobs_N.device)
        rollout = _tensor(row.rollout_logprobs, logprobs_N)
        found = correct(old, rollout, segments, settings.correction)
        loss, weights = loss * found.weights, weights * found.kept
        tis, bounded = found.ratios, found.bounded
    kl = torch.zeros_like(loss)
    if row.ref_logprobs is not None:
        difference = _tensor(row.ref_logprobs, logprobs_N) - logprobs_N
        kl = (difference.expm1() - difference).clamp(-KL_CLAMP, KL_CLAMP)
        loss = loss + settings.kl_loss_coef * kl
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * entropy_N
    told = RowLoss(ratio.detach(), kl.detach(), (held > free).detach(), tis, bounded)
    return (weights * loss).sum(), told


class Updater:
    """Owns the optimiser of a policy.

    Attributes:
        model: The policy; its weights change in place.
        parameters: Those that are trained.
        optimizer: AdamW over them; part of a checkpoint.

    Raises:
        ConfigError: an optimiser whose package is not installed.
    """

    def __init__(self, model: nn.Module, settings: UpdateSettings) -> None:
        prepare(model, recompute=settings.recompute)
        self.model = model
        self.settings = settings
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = PolicyOptimizer(
            self.parameters,
            lr=settings.lr,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            name=settings.optimizer,
            offload=settings.offload,
        )

    def set_lr(self, share: float) -> None:
        """Steps with a share of the settings' learning rate from here on."""
        for group in self.optimizer.param_groups:
            group["lr"] = share * self.settings.lr

    def logprobs(self, rows: Sequence[TrainRow]) -> list[Floats]:
        """The policy's log-probs of the trained tokens of each row: float32[N] per row."""
        return trained_logprobs(self.model, rows, self.settings)

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
        self.optimizer.zero_grad()
        sums = _Sums()
        for row in rows:
            if len(row.advantages) == 0:
                continue
            logprobs_N, entropy_N = token_logprobs(
                self.model,
                row.batch,
                temperature=settings.temperature,
                entropy_grad=settings.entropy_coef != 0,
                chunk_size=settings.chunk_size,
            )
            loss, told = policy_loss(logprobs_N, entropy_N, row, settings)
            loss.backward()  # type: ignore[no-untyped-call]
            sums.add(row, loss.detach(), told, logprobs_N.detach(), entropy_N.detach())
        norm = self.optimizer.clip(settings.clip_grad)
        if said := not_finite({"loss": sums.loss, "gradient norm": norm}):
            gap = f"largest rollout/trainer log-prob difference {sums.largest:.3g}"
            raise RunError(f"{said}, {gap}")
        self.optimizer.step()
        return sums.metrics(count, norm, corrected=settings.correction is not None)


@dataclass(slots=True)
class _Sums:
    """Over the rows of an update."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    largest: float = 0.0
    difference: float = 0.0
    tis: float = 0.0
    bounded: float = 0.0
    tokens: list[RowTokens] = field(default_factory=list)

    def add(
        self, row: TrainRow, loss: Tensor, told: RowLoss, logprobs_N: Tensor, entropy_N: Tensor
    ) -> None:
        self.loss += float(loss)
        self.kl += float(told.kl.sum())
        self.entropy += float(entropy_N.sum())
        self.clipped += float(told.clipped.sum())
        told_of = (logprobs_N.float(), told.ratios.float(), told.clipped)
        self.tokens.append(RowTokens(*(one.cpu().numpy() for one in told_of)))
        difference_N = (logprobs_N - _tensor(row.rollout_logprobs, logprobs_N)).abs()
        self.largest = max(self.largest, float(difference_N.max()))
        self.difference += float(difference_N.sum())
        if told.tis is not None and told.tis_bounded is not None:
            self.tis += float(told.tis.sum())
            self.bounded += float(told.tis_bounded.sum())

    def metrics(self, count: int, grad_norm: float, *, corrected: bool) -> UpdateMetrics:
        return UpdateMetrics(
            loss=self.loss,
            kl=self.kl / count,
            entropy=self.entropy / count,
            clip_fraction=self.clipped / count,
            grad_norm=grad_norm,
            max_logprob_difference=self.largest,
            mean_logprob_difference=self.difference / count,
            trained_tokens=count,
            tis_mean=self.tis / count if corrected else None,
            tis_clip_fraction=self.bounded / count if corrected else None,
            tokens=tuple(self.tokens),
        )


@torch.no_grad()
def trained_logprobs(
    model: Any, rows: Sequence[TrainRow], settings: UpdateSettings
) -> list[Floats]:
    """What `model`, prepared, gives to the trained tokens of each row: float32[N] per row."""
    model.eval()
    found = []
    for row in rows:
        logprobs, _ = token_logprobs(
            model, row.batch, temperature=settings.temperature, chunk_size=settings.chunk_size
        )
        found.append(logprobs.cpu().numpy())
    return found


def differences(rows: Sequence[TrainRow], logprobs: Sequence[Floats]) -> Floats:
    """|rollout - trainer| of the trained tokens of all rows, end to end."""
    pairs = zip(rows, logprobs, strict=True)
    found = [np.abs(row.rollout_logprobs - trainer) for row, trainer in pairs]
    return np.concatenate(found) if found else np.empty(0, np.float32)


def _segments(batch: tokendelta.MicroBatch) -> NDArray[np.int64]:
    """int64[N], the segment that each trained token is in."""
    trained = np.flatnonzero(batch.loss_mask)
    found: NDArray[np.int64] = np.searchsorted(batch.cu_seqlens, trained, side="right") - 1
    return found


def _tensor(array: Floats, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device, like.dtype)
