"""What `certify` does when it is not told how: few draws, under the same guarantee."""

import json

import numpy as np
import pytest
from torch import nn

from smoothcert import Certificate, FixedN, Grid, Planned, Predict, SequentialPredict, Smoothed
from smoothcert.errors import ConfigError, InputError

IMAGE = (np.arange(64).reshape(8, 8) + np.array([0, 5, 25]).reshape(3, 1, 1)).astype(np.uint8)
CLEAR = (np.arange(64).reshape(8, 8) + np.array([0, 5, 150]).reshape(3, 1, 1)).astype(np.uint8)
GREY = np.full((3, 8, 8), 100, np.uint8)
RADII = (0.0, 0.25, 0.5, 0.75, 1.0)


class Means(nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3))


@pytest.fixture
def g():
    return Smoothed(Means(), 0.5, seed=0, batch_size=256)


def test_without_settings_a_radius_is_planned(g):
    certificate = g.certify(CLEAR)
    assert certificate.procedure == {
        "name": "Planned",
        "alpha": 0.001,
        "n_max": 100_000,
        "rival": True,
        "effort": "balanced",
        "margin": 0.0,
    }
    assert certificate.label == 2
    assert certificate.draws < 100_000


def test_with_radii_the_grid_decides_which_hold(g):
    certificate = g.certify(CLEAR, radii=RADII)
    assert certificate.procedure["name"] == "Grid"
    assert certificate.procedure["radii"] == list(RADII)
    assert certificate.label == 2
    assert any(radius <= certificate.radius < radius + 1e-9 for radius in RADII)
    assert certificate.draws < 20_000


def test_a_radius_of_zero_can_be_claimed_and_is_no_abstention(g):
    certificate = g.certify(IMAGE, radii=(0.0,))
    assert certificate.label == 2
    assert 0 < certificate.radius < 1e-9


def test_the_paper_s_procedure_goes_by_its_name(g):
    certificate = g.certify(IMAGE, "paper", n_max=2000, alpha=0.01)
    assert certificate == g.certify(IMAGE, FixedN(n=2000, alpha=0.01))


def test_known_labels_are_tested_input_by_input(g):
    batch = np.stack([CLEAR, CLEAR, GREY])
    right, wrong, grey = g.certify(batch, radii=RADII, label=[2, 0, 1], index=5)
    assert right.label == 2
    assert (wrong.label, grey.label) == (None, None)
    assert wrong.draws <= 400  # hopeless at once
    assert wrong.bounds.reason == "futile"
    assert right == g.certify(CLEAR, radii=RADII, label=2, index=5)


def test_certificates_say_why_they_stopped(g):
    assert g.certify(CLEAR, radii=(0.0, 0.25)).bounds.reason == "claimed"
    assert g.certify(GREY, index=0).bounds.reason == "futile"
    assert g.certify(CLEAR).bounds.reason == "budget"
    assert "claimed" in repr(g.certify(CLEAR, radii=(0.0, 0.25)))
    assert "futile" in g.certify(GREY, index=0)._repr_html_()


def test_results_of_every_procedure_survive_json(g):
    for result in (g.certify(IMAGE, radii=RADII), g.certify(IMAGE), g.certify(GREY, radii=RADII)):
        assert Certificate.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_effort_in_words_and_numbers(g):
    quick, full = (g.certify(IMAGE, effort=effort).draws for effort in ("quick", "full"))
    assert quick < full
    assert g.certify(IMAGE, effort=1e-6).procedure["effort"] == 1e-6
    with pytest.raises(ConfigError, match="balanced"):
        g.certify(IMAGE, effort="balanecd")


def test_predictions_are_sequential_by_default(g):
    prediction = g.predict(CLEAR)
    assert prediction.procedure["name"] == "SequentialPredict"
    assert prediction.label == 2
    assert prediction.draws < 200
    assert g.predict(CLEAR, "paper", n_max=100) == g.predict(CLEAR, Predict(n=100))
    assert g.predict(CLEAR, SequentialPredict(n_max=1000)).label == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"procedure": "papr"}, "paper"),
        ({"procedure": FixedN(), "radii": (0.0,)}, "radii"),
        ({"procedure": Planned(), "alpha": 0.01}, "alpha"),
        ({"procedure": "paper", "radii": (0.0,)}, "radii"),
        ({"label": 2}, "radii"),
        ({"radii": ()}, "radii"),
        ({"radii": (0.5, 0.25)}, "radii"),
        ({"radii": (0.0,), "alpha": 0.7}, "alpha"),
        ({"n_max": 0}, "n_max"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(g, settings, message):
    with pytest.raises(ConfigError, match=message):
        g.certify(IMAGE, **settings)


def test_labels_must_be_as_many_as_inputs_and_classes_of_the_model(g):
    with pytest.raises(InputError, match="2"):
        g.certify(np.stack([IMAGE, IMAGE]), radii=RADII, label=[0, 1, 2])
    with pytest.raises(InputError, match="label"):
        g.certify(IMAGE, radii=RADII, label=7)
    with pytest.raises(InputError, match="label"):
        g.certify(IMAGE, radii=RADII, label=-1)


def test_a_grid_needs_the_sigma_of_its_classifier(g):
    with pytest.raises(ConfigError, match="sigma"):
        g.certify(IMAGE, Grid(radii=RADII, sigma=0.25))


def test_many_inputs_share_their_batches():
    sizes = []

    class Spy(Means):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    g = Smoothed(lambda batch: Spy()(batch), 0.5, seed=0, batch_size=500)
    batch = np.stack([np.roll(IMAGE, i) for i in range(40)])
    together = g.certify(batch, radii=RADII)
    full = sum(size for size in sizes if size == 500)
    assert full > 0.8 * sum(sizes)
    assert together[:3] == [g.certify(x, radii=RADII) for x in batch[:3]]
