"""The budget of importance sampling (DPIS): one RDP order fixed in advance, noise solved anew in every epoch."""

from collections.abc import Iterable, Sequence

from lipdp import checks
from lipdp.accounting.calibration import needs_no_noise
from lipdp.accounting.filter import Filter, check_order, conversion
from lipdp.accounting.least_noise import best_order, least_noise, noise_of_run
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE, at_order
from lipdp.accounting.schemes import check_batch

# The norm sum is kept this far above its floor, so that rounding cannot make a probability exceed 1.
_ABOVE_FLOOR = 1.0 + 1e-6
# What is not charged covers the rounding of reported sums; what is not planned that of sums of planned costs.
_SLACK = 1e-9

_CHARGED = ("count_charged", "_clip_sum_charged", "_norm_sum_charged")
_STATE = ("num_examples", "order", "norm_sum", "clip_norm", "noise_multiplier", "_epoch", "_updates", *_CHARGED)


class ImportanceFilter:
    """Privacy filter of one DPIS run.

    The noise of DPIS depends on norm sums released during training, so the sequence of mechanisms is adaptive and
    ordinary composition does not cover it. At one RDP order fixed before the first release it is covered: costs add
    up, and the total is at most the budget whatever is released on the way.

    A release is charged before it is made: `charge_count` (only when the number of examples is private), then in each
    epoch `charge_clip_sum` (only when the clipping norm adapts), `charge_norm_sum`, `begin_epoch`, and
    `charge_update` for each update. The noisy sums of all epochs are set aside from the start.

    Args:
        epsilon: the budget, above 0.
        delta: in (0, 1).
        num_examples: number of examples N0, an int of at least 1: public, or, with `count_noise`, a public guess that
            serves to choose the order until `declare_count` replaces it.
        batch_size: expected batch size b at full norms, from 1 to N0; the divisor of the noise.
        updates_per_epoch: an int of at least 1.
        epochs: an int of at least 1.
        first_phase: share of the epochs, in [0, 1], during which later epochs are planned as if they cost as much as
            DP-SGD; what sampling saved is spent in the epochs after them.
        norm_sum_noise: noise multiplier of the sum of norms, above 0; default 0.02 N0.
        count_noise: noise multiplier of the private number of examples; None when the number is public.
        clip_sum_noise: noise multiplier of the sum that sets the clipping norm of an epoch; None when that is fixed.
        order: RDP order above 1; default: the best when every epoch costs as much as DP-SGD.
        spent: releases made before, to be paid from the same budget.

    Raises:
        ValueError: when an argument is out of range, or the budget does not even pay for the noisy sums.

    **Guarantee.**
    Conditions: each update is a Poisson-sampled Gaussian in the sense of `update`, for every value that the state
    hidden from the adversary may take (the stored norms of `sampling.Proposal`, which caps its probabilities); each
    noisy sum has L2 sensitivity 1 over its noise multiplier; adding or removing one example; `epsilon`, `order` and
    all other arguments were fixed in advance; every release is charged here first.
    Bound: everything charged, together with `spent`, is `(budget, delta)`-differentially private: `epsilon()`, what
    is used up, is never above the budget, whatever path the releases took. What one path used up is no guarantee.
    Not covered: choosing the order or the budget in view of releases; `spent` chosen adaptively at another order.
    Source: induction over the steps at a fixed order (Feldman and Zrnic 2021, fixed-order case); Canonne, Kamath and
    Steinke 2020, proposition 12.

    Example:
        >>> budget = ImportanceFilter(
        ...     epsilon=4.0, delta=1e-5, num_examples=60000, batch_size=256, updates_per_epoch=234, epochs=40
        ... )
        >>> budget.charge_norm_sum()
        >>> round(budget.begin_epoch(norm_sum=6000.0, clip_norm=0.1), 3)  # all gradients at the clipping norm
        0.807
        >>> budget.charge_update()
        >>> budget.epsilon() < 4.0
        True
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        num_examples: int,
        batch_size: int,
        updates_per_epoch: int,
        epochs: int,
        first_phase: float = 0.8,
        norm_sum_noise: float | None = None,
        count_noise: float | None = None,
        clip_sum_noise: float | None = None,
        order: float | None = None,
        spent: Iterable[Mechanism] = (),
    ):
        sums = {"norm_sum_noise": norm_sum_noise, "count_noise": count_noise, "clip_sum_noise": clip_sum_noise}
        run = {"updates_per_epoch": updates_per_epoch, "epochs": epochs, "first_phase": first_phase, **sums}
        data = {"num_examples": num_examples, "batch_size": batch_size}
        self._arguments = {"epsilon": epsilon, "delta": delta, **data, **run}
        self.budget = checks.positive("epsilon", epsilon)
        self.delta = checks.delta(delta)
        self.num_examples = checks.integer("num_examples", num_examples, minimum=1)
        self.batch_size = checks.integer("batch_size", batch_size, minimum=1)
        check_batch(self.num_examples, self.batch_size)
        self.updates_per_epoch = checks.integer("updates_per_epoch", updates_per_epoch, minimum=1)
        self.epochs = checks.integer("epochs", epochs, minimum=1)
        self.first_phase = checks.between("first_phase", first_phase, 0.0, 1.0)
        noise = checks.positive("norm_sum_noise", norm_sum_noise, optional=True)
        self.norm_sum_noise = 0.02 * self.num_examples if noise is None else noise
        self.count_noise = checks.positive("count_noise", count_noise, optional=True)
        self.clip_sum_noise = checks.positive("clip_sum_noise", clip_sum_noise, optional=True)
        self._spent_before = tuple(spent)
        self.order = self._best_order() if order is None else check_order(order)
        self._costs = _rdp(self._spent_before, self.order)
        self.count_charged = self._norm_sum_charged = self._clip_sum_charged = False
        self._epoch, self._updates = 0, self.updates_per_epoch
        self._update: Mechanism | None = None
        self.noise_multiplier = self.norm_sum = self.clip_norm = None
        if self._left <= 0.0:
            raise ValueError(
                f"The budget does not pay for the noisy sums. Received: epsilon={self.budget!r}, delta={self.delta!r}, "
                f"norm_sum_noise={self.norm_sum_noise!r}, order={self.order!r}, {len(self._spent_before)} releases "
                "made before. Pass a larger epsilon, more noise for the sums or fewer epochs."
            )
        if self.planned_noise < 2.0 * SMALLEST_NOISE:
            raise needs_no_noise(self.budget)

    @property
    def _total(self) -> float:
        """Returns the RDP at the order that the budget allows."""
        return (self.budget - conversion(self.order, self.delta)) * (1.0 - _SLACK)

    @property
    def epoch(self) -> int:
        """Returns the number of the epoch that was begun last; 0 before the first."""
        return self._epoch

    @property
    def updates_left(self) -> int:
        """Returns how many updates the present epoch still allows."""
        return 0 if self._epoch == 0 else self.updates_per_epoch - self._updates

    @property
    def update(self) -> Mechanism:
        """Returns the cost of one update of the present epoch.

        With `kappa = norm_sum / (N0 clip_norm)` and `q = b / N0`: a Gaussian of noise multiplier
        `noise_multiplier / kappa`, Poisson-sampled with probability `q / kappa`.
        """
        if self._update is None:
            raise ValueError("No epoch was begun. Call charge_norm_sum and begin_epoch first.")
        return self._update

    def charge_count(self) -> None:
        """Charges the private number of examples, before it is drawn; see `declare_count`."""
        if self.count_noise is None or self.count_charged:
            raise ValueError("The number of examples is public, or already charged. Received: charge_count.")
        self._charge(Mechanism(1.0, self.count_noise, 1))
        self.count_charged = True

    def declare_count(self, released: float) -> int:
        """Takes over the released noisy number of examples; returns N0, which is at least `batch_size`."""
        if not self.count_charged or self._epoch:
            raise ValueError("declare_count comes after charge_count and before the first epoch.")
        self.num_examples = max(self.batch_size, round(checks.real("released", released)))
        return self.num_examples

    def charge_norm_sum(self) -> None:
        """Charges the sum of norms that opens the next epoch, before it is drawn; again if the drawn one got lost."""
        self._check_next_epoch()
        self._charge(Mechanism(1.0, self.norm_sum_noise, 1))
        self._norm_sum_charged = True

    def charge_clip_sum(self) -> None:
        """Charges the sum that sets the clipping norm of the next epoch; otherwise like `charge_norm_sum`."""
        if self.clip_sum_noise is None:
            raise ValueError("A sum for the clipping norm is not in the plan. Pass clip_sum_noise.")
        self._check_next_epoch()
        self._charge(Mechanism(1.0, self.clip_sum_noise, 1))
        self._clip_sum_charged = True

    def _check_next_epoch(self) -> None:
        if self.count_noise is not None and not self.count_charged:
            raise ValueError("The number of examples is private: charge_count and declare_count come first.")
        if self._epoch >= self.epochs:
            raise ValueError(f"All {self.epochs} epochs of the plan were begun. Plan more epochs.")

    def begin_epoch(self, norm_sum: float, clip_norm: float) -> float:
        """Opens an epoch with its released noisy sum of norms.

        Args:
            norm_sum: the sum as released, any finite number; kept within `(b clip_norm, N0 clip_norm]` afterwards.
            clip_norm: clipping norm C of this epoch, above 0, public.

        Returns:
            The noise multiplier: the standard deviation of the noise on the gradient is `noise_multiplier C / b`.
        """
        if not self._norm_sum_charged:
            raise ValueError("The sum of norms was not charged. Call charge_norm_sum before drawing it.")
        norm_sum, clip_norm = checks.real("norm_sum", norm_sum), checks.positive("clip_norm", clip_norm)
        self._norm_sum_charged = self._clip_sum_charged = False
        self._epoch, self._updates = self._epoch + 1, 0
        # Functions of released values only, hence free; N0 = b leaves room for one value.
        floor, ceiling = self.batch_size * clip_norm * _ABOVE_FLOOR, self.num_examples * clip_norm
        self.norm_sum, self.clip_norm = max(floor, min(norm_sum, ceiling)), clip_norm
        self.noise_multiplier = self._solve()
        self._update = self._mechanism(self.noise_multiplier, self._share)
        return self.noise_multiplier

    def charge_update(self) -> None:
        """Charges one update, before it is released; refuses what was not planned or exceeds the budget."""
        if self.updates_left < 1:
            raise ValueError(
                f"This epoch has no update left. Received: {self._updates} updates in epoch {self._epoch} of "
                f"{self.epochs}. Begin the next epoch."
            )
        self._charge(self.update)
        self._updates += 1

    def epsilon(self) -> float:
        """Returns how much of the budget is used up on the path that the releases took."""
        return self._costs + conversion(self.order, self.delta) if self._costs else 0.0

    @property
    def planned_noise(self) -> float:
        """Returns the noise multiplier if every epoch cost as much as DP-SGD."""
        return noise_of_run(self._left_to_updates(self.order), *self._run, self.order)

    def arguments(self) -> dict:
        """Returns the arguments as JSON-serializable values, the chosen order among them; `spent` is left out."""
        return self._arguments | {"order": self.order}

    def state(self) -> dict:
        """Returns what changes during the run, as JSON-serializable values: `num_examples`, `order` and the rest."""
        return {name.lstrip("_"): getattr(self, name) for name in _STATE}

    def resume(self, state: dict, charged: Sequence[Mechanism], lost: int = 0) -> None:
        """Goes on from `state`, after everything in `charged`, the mechanisms of the ledger.

        Args:
            state: what `state` returned.
            charged: all releases, also those made after that.
            lost: how many updates among them were made after that. They count as updates of the epoch, if one is open.
        """
        for name in _STATE:
            setattr(self, name, state[name.lstrip("_")])
        if self.norm_sum is not None:
            self._update = self._mechanism(self.noise_multiplier, self._share)
        self._updates = min(self.updates_per_epoch, self._updates + lost)
        self._costs = _rdp(tuple(charged), self.order)

    def affords_epoch(self, most_noise: float) -> bool:
        """Returns whether the budget pays for the sums and updates of all epochs to come at no more than this noise.

        It does, unless releases were lost after a crash: they stay charged, and are made again.
        """
        updates = (self.epochs - self._epoch) * self.updates_per_epoch
        return updates * _rdp((self._mechanism(most_noise, 1.0),), self.order) <= self._left

    @property
    def _share(self) -> float:
        """Returns kappa: by how much the norms fall short of the clipping norm."""
        return self.norm_sum / (self.num_examples * self.clip_norm)

    def _mechanism(self, noise: float, share: float) -> Mechanism:
        probability = self.batch_size / self.num_examples / share
        return Mechanism(min(probability, 1.0), noise / share, 1)

    def _charge(self, mechanism: Mechanism) -> None:
        cost = _rdp((mechanism,), self.order)
        if self._costs + cost > self._total:
            raise ValueError(
                f"The privacy budget is spent: epsilon={self.epsilon():.6g} of {self.budget!r}. Nothing was charged. "
                "Stop training."
            )
        self._costs += cost

    @property
    def _left(self) -> float:
        """Returns what may be planned for updates: noisy sums that are not charged yet are set aside."""
        aside = sum(
            count * at_order(Mechanism(1.0, noise, 0), self.order)
            for count, noise in (
                (self.epochs - self._epoch - self._norm_sum_charged, self.norm_sum_noise),
                (self.epochs - self._epoch - self._clip_sum_charged, self.clip_sum_noise),
                (not self.count_charged, self.count_noise),
            )
            if noise is not None and count
        )
        return self._total * (1.0 - _SLACK) - self._costs - aside

    def _solve(self) -> float:
        """Returns the least noise with which this epoch and all later ones stay within the budget."""
        later = self.epochs - self._epoch
        first = self._epoch <= round(self.first_phase * self.epochs)

        def cost(noise):
            now = self.updates_per_epoch * _rdp((self._mechanism(noise, self._share),), self.order)
            then = self.updates_per_epoch * _rdp((self._mechanism(noise, 1.0),), self.order) if first else now
            return now + (later * then if later else 0.0)  # 0 times infinity is no cost

        return least_noise(cost, self._left)

    def _best_order(self) -> float:
        """Returns the order of least noise when every epoch costs as much as DP-SGD, from public values only."""
        noise, order = best_order(self._left_to_updates, *self._run)
        if noise > LARGEST_NOISE:
            raise ValueError(
                f"No noise multiplier up to {LARGEST_NOISE:g} meets the budget. Received: epsilon={self.budget!r}, "
                f"delta={self.delta!r}, {len(self._spent_before)} releases made before. {self._way_out()}"
            )
        return order

    def _way_out(self) -> str:
        """Returns what to do where no noise meets the budget."""
        noise, _ = best_order(self._left_to_sums, *self._run)
        if noise > LARGEST_NOISE:
            return "Pass a larger epsilon."
        return (
            f"The noisy sums of its {self.epochs} epochs alone cost more, with noise {self.norm_sum_noise:g}: "
            f"{self.num_examples} examples (or persons) are too few for it. Pass more of them, a larger epsilon, fewer "
            "epochs, or another strategy, such as dpsgd."
        )

    @property
    def _run(self) -> tuple[float, int]:
        """Returns sampling probability and number of updates of DP-SGD with this plan."""
        return self.batch_size / self.num_examples, self.updates_per_epoch * self.epochs

    def _left_to_updates(self, order: float) -> float:
        """Returns what earlier releases and all noisy sums of the plan leave of the budget at one order."""
        left = self.budget - conversion(order, self.delta)
        sums = [(self.epochs, self.norm_sum_noise), (self.epochs, self.clip_sum_noise), (1, self.count_noise)]
        left -= sum(count * at_order(Mechanism(1.0, noise, 0), order) for count, noise in sums if noise is not None)
        return left - _rdp(self._spent_before, order)

    def _left_to_sums(self, order: float) -> float:
        """Returns what earlier releases leave of the budget at one order."""
        return self.budget - conversion(order, self.delta) - _rdp(self._spent_before, order)


def _rdp(mechanisms: tuple[Mechanism, ...], order: float) -> float:
    """Returns the RDP of all `mechanisms` at `order`; ValueError for what is no Poisson sample of one example."""
    return Filter(order, covers_adaptive=True).rdp(mechanisms)
