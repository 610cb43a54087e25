"""What every layer must do besides its bounds: shapes, configuration, files, one example at a time."""

import inspect
import json
import math

import keras
import numpy as np
import pytest

from lipdp import bounds, diffusion, layers, models, strategies
from tests.helpers.adversary import Probe, top, weight_settings
from tests.helpers.layer_cases import ALL, MERGES, OWN, TOKENS

KERNELS = [c for c in OWN if any(part in c.name for part in ("conv", "Conv", "dense", "Mixing"))]


def examples(case, size=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, *shape)).astype("float32") for shape in case.shapes]


# One of the activations, which all work entry by entry.
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "case",
    [c for c in ALL if not c.name.startswith("activation_") or c.name.endswith("_gelu")],
    ids=lambda case: case.name,
)
def test_rows_do_not_see_each_other(case):
    probe = Probe(case.make(), *case.shapes)
    xs, others = examples(case), examples(case, seed=1)
    others = [np.concatenate([x[:1], 100.0 * o[1:]]) for x, o in zip(xs, others, strict=True)]
    g = np.random.default_rng(2).standard_normal((3, *probe.output_shape))
    g_other = np.concatenate([g[:1], -7.0 * g[1:]])
    value, gradients, _ = probe.pull(xs, g)
    other_value, other_gradients, _ = probe.pull(others, g_other)
    np.testing.assert_array_equal(value[0], other_value[0])
    for a, b in zip(gradients, other_gradients, strict=True):
        np.testing.assert_array_equal(a[0], b[0])


@pytest.mark.backend_free
@pytest.mark.parametrize("case", {c.name[:8]: c for c in OWN}.values(), ids=lambda case: case.name)
def test_shape_is_announced_and_configuration_survives(case, tmp_path):
    (x,) = examples(case)
    layer = case.make()
    model = keras.Sequential([keras.Input(case.shapes[0]), layer])
    y = keras.ops.convert_to_numpy(model(x))
    assert layer.compute_output_shape((3, *case.shapes[0])) == y.shape
    assert layer.compute_output_shape((None, *case.shapes[0])) == (None, *y.shape[1:])
    assert tuple(model.output_shape) == (None, *y.shape[1:])

    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    arguments = inspect.signature(type(layer).__init__).parameters.keys() - {"self", "kwargs"}
    assert arguments <= layer.get_config().keys()

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded(x)), y)
    assert [type(v.constraint) for v in loaded.weights] == [type(v.constraint) for v in model.weights]


def holds(variable):
    value, constraint = keras.ops.convert_to_numpy(variable), getattr(variable, "constraint", None)
    return np.isfinite(value).all() and (not hasattr(constraint, "holds") or constraint.holds(value))


@pytest.mark.backend_free
@pytest.mark.parametrize("case", {type(c.make()): c for c in OWN}.values(), ids=lambda case: case.name)
def test_keras_may_build_a_layer_while_it_traces_a_prediction(case):
    (x,), layer = examples(case), case.make()
    model = keras.Sequential([layer])  # without an input, so that only the first batch tells the shape
    assert model.predict(x, verbose=0).shape == layer.compute_output_shape(x.shape)
    assert all(map(holds, layer.weights))


def test_keras_may_build_layers_while_it_traces_a_step():
    stack = [layers.SpectralConv2D(3, 3), layers.Flatten(), layers.SpectralDense(2)]
    model = keras.Sequential(stack)
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    model.fit(np.ones((2, 4, 4, 1), "float32"), np.zeros((2, 2), "float32"), verbose=0)
    assert len(model.weights) == 2
    assert all(map(holds, model.weights))


@pytest.mark.backend_free
@pytest.mark.parametrize("case", {c.name[:4]: c for c in OWN}.values(), ids=lambda case: case.name)
def test_names_and_dtypes_are_kept(case):
    layer = case.make()
    layer = type(layer).from_config({**layer.get_config(), "name": "mine", "trainable": False})
    probe = Probe(layer, *case.shapes)
    assert layer.name == "mine"
    assert probe.variables == []
    assert layer(examples(case)[0]).dtype in ("float32", keras.ops.zeros((), "float32").dtype)


@pytest.mark.backend_free
@pytest.mark.parametrize("case", KERNELS, ids=lambda c: c.name)
def test_kernels_start_in_the_ball_and_are_nearly_orthonormal(case):
    probe = Probe(case.make(), *case.shapes)
    (variable,) = probe.variables
    kernels = variable.constraint.matrices(keras.ops.convert_to_numpy(variable))
    values = np.linalg.svd(kernels, compute_uv=False)
    assert values.max() <= 1.0
    assert values.min() >= 0.999


@pytest.mark.parametrize("initializer", ["ones", "random_normal", keras.initializers.Constant(50.0)])
def test_any_initializer_is_projected(initializer):
    for layer, shape in (
        (layers.SpectralDense(5, kernel_initializer=initializer), (7,)),
        (layers.SpectralConv2D(4, 3, kernel_initializer=initializer), (6, 6, 2)),
    ):
        probe = Probe(layer, shape)
        kernel = keras.ops.convert_to_numpy(probe.variables[0])
        assert np.linalg.norm(kernel.reshape(-1, kernel.shape[-1]).astype("float64"), 2) <= 1.0 + 1e-6
        assert bounds.rules(layer).input_lipschitz((1.0,)) == (1.0,)


@pytest.mark.backend_free
@pytest.mark.parametrize("case", KERNELS, ids=lambda c: c.name)
def test_trained_lipschitz_is_the_norm_of_the_trained_layer_from_above(case):
    probe = Probe(case.make(), *case.shapes)
    (variable,) = probe.variables
    zero = np.zeros((1, *case.shapes[0]))
    for setting in weight_settings(variable, np.random.default_rng(0))[1::3]:
        variable.assign(5.0 * setting.astype("float32"))
        kernels = variable.constraint.matrices(keras.ops.convert_to_numpy(variable))
        unfold = np.linalg.svd(kernels, compute_uv=False).max()
        (found,) = bounds.rules(probe.model.layers[-1]).trained_lipschitz((1.0,))
        assert top(probe.input_jacobians(zero)[0]) * (1 - 1e-5) <= found <= unfold * (1 + 1e-5)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: layers.BoundedInput(norm=0.0), r"`norm` must be a number in \[1e-6, 1e6\].*0\.0"),
        (lambda: layers.BoundedInput(norm=float("nan")), "`norm` must be.*nan"),
        (lambda: layers.BoundedInput(norm="1"), "`norm` must be.*'1'"),
        (lambda: layers.BoundedInput(mode="center"), "`mode` must be.*'center'"),
        (lambda: layers.SpectralDense(0), "`units` must be a positive integer.*0"),
        (lambda: layers.SpectralDense(2.5), "`units` must be a positive integer.*2.5"),
        (lambda: layers.SpectralDense(3, kernel_regularizer="l2"), "kernel_regularizer"),
        (lambda: layers.SpectralDense(3, activation="relu"), "activation"),
        (lambda: layers.SpectralDense(3, use_bias=True), "use_bias"),
        (lambda: layers.SpectralDense(3, kernel_initializer="nobody"), "nobody"),
        (lambda: layers.SpectralConv2D(0, 3), "`filters` must be a positive integer.*0"),
        (lambda: layers.SpectralConv2D(2, 0), "`kernel_size` must be.*0"),
        (lambda: layers.SpectralConv2D(2, (3, 3, 3)), r"`kernel_size` must be.*\(3, 3, 3\)"),
        (lambda: layers.SpectralConv2D(2, 3, strides=-1), "`strides` must be.*-1"),
        (lambda: layers.SpectralConv2D(2, 3, strides=1.5), "`strides` must be.*1.5"),
        (lambda: layers.SpectralConv2D(2, 3, padding="circular"), "`padding` must be.*'circular'"),
        (lambda: layers.SpectralConv2D(2, 3, strides=2, dilation_rate=2), "cannot both be above 1"),
        (lambda: layers.SpectralConv2D(3, 3, groups=2), "`groups` must divide `filters`.*groups=2, filters=3"),
        (lambda: layers.SpectralConv1D(2, (3, 3)), r"`kernel_size` must be a positive integer.*\(3, 3\)"),
        (lambda: layers.SpectralConv3D(2, 3, dilation_rate=2), "no dilated 3-D"),
        (lambda: layers.SpectralDepthwiseConv2D(3, depth_multiplier=0), "`depth_multiplier` must be.*0"),
        (lambda: layers.SpectralDepthwiseConv2D(3, strides=(1, 2)), "must be equal"),
        (lambda: layers.SpectralConv2DTranspose(2, 3, dilation_rate=2), "must be 1"),
        (lambda: layers.OrthogonalPatchConv2D(0, 2), "`filters` must be a positive integer.*0"),
        (lambda: layers.BoundedEmbedding(0, 2), "`input_dim` must be.*0"),
        (lambda: layers.BoundedEmbedding(3, 2, max_norm=0.0), "`max_norm` must be.*0.0"),
        (lambda: layers.ResidualAverage(1.5), r"`weight` must be a number in \[0, 1\].*1.5"),
        (lambda: layers.ClipGradient(0.0), "`norm` must be.*0.0"),
        (lambda: layers.Bias(0.0), "`max_norm` must be a finite number above 0.*0.0"),
        (lambda: layers.Bias(float("inf")), "`max_norm` must be a finite number above 0.*inf"),
        (lambda: layers.GroupSort(3), "`group_size` must be 2.*3"),
        (lambda: layers.GroupSort(k_coef_lip=3.0), "k_coef_lip"),
        (lambda: layers.L2NormPooling2D(0), "`pool_size` must be.*0"),
        (lambda: layers.L2NormPooling2D((2, 2, 2)), "`pool_size` must be"),
        (lambda: layers.ScaledAveragePooling2D(0), "`pool_size` must be.*0"),
        (lambda: layers.LayerCentering(axis=0), "axis 0 is the batch.*axis=0"),
        (lambda: layers.LayerCentering(axis=(0, 1)), "axis 0 is the batch"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        make()


@pytest.mark.parametrize(
    "make, shape, message",
    [
        (lambda: layers.Bias(), (None, 3), "a known size on every axis but the batch"),
        (lambda: layers.BoundedInput(), (None, 3), "a known size on every axis but the batch"),
        (lambda: layers.GroupSort(), (4, 3), "even, known last axis"),
        (lambda: layers.LayerCentering(axis=-3), (4, 3), "axis 0 is the batch"),
        (lambda: layers.LayerCentering(axis=5), (4, 3), "axis 0 is the batch"),
        (lambda: layers.SpectralConv2D(2, 5, padding="valid"), (3, 3, 1), "does not fit into its input"),
        (lambda: layers.SpectralConv2D(2, 3, padding="valid", dilation_rate=2), (4, 9, 1), "does not fit"),
        (lambda: layers.SpectralConv1D(2, 3), (4, 4, 1), "reads inputs with 1 spatial axes"),
        (lambda: layers.SpectralConv2D(2, 3, groups=2), (4, 4, 3), "that `groups` divides"),
        (lambda: layers.OrthogonalPatchConv2D(4, 2), (5, 4, 1), "fill exactly"),
        (lambda: layers.InvertibleDownSampling2D(2), (4, 5, 1), "fill exactly"),
        (lambda: layers.LowFrequencies2D(5), (4, 5, 1), "at least as many pixels"),
        (lambda: layers.LowFrequencies2D(2), (4, None, 1), "at least as many pixels"),
        (lambda: layers.LowFrequencies2D(2), (4, 4), "needs images"),
        (lambda: layers.InvertibleUpSampling2D(2), (4, 4, 3), "multiple of 4 channels"),
        (lambda: layers.TokenMixing(4), (None, 3), "mixes the tokens"),
        (lambda: layers.Householder(), (3,), "even, known last axis"),
        (lambda: layers.BoundedEmbedding(4, 2), (None,), "a known size on every axis but the batch"),
        (lambda: layers.L2NormPooling2D(3), (2, 5, 1), "does not fit into its input"),
        (lambda: layers.ScaledAveragePooling2D(3), (5, 2, 1), "does not fit into its input"),
        # Each volume became several rows.
        (lambda: layers.GlobalL2NormPooling2D(), (3, 4, 4, 2), "needs images"),
    ],
)
def test_inputs_that_do_not_fit_are_named(make, shape, message):
    with pytest.raises(ValueError, match=message):
        make()(keras.Input(shape))


CARRYING = [c for c in [*OWN, *MERGES, *TOKENS] if c not in MERGES or c.name == "residual"]


def with_each(value, replace):
    """Returns the value with `replace` applied to the numbers in it; None where there is no number."""
    if isinstance(value, (tuple, list)):
        return [replace(v) for v in value] if value and not isinstance(value[0], str) else None
    return replace(value) if isinstance(value, (bool, int, float)) else None


@pytest.mark.parametrize("case", CARRYING, ids=lambda case: case.name)
def test_numpy_scalars_are_numbers_and_bools_are_not(case):
    layer = case.make()
    config = layer.get_config()
    numbers = {k: v for k, v in config.items() if k not in ("name", "trainable", "dtype")}
    kinds = {bool: np.bool_, int: np.int64, float: np.float32}
    scalars = {k: with_each(v, lambda number: kinds[type(number)](number)) for k, v in numbers.items()}
    copy = type(layer)(**{**config, **{k: v for k, v in scalars.items() if v is not None}})
    kept, expected = (json.loads(json.dumps(other.get_config())) for other in (copy, layer))
    for name, value in expected.items():
        assert kept[name] == (pytest.approx(value, rel=1e-6) if with_each(value, float) else value)
    for name, value in numbers.items():
        wrong = with_each(value, lambda number: int(number) if isinstance(number, bool) else True)
        if wrong is not None:
            with pytest.raises(ValueError, match=f"`{name}` must be"):
                type(layer)(**{**config, name: wrong})


@pytest.mark.parametrize("case", CARRYING, ids=lambda case: case.name)
def test_formulas_of_the_tables_say_what_the_bounds_are(case):
    layer = case.make()
    norms = (2.0,) * len(case.shapes)
    bound = {"-": (), "‖g‖": (3.0,), "‖x‖ ‖g‖": (6.0,)}[layer.gradient_formula]
    assert set(layer.parameter_bounds(norms, 3.0)) == set(bound)
    values = {"sqrt": math.sqrt, "M": getattr(layer, "multiplicity", None), "w": getattr(layer, "weight", None)}
    formula = layer.lipschitz_formula.partition(";")[0]
    constants = [math.inf if part == "none: tokens" else eval(part, values) for part in formula.split(" and ")]
    assert layer.input_lipschitz(norms) == tuple(constants)


def test_every_layer_has_a_case_and_a_summary():
    own = {v for v in vars(layers).values() if isinstance(v, type) and issubclass(v, layers.LipschitzLayer)}
    # The constants of two follow from what `fit` releases, see `test_normalization` and `test_rescaling`.
    released = {layers.PrivateNormalization, layers.PrivateRescaling}
    without = {layers.LipschitzLayer, layers.Deskew2D, layers.EncoderFeatures2D, layers.PatchFeatures2D} | released
    assert own - without == {type(case.make()) for case in CARRYING}
    assert all(kind.__doc__.splitlines()[0].endswith((".", ":")) for kind in own)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: layers.SpectralConv2D(2, 3)(x),
        lambda x: layers.OrthogonalPatchConv2D(2, 2)(x),
        lambda x: layers.LowFrequencies2D(2)(x),
        lambda x: layers.L2NormPooling2D(2)(x),
        lambda x: layers.GlobalL2NormPooling2D()(x),
        lambda x: layers.ScaledAveragePooling2D(2)(x),
        lambda x: layers.InvertibleDownSampling2D(2)(x),
        lambda x: layers.InvertibleUpSampling2D(2)(x),
        lambda x: strategies.RandomShift(2)(x, np.array([1, 2], "uint32")),
        lambda x: diffusion.unet((8, 8, 1), channels=8, multipliers=(1,), blocks=1, slim=True),
        lambda x: models.wide_resnet((8, 8, 1), 2, depth=10, width=1),
    ],
)
def test_images_with_channels_first_are_refused(use):
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        with pytest.raises(ValueError, match="channels-last images only"):
            use(np.zeros((1, 4, 8, 8), "float32"))
    finally:
        keras.config.set_image_data_format(before)


@pytest.mark.parametrize(
    ("make", "shape", "name", "value"),
    [
        (lambda: layers.Bias(0.5), (4,), "max_norm", 1e-3),
        (lambda: layers.SpectralConv2D(4, 3, strides=2), (6, 6, 1), "strides", (1, 1)),
        (lambda: layers.SpectralDense(4, projected=False), (4,), "projected", True),
        (lambda: layers.BoundedInput(norm=1.0), (4,), "norm", 2.0),
        (lambda: layers.L2NormPooling2D(2), (4, 4, 1), "strides", (1, 1)),
        (lambda: layers.SpectralDepthwiseConv2D(3), (4, 4, 2), "groups", 1),
        (lambda: layers.BoundedEmbedding(4, 2), (3,), "max_norm", 0.1),
    ],
)
def test_what_a_layer_was_made_with_is_fixed_once_it_is_built(make, shape, name, value):
    """Bounds followed the change; constraints and compiled steps did not: gradients up to 2.4 times their bound."""
    layer = make()
    setattr(layer, name, getattr(layer, name))
    model = keras.Sequential([keras.Input(shape), layer])
    before = getattr(layer, name)
    with pytest.raises(AttributeError, match=rf"`{name}` of layer '{layer.name}' is fixed once the layer is built"):
        setattr(layer, name, value)
    assert getattr(layer, name) == before
    layer.trainable = False
    keras.models.clone_model(model)


def test_a_layer_of_ones_own_may_name_what_every_layer_has():
    class Own(layers.LipschitzLayer):
        def __init__(self, trainable=True, name=None, scale=1.0):
            super().__init__(trainable=trainable, name=name)
            self.scale = scale

        def call(self, inputs):
            self.calls = getattr(self, "calls", 0) + 1
            return inputs

    layer = Own()
    layer(np.ones((1, 2), "float32"))
    layer.trainable = False
    with pytest.raises(AttributeError, match="`scale`"):
        layer.scale = 2.0


@pytest.mark.backend_free
@pytest.mark.parametrize("shapes", [((3, 4), (3, 1)), ((3, 4), (1, 4)), ((None, 4), (None, 4)), ((4,), (4,), (4,))])
def test_an_average_of_what_may_broadcast_is_refused(shapes):
    """An axis of unknown size may turn out to be one: the sum would then hold that input several times."""
    with pytest.raises(ValueError, match="two tensors of the same, known shape"):
        layers.ResidualAverage(0.5)([keras.Input(shape) for shape in shapes])
