"""What each tap of a kernel reads, for any geometry."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from lipdp.gradients.unfolding import Geometry


@st.composite
def geometries(draw):
    rank = draw(st.integers(1, 2))
    kernel, strides, dilation, sizes, padding = [], [], [], [], []
    for _ in range(rank):
        k, d = draw(st.integers(1, 4)), draw(st.integers(1, 2))
        before, after = draw(st.integers(-1, 2)), draw(st.integers(-1, 3))
        n = draw(st.integers(d * (k - 1) + 3, 12))
        kernel.append(k), strides.append(draw(st.integers(1, 3))), dilation.append(d), sizes.append(n)
        padding.append((before, after))
    return Geometry(tuple(kernel), tuple(strides), tuple(dilation), tuple(padding)), sizes


@pytest.mark.backend_free
@settings(max_examples=60, deadline=None)
@given(geometries(), st.booleans(), st.booleans())
def test_taps_read_what_the_definition_says(case, channels_first, same):
    geometry, sizes = case
    if same:
        geometry = Geometry(geometry.kernel, geometry.strides, geometry.dilation, None)
        places = [-(-n // s) for n, s in zip(sizes, geometry.strides, strict=True)]
    else:
        spans = [d * (k - 1) + 1 for k, d in zip(geometry.kernel, geometry.dilation, strict=True)]
        rest = zip(sizes, geometry.padding, spans, geometry.strides, strict=True)
        places = [(n + a + b - span) // s + 1 for n, (a, b), span, s in rest]
    rng = np.random.default_rng(0)
    image = rng.normal(size=(2, *sizes, 3)).astype("float32")
    given_image = np.moveaxis(image, -1, 1) if channels_first else image
    found = list(geometry.slices(ops.convert_to_tensor(given_image), places, channels_first))
    assert len(found) == math.prod(geometry.kernel)
    pads = geometry.pads(sizes, places)
    for tap, values in zip(itertools.product(*(range(k) for k in geometry.kernel)), found, strict=True):
        values = np.asarray(ops.convert_to_numpy(values))
        values = np.moveaxis(values, 1, -1) if channels_first else values
        assert values.shape == (2, *places, 3)
        for place in itertools.product(*(range(m) for m in places)):
            at = [
                m * s + t * d - a
                for m, s, t, d, (a, _) in zip(place, geometry.strides, tap, geometry.dilation, pads, strict=True)
            ]
            inside = all(0 <= i < n + min(b, 0) for i, n, (_, b) in zip(at, sizes, pads, strict=True))
            expected = image[(slice(None), *at)] if inside else np.zeros((2, 3))
            np.testing.assert_array_equal(values[(slice(None), *place)], expected)
