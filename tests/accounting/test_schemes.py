"""Who is in a batch: defaults, refusals, and what one value holds for everybody else."""

import dataclasses
import pathlib

import pytest

import lipdp
from lipdp import sampling as samplers
from lipdp.accounting import SAMPLERS, SCHEMES, Mechanism, Sampling

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("name", SAMPLERS)
def test_binding_fills_in_what_has_a_meaning(name):
    bound = Sampling(name).bind(1000, 64)
    assert (bound.num_examples, bound.batch_size, bound.sampling_probability) == (1000, 64, 0.064)
    assert bound.relation == SCHEMES[name].relations[0]
    assert bound.capacity == (112 if name == "truncated_poisson" else None)  # 64 + 6 sqrt(64)
    assert bound.updates_per_epoch == 16 and bound.by_epoch == (name in ("shuffle", "fixed_order", "random_allocation"))
    assert bound.amplified == (name not in ("shuffle", "fixed_order"))
    assert Sampling.from_dict(bound.to_dict()) == bound
    assert bound.bind(2000, 64).sampling_probability == 0.032  # nothing stale


@pytest.mark.parametrize("name", SAMPLERS)
def test_equal_costs_compare_equal(name):
    one, two = (Sampling(name).bind(size, size // 10) for size in (1000, 2000))
    mechanisms = [Mechanism.of_updates(None, 1.0, 10, sampling) for sampling in (one, two)]
    assert (mechanisms[0] == mechanisms[1]) == (name != "truncated_poisson")
    flat = {"capacity": one.capacity, "num_examples": 1000}
    assert Mechanism.of_updates(0.1, 1.0, 10, name, **flat) == mechanisms[0]
    assert eval(repr(mechanisms[0]), {"Mechanism": Mechanism}) == mechanisms[0]


def test_a_group_is_one_person():
    assert Sampling("fixed_size").bind(1000, 64, 3).relation == "add_or_remove_one"
    assert Sampling().bind(1000, 64, 3).group_size == 3
    assert Sampling("fixed_size").bind(1000, 64).for_group(3) == Sampling("fixed_size").bind(1000, 64, 3)


def test_importance_sampling_has_a_probability_of_its_own():
    bound = Sampling().bind(1000, 64)
    one = Mechanism(sampling=dataclasses.replace(bound, sampling_probability=0.5), noise_multiplier=1.0, count=1)
    assert one == Mechanism(0.5, 1.0, 1)
    fixed = Sampling("fixed_size").bind(1000, 64)
    less = dataclasses.replace(fixed, sampling_probability=fixed.sampling_probability * (1.0 - 9e-6))
    assert less.sampling_probability == fixed.sampling_probability  # what the sizes say is charged
    with pytest.raises(ValueError, match="must be batch_size / num_examples.*sampling_probability=0.05"):
        dataclasses.replace(bound, sampling_probability=0.05)
    with pytest.raises(ValueError, match="must be batch_size / num_examples"):  # a stale one would understate the cost
        dataclasses.replace(bound, num_examples=500)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling("cyclic"), "`sampler` must be one of"),
        (lambda: Sampling("balls_in_bins"), "no sound accountant"),
        (lambda: Sampling("shuffle", capacity=3), "only truncated Poisson.*capacity=3"),
        (lambda: Sampling(relation="swap"), "`relation` must be one of"),
        (lambda: Sampling().bind(60000, 60001), "larger than the data.*batch_size=60001, num_examples=60000"),
        (
            lambda: Sampling().bind(100, 256),
            r"batch_size=256 \(256 is what `fit` takes where none is given\), num_examples=100",
        ),
        (lambda: Sampling().bind(60000, 0), "`batch_size` must be a positive integer"),
        (lambda: Sampling().bind(60000, 25.6), "`batch_size` must be a positive integer"),
        (lambda: Sampling().bind(0, 1), "`num_examples` must be a positive integer"),
        (lambda: Sampling().bind(60000, 256, 0), "`examples_per_person` must be a positive integer"),
        (lambda: Sampling().bind(60000, 256, 60001), "must not be larger than the data. Received: examples_per_person"),
        (lambda: Sampling("truncated_poisson").bind(60000, 256, 2), "No sound cost"),
        (lambda: Sampling("shuffle", relation="add_or_remove_one").bind(60000, 256), "no known cost under this"),
        (lambda: Mechanism(0.1, 1.0, 1, "truncated_poisson", num_examples=10), "`capacity` must be given"),
        (lambda: dataclasses.replace(Mechanism(0.1, 1.0, 1), sampler="shuffle"), "`sampler` must be left out"),
        (lambda: dataclasses.replace(Mechanism(0.1, 1.0, 1), group_size=2), "a bound Sampling alone"),
        (
            lambda: Mechanism(sampling=Sampling(), noise_multiplier=1.0, count=1),
            "a bound Sampling alone",
        ),
        (
            lambda: Mechanism(0.1, 1.0, 1, Sampling().bind(10, 1)),
            "a bound Sampling alone.*sampling_probability=0.1",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_sampler_is_described_in_one_place():
    files = [path for path in pathlib.Path(lipdp.__file__).parent.rglob("*") if path.suffix in (".py", ".json")]
    assert len([path for path in files if "truncated_poisson" in path.read_text(encoding="utf-8")]) <= 4


def test_fit_takes_the_same_value():
    assert samplers.Sampling is Sampling and samplers.get("shuffle") == Sampling("shuffle")
