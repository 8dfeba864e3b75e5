"""What the checkpoints of these tests say about their network, and how the votes of any model are drawn."""

import numpy as np

from smoothcert import FixedN, Smoothed
from smoothcert.models.checkpoints import Blueprint

BLUEPRINT = Blueprint(
    architecture="small-cnn",
    num_classes=10,
    input_shape=(1, 8, 8),
    classes=tuple("0123456789"),
    sigma=0.25,
    data="digits (train)",
    training={"recipe": "gaussian", "epochs": 8, "seed": 0},
)

PROCEDURE = FixedN(n=2_000, n0=50, alpha=0.01)


def votes(model, inputs, **settings):
    results = Smoothed(model, 0.25, seed=3, progress=False, **settings).certify(inputs, PROCEDURE, index=0)
    return np.array([result.stages[1].counts for result in results])
