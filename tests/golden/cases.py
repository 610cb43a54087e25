"""Models, data and calls whose results 0.1.0 wrote down; in words that 0.1.0 and its successors understand."""

import hashlib
import pathlib
import re

import keras
import numpy as np

import lipdp
from lipdp import layers, losses, strategies
from lipdp.sampling import Sampling

HERE = pathlib.Path(__file__).parent
FILES = HERE / "files"
DELTA = 1e-4
SAMPLERS = ("poisson", "truncated_poisson", "fixed_size", "shuffle", "fixed_order")

# Keywords that changed their name after 0.1.0.
NEW_NAMES = {
    "physical_batch_size": "microbatch_size",
    "views": "augmentation_multiplicity",
    "neighbouring_relation": "neighboring_relation",
}
# What else changed, as text: both sides are brought to the new words before they are compared.
NEW_WORDS = (
    ("Neighbouring relation", "Neighboring relation"),
    ("neighbouring_relation", "neighboring_relation"),
    ("neighbouring", "neighboring"),
    # The accountant of DPIS and the filter became one.
    ("rdp_order:", "filter:"),
    # American spelling.
    ("realised", "realized"),
    ("discretisation", "discretization"),
    (
        "Hyper-parameter search: each run on the same data spends its own budget.",
        "Other models that were trained on the same data, as in a search for settings or an ensemble: each spends a "
        "budget of its own, and what all of them cost together is more than is stated here.",
    ),
    # Better English, of one meaning.
    ("holds only towards people", "holds only against people"),
    # What zeroing out an example means was corrected.
    (
        "its gradient becomes zero, its place in the batches stays.",
        "its place in the batches stays, but it contributes nothing to any release.",
    ),
    # What a pipeline can do.
    (
        "Preprocessing fitted to the data: means, vocabularies, class weights, removed outliers.",
        "Preprocessing fitted to the data, or done on many rows at once: means, vocabularies, adapted layers, class "
        "weights, removed outliers, padding to the longest row, maps over the batches of a data pipeline. Rows that "
        "were copied into the data several times.",
    ),
    ("removed outliers, maps over", "removed outliers, padding to the longest row, maps over"),
    (
        "No fixed seed was given: the noise was seeded by the operating system.",
        "A fixed seed, should one be given: none was, the operating system seeded the noise.",
    ),
    # Better keys.
    ("people who do not know it", "people who can neither know nor guess it"),
    ("approximation, and its generator is not cryptographic.", "approximation."),
)
# What 0.1.0 did not say.
NEW_LINES = re.compile(
    r"- (Whoever breaks the random generators|In version 0.1.0 keys came|Keys came from a hash|Weights that came in by|"
    r"Going on from an|In plain words:|What delta is:|Training of the same weights|Two runs under this seed|"
    r"Rows that were held out|Rounding by place|Choosing one of several files|Stopped after|"
    r"Rows that were chosen|Errors and warnings|Data that are not rows)"
    r".*?(cryptographic hash|epsilon says|noise of its own|share are followed|with its journal|right in 50|"
    r"of it is charged|was used|were used|which it was|who it was|publish one of them|say about them|"
    r"to other places|looked at states|epsilon covers that|a row in full|"
    r"others in or out|quote private rows|that a layer holds)\. ?"
)
NEW_FACTS = {"risk", "stopped_early", "noise_generators", "steered_by_training_metrics", "updates_of_other_models"}


def call(function, *args, **kwargs):
    """Calls `function` with the new names of keywords, or, where it does not know them, with those of 0.1.0."""
    new = {NEW_NAMES.get(name, name): value for name, value in kwargs.items()}
    if new.keys() == kwargs.keys():
        return function(*args, **kwargs)
    try:
        return function(*args, **new)
    except TypeError as error:
        if not any(f"'{name}'" in str(error) for name in new if name not in kwargs):
            raise
        return function(*args, **kwargs)


def normal(value):
    """Text, or JSON values with all text in them, in the new words and without the version of dp_accounting."""
    if isinstance(value, str):
        value = " ".join(value.split())  # lines are broken elsewhere
        value = NEW_LINES.sub("", value).strip()
        for old, new in NEW_WORDS:
            value = value.replace(old, new)
        return re.sub(r"(dp_accounting|autodp) \d[\w.]*", r"\1 VERSION", value)
    if isinstance(value, dict):
        return {normal(k): "VERSION" if k == "version" else normal(v) for k, v in value.items() if k not in NEW_FACTS}
    if isinstance(value, (list, tuple)):
        return [normal(v) for v in value if not (isinstance(v, str) and NEW_LINES.match(f"- {v}"))]
    return value


def mended(value):
    """Normal text or values of 0.1.0, but for epsilon without amplification where nothing bounds it.

    Those are runs of DPIS, and several plans under a filter.
    """
    if isinstance(value, str):
        if "importance sampling, as executed" in value:
            bound = r"Without it epsilon would be \S+"
            return re.sub(bound, "Where somebody knows who was in which batch there is no guarantee.", value)
        return value.replace("epsilon would be 58.43.", "epsilon would be infinite.")  # of two plans under a filter
    if isinstance(value, dict):
        found = {k: mended(v) for k, v in value.items()}
        accountant = found.get("accountant")
        filtered = isinstance(accountant, dict) and accountant["name"] == "filter" and found["plans"] > 1
        return found | ({"epsilon_without_amplification": None} if filtered or found.get("adaptive") else {})
    return [mended(v) for v in value] if isinstance(value, (list, tuple)) else value


# ---- data and models -------------------------------------------------------------------------------------------


def rows(examples=90, shape=(6,), classes=3):
    """Points around class means."""
    rng = np.random.default_rng([5, examples, *shape])
    y = rng.integers(0, classes, examples)
    x = rng.normal(size=(classes, *shape))[y] + 0.4 * rng.normal(size=(examples, *shape))
    return x.astype("float32"), y.astype("int32")


def same_start(model, seed=11):
    """Weights that no framework drew, so that both start alike."""
    rng = np.random.default_rng(seed)
    model.set_weights([0.5 * rng.normal(size=w.shape).astype(w.dtype) for w in model.get_weights()])
    return model


def compiled(model, optimizer=None, loss=None, **options):
    optimizer = optimizer or keras.optimizers.SGD(0.2, momentum=0.9)
    if loss is None:
        loss = losses.SparseCategoricalCrossentropy(temperature=4.0, clip=0.5)
    if keras.backend.backend() == "tensorflow":
        options = {"jit_compile": False} | options
    model.compile(optimizer, loss=loss, metrics=["accuracy"], **options)
    return model


def spectral(**options):
    parts = [layers.BoundedInput((6,), norm=3.0, name="input_ball"), layers.SpectralDense(8, name="first")]
    parts += [layers.Bias(name="bias"), layers.Abs(name="abs"), layers.SpectralDense(3, name="last")]
    return compiled(same_start(lipdp.DP_Sequential(parts, name="spectral")), **options)


def plain(**options):
    parts = [keras.Input((6,)), keras.layers.Dense(8, "tanh", name="first"), keras.layers.Dense(3, name="last")]
    model = lipdp.DP_Model.from_keras(keras.Sequential(parts, name="plain"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(same_start(model), loss=loss, **options)


def pictures(**options):
    parts = [keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3, activation="relu", name="conv")]
    parts += [keras.layers.Flatten(name="flat"), keras.layers.Dense(3, name="last")]
    model = lipdp.DP_Model.from_keras(keras.Sequential(parts, name="pictures"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(same_start(model), loss=loss, **options)


def data_of(model):
    return rows(shape=tuple(model.input_shape[1:]))


def dpsgd(**arguments):
    return call(strategies.DPSGD, **arguments)


def shifted(**arguments):
    return dpsgd(views=2, augmentation=strategies.RandomShift(1, flip=True), **arguments)


# Model and strategy, made anew for each use.
STRATEGIES = {
    "clipless_global": (spectral, lambda: strategies.Clipless("global")),
    "clipless_per_layer": (spectral, lambda: strategies.Clipless("per_layer")),
    "clipless_optimal": (spectral, lambda: strategies.Clipless("optimal")),
    "clipless_quantile": (spectral, lambda: strategies.Clipless(quantile=0.5, quantile_rate=0.3)),
    "dpsgd_flat": (plain, lambda: dpsgd(clip_norm=0.8)),
    "dpsgd_per_layer": (plain, lambda: dpsgd(clip_norm=0.8, clipping="per_layer")),
    "dpsgd_automatic": (plain, lambda: dpsgd(clip_norm=0.8, clipping="automatic")),
    "dpsgd_quantile": (plain, lambda: dpsgd(clip_norm=0.8, quantile=0.6)),
    "dpsgd_views": (pictures, lambda: shifted(clip_norm=0.8)),
    "adaclip_coordinate": (plain, lambda: strategies.AdaCliP(clip_norm=0.8)),
    "adaclip_layer": (plain, lambda: strategies.AdaCliP(clip_norm=0.8, granularity="layer", variance_momentum=0.5)),
    "dpis": (plain, lambda: strategies.DPIS(clip_norm=0.8)),
    "dpis_clip_scale": (plain, lambda: strategies.DPIS(0.8, clip_scale=1.5, norm_sum_noise=8.0, first_phase=0.5)),
    "dpis_count_noise": (plain, lambda: strategies.DPIS(0.8, count_noise=8.0, norm_sum_noise=8.0, growth=3.0)),
}

# With microbatches under every sampler, not Poisson's alone.
FULL = ("clipless_global", "clipless_per_layer", "clipless_optimal", "dpsgd_flat", "adaclip_coordinate")


def _others():
    """Single cases of further arguments of `fit`."""
    return {
        "clipless_filter": (spectral, "clipless", {"accountant": "filter", "epsilon": 3.0}),
        "clipless_persons": (spectral, "clipless", {"examples_per_person": 3, "noise_multiplier": 3.0}),
        "clipless_budget": (spectral, "clipless", {"epsilon": 2.0, "training_metrics": False}),
        "clipless_stops_at_budget": (spectral, "clipless", {"epsilon": 3.2, "noise_multiplier": 1.0}),
        "clipless_executions": (lambda: spectral(steps_per_execution=3), "clipless", {"noise_multiplier": 1.0}),
        "clipless_capacity": (
            spectral,
            "clipless",
            {"noise_multiplier": 1.0, "sampling": Sampling("truncated_poisson", capacity=21)},
        ),
        "clipless_xla": (lambda: spectral(jit_compile=True), "clipless", {"noise_multiplier": 1.0}),
        "dpsgd_xla": (lambda: plain(jit_compile=True), "dpsgd", {"noise_multiplier": 1.0, "physical_batch_size": 8}),
        "dpsgd_split": (plain, "dpsgd", {"noise_multiplier": 1.0, "validation_split": 0.2}),
        "dpsgd_adam": (lambda: plain(optimizer=keras.optimizers.Adam(0.05)), "dpsgd", {"noise_multiplier": 1.0}),
        "dpsgd_rdp": (plain, "dpsgd", {"epsilon": 3.0, "accountant": "rdp"}),
    }


def seeded_cases() -> dict:
    """Name -> (model, strategy, arguments of `fit`), the first two to be called."""
    found = {}
    for name, (model, strategy) in STRATEGIES.items():
        adaptive = name.startswith("dpis")
        for sampling in SAMPLERS[:1] if adaptive else SAMPLERS:
            for chunk in (None, 8) if sampling == "poisson" or name in FULL else (None,):
                arguments = {"epsilon": 4.0} if adaptive else {"noise_multiplier": 1.0, "sampling": sampling}
                if chunk:
                    arguments["physical_batch_size"] = chunk
                label = f"{name}/{sampling}/{'microbatches' if chunk else 'whole'}"
                found[label] = (model, strategy, arguments)
    for name, (model, strategy, arguments) in _others().items():
        found[f"other/{name}"] = (model, lambda strategy=strategy: strategy, arguments)
    return found


def seeded(name: str) -> dict:
    """What a case gives: six updates, of which the sixth begins the second pass over 90 rows in batches of 20."""
    make, strategy, arguments = seeded_cases()[name]
    keras.utils.set_random_seed(0)
    model = make()
    history = train(model, strategy=strategy(), **arguments)
    return result(model, history)


def train(model, data=None, **arguments):
    settings = {"batch_size": 20, "epochs": 2, "steps_per_epoch": 3, "delta": DELTA, "seed": 17, "verbose": 0}
    return call(model.fit, *(data or data_of(model)), **settings | arguments)


def numbers(values) -> list:
    """Sum, norm and the first entries of each array."""
    found = []
    for value in values:
        flat = np.asarray(value, "float64").ravel()
        found.append([float(flat.sum()), float(np.linalg.norm(flat)), *map(float, flat[:3])])
    return found


def result(model, history=None) -> dict:
    found = {
        "weights": numbers(model.get_weights()),
        "noise_std": [float(s) for s in keras.ops.convert_to_numpy(model.optimizer.noise_std)],
        "privacy": facts(model.privacy),
    }
    if history is not None:
        found["history"] = {k: [float(v) for v in values] for k, values in history.history.items()}
    return found


def facts(privacy) -> dict:
    """What is stated, without the sentences that are the same everywhere."""
    values = privacy.to_dict(groups=())
    return {k: v for k, v in values.items() if k not in ("covered", "not_covered")}


def digest(values) -> str:
    """A checksum of arrays, bit for bit."""
    state = hashlib.sha256()
    for value in values:
        value = np.ascontiguousarray(value)
        state.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
    return state.hexdigest()


def stop_at(model, update):
    """Stops `fit` after so many updates, within an epoch if need be."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if model.privacy.updates >= update:
                self.model.stop_training = True

    return [Stop()]
