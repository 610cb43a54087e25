"""The plot of noise levels: a drawing that says what the configurations do."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from lipdp import diffusion
from lipdp.report.noise_levels import noise_levels

pytestmark = pytest.mark.backend_free


def medians(description) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"([\w-]+) (\d+\.\d+)[,.]", description)}


def test_the_four_configurations():
    title, description, svg = noise_levels()
    assert ElementTree.fromstring(svg).tag.endswith("svg") and noise_levels()[2] == svg
    found = medians(description)
    assert list(found) == ["VP", "VE", "v-prediction", "EDM"]
    # The finding of the paper: v-prediction stresses higher noise than EDM does.
    assert found["VE"] < found["EDM"] < found["VP"] < found["v-prediction"]
    # EDM is the reference, so its curve is its own log-normal law: median exp(-1.2).
    assert found["EDM"] == pytest.approx(0.301, abs=0.001)


def test_configurations_of_the_user():
    _, description, svg = noise_levels({"mine": diffusion.EDM(p_mean=0.0)})
    assert medians(description)["mine"] == pytest.approx(1.0, abs=0.02) and ">mine<" in svg
    with pytest.raises(ValueError, match="Unknown denoiser"):
        noise_levels(["mine"])
