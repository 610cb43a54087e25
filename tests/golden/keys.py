"""The random streams of 0.1.0, under which the expected results were made: the tests put them back in.

There a seed alone gave all keys, which had 64 bits. All else in a `fit` is the library's own, so that its results can
be compared with those of 0.1.0 whatever keys derive from now.
"""

import contextlib
from unittest import mock

import numpy as np
from keras import ops

from lipdp import backend, diffusion, sampling
from lipdp import optimizer as optimizers
from lipdp.backend import threefry
from lipdp.sampling import randomness
from lipdp.training import driver, importance, seeding


def _padded(words):
    """A key of two words in the place of eight: the last six whiten nothing."""
    return np.concatenate([np.asarray(words, "uint32").ravel()[:2], np.zeros(6, "uint32")])


def _block(key, counter, domain):
    one, two = threefry.threefry((key[0], key[1]), ops.cast(counter, "uint32"), ops.cast(domain, "uint32"))
    return ops.concatenate([ops.stack([one, two]), ops.zeros((6,), "uint32")])


def _begin(driver):
    run, optimizer, seed = driver.run, driver.model.optimizer, driver.request.seed
    updates = run.ledger.updates
    if isinstance(driver.model, diffusion.DiffusionModel) and (seed is None or not run.ledger.seeded or not updates):
        driver.model.noising.seeds.reseed(_padded(_words(0x6E6F6973, seed)))
    run.secret = seeding.Secret(bytes(32), None if seed is None else "of 0.1.0")
    if seed is not None and 0 < updates == int(optimizer.iterations.numpy()) and optimizer.noise_key.numpy().any():
        return None
    return _padded(_words(seed, 0, updates))


def _words(*entropy):
    return np.random.SeedSequence(entropy if None not in entropy else None).generate_state(2)


def _sampler(driver):
    scheme, seed = driver.plan.sampling, driver.request.seed
    key = driver.run.epoch_key if driver.continued else None
    if scheme.name == "shuffle" and key is None:
        key = tuple(int(word) for word in np.random.SeedSequence([seed, 2]).generate_state(2, np.uint64))
    made = sampling.make_sampler(scheme, seed, key)
    if isinstance(made, sampling.PoissonSampler):
        entropy = np.random.SeedSequence().entropy if seed is None else seed
        made._secret = np.random.SeedSequence([entropy, 1]).generate_state(2, np.uint64)
    return made


def _generator(secret, label, update):
    return np.random.Generator(np.random.Philox(key=secret, counter=[0, 0, 0, update]))


def _importance_generator(driver, label):
    run, seed = driver.run, driver.request.seed
    return np.random.default_rng([seed, *((2, run.ledger.releases) if label == "sum" else (3, run.ledger.updates))])


def _load_diffusion(self, store, inner=diffusion.DiffusionModel.load_own_variables):
    inner(self, store)
    if "noising" in store.keys():
        self.noising.seeds.reseed(_padded(store["noising"]))


@contextlib.contextmanager
def of_0_1_0():
    """Draws what 0.1.0 drew."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (backend, "ratchet", lambda key: (_block(key, 0, 1), _block(key, 1, 1))),
            (backend, "subkey", lambda key, index: _block(key, index, 2)),
            (driver.Driver, "_sampler", _sampler),
            (importance.ImportanceDriver, "_generator", _importance_generator),
            (randomness, "generator", _generator),
            (seeding, "begin", _begin),
            (optimizers, "_renewed", _padded),
            (diffusion.DiffusionModel, "load_own_variables", _load_diffusion),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
