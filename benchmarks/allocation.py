"""Epsilon of random allocation beside a simulation of the mechanism, and beside Poisson sampling.

    python benchmarks/allocation.py
    python benchmarks/allocation.py --noise 1.1 --updates 235 --epochs 10 --samples 200000

The simulation draws the privacy loss of all passes for an example that is removed, with the noise of its own update
drawn far out (mean `--shift` in place of 1), where large losses are, and weights it back. Its epsilon is an estimate
with a standard error, no bound; that of the accountant is a bound, for adding and removing.
"""

import argparse
import time

import numpy as np
from common import write

_AT_ONCE = 20_000


def losses(noise: float, updates: int, epochs: int, samples: int, shift: float, rng) -> tuple[np.ndarray, np.ndarray]:
    """Returns losses of the mixture over the plain Gaussian, and logarithms of their weights."""
    loss, weights = np.zeros(samples), np.zeros(samples)
    for _ in range(epochs):
        for start in range(0, samples, _AT_ONCE):
            part = slice(start, min(start + _AT_ONCE, samples))
            x = noise * rng.standard_normal((part.stop - start, updates))
            x[:, 0] += shift  # which update it is does not matter for the loss
            ratio = np.log(np.mean(np.exp((x - 0.5) / noise**2), axis=1))
            drawn = np.log(np.mean(np.exp((shift * x - 0.5 * shift**2) / noise**2), axis=1))
            loss[part] += ratio
            weights[part] += ratio - drawn
    return loss, weights


def delta_at(epsilon: float, loss: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Returns delta and its standard error."""
    values = np.exp(weight) * np.maximum(-np.expm1(epsilon - loss), 0.0)
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def epsilon_at(delta: float, loss: np.ndarray, weight: np.ndarray) -> float:
    """Returns where the estimate of delta is `delta`, by bisection."""
    low, high = 0.0, float(loss.max())
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_at(middle, loss, weight)[0] > delta else (low, middle)
    return high


def table(found: dict) -> str:
    """The figures as a Markdown table."""
    there, error = found["delta_there"]
    return (
        "| accountant | simulated | Poisson sampling | simulated delta at the accountant's epsilon | seconds |\n"
        "|---|---|---|---|---|\n"
        f"| {found['random_allocation']:.4f} | {found['simulated']:.4f} | {found['poisson']:.4f} | "
        f"{there:.2e} (standard error {error:.0e}) | {found['seconds']:.2f} |"
    )


def main() -> None:
    from lipdp import accounting

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=1.1)
    parser.add_argument("--updates", type=int, default=235, help="updates of an epoch")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--shift", type=float, default=2.4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="allocation", help="name of the result file")
    arguments = parser.parse_args()
    noise, updates, epochs, delta = arguments.noise, arguments.updates, arguments.epochs, arguments.delta
    common = {"noise_multiplier": noise, "sampling_probability": 1.0 / updates, "updates": updates * epochs}
    start = time.perf_counter()
    allocated = accounting.epsilon(**common, delta=delta, sampler="random_allocation")
    seconds = time.perf_counter() - start
    rng = np.random.default_rng(arguments.seed)
    loss, weight = losses(noise, updates, epochs, arguments.samples, arguments.shift, rng)
    found = {
        "noise_multiplier": noise,
        "updates": updates,
        "epochs": epochs,
        "delta": delta,
        "random_allocation": round(allocated, 4),
        "seconds": round(seconds, 2),
        "poisson": round(accounting.epsilon(**common, delta=delta), 4),
        "simulated": round(epsilon_at(delta, loss, weight), 4),
        "delta_there": delta_at(allocated, loss, weight),
        "samples": arguments.samples,
        "seed": arguments.seed,
    }
    print(found)
    print(write(arguments.name, found))


if __name__ == "__main__":
    main()
