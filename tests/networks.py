"""What the checkpoints of these tests say about their network."""

from smoothcert.models.checkpoints import Recipe

RECIPE = Recipe(
    architecture="small-cnn",
    num_classes=10,
    input_shape=(1, 8, 8),
    classes=tuple("0123456789"),
    sigma=0.25,
    data="digits (train)",
    training={"recipe": "gaussian", "epochs": 8, "seed": 0},
)
