"""The attack on floating-point noise: a classifier that reads the rounding of x + ε.

Where a coordinate of x is 0, float32's x + ε keeps all the digits of ε; where it is 1/255, adding has rounded them
to a multiple of 2^-32. A black image and one that is 1/255 everywhere are only 0.217 apart in 3,072 dimensions, yet
some coordinate of the noisy black image nearly always gives it away. The theorem is not at fault: real-valued noise
has no digits to read. (Jin et al. 2022 give the general attack.)
"""

import numpy as np

from smoothcert import FixedN, GaussianNoise, GridGaussianNoise, Predict, Smoothed

BLACK = np.zeros((3, 32, 32), np.float32)
NEAR_BLACK = np.full_like(BLACK, 1 / 255)
DISTANCE = float(np.linalg.norm((NEAR_BLACK - BLACK).astype(np.float64)))
SIGMA = 0.5


def reads_the_rounding(batch):
    scaled = batch.double().flatten(1) * 2.0**32
    return (scaled != scaled.round()).any(dim=1).long()


def ask(noise, alpha=0.001):
    g = Smoothed(reads_the_rounding, SIGMA, 2, noise=noise, batch_size=256, seed=0)
    return g.certify(BLACK, FixedN(n=10_000, alpha=alpha)), g.predict(NEAR_BLACK, Predict(n=1000, alpha=alpha))


def test_float_noise_is_fooled_into_a_false_certificate():
    certificate, nearby = ask(GaussianNoise(SIGMA))
    assert DISTANCE < 0.22
    assert certificate.label == 1
    assert certificate.radius > 5 * DISTANCE
    assert nearby.label == 0  # another class, well inside the certified radius


def test_grid_noise_is_never_fooled():
    certificate, nearby = ask(GridGaussianNoise(SIGMA))
    assert certificate.label is not None
    assert certificate.radius > DISTANCE
    assert nearby.label == certificate.label
