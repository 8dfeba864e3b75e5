from __future__ import annotations

import pytest
import torch
from torch import nn

from smoothcert.errors import ConfigError, InputError, ModelError
from smoothcert.models.architectures import mlp
from smoothcert.training.loop import seeded, train

SETTINGS = {"sigma": 0.0, "epochs": 3, "batch_size": 16, "learning_rate": 0.1, "seed": 0}


def two_blobs(count: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around (0.2, …) and (0.8, …) in eight dimensions."""
    labels = torch.arange(count) % 2
    spread = 0.05 * torch.randn(count, 8, generator=torch.Generator().manual_seed(5))
    return 0.2 + 0.6 * labels[:, None] + spread, labels


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(**changes) -> nn.Module:
    return train(seeded(lambda: mlp(8, 16, classes=2), 0), *two_blobs(), **{**SETTINGS, **changes})


def test_learns_to_tell_two_classes_apart():
    images, labels = two_blobs()
    accuracy = (trained(epochs=10)(images).argmax(1) == labels).float().mean()
    assert accuracy == 1.0


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    assert torch.equal(weights(trained(sigma=0.1)), weights(trained(sigma=0.1)))
    assert not torch.equal(weights(trained(sigma=0.1)), weights(trained(sigma=0.1, seed=1)))


def test_seeded_gives_equal_initial_weights_and_leaves_the_global_state_alone():
    state = torch.get_rng_state()
    first, second = (seeded(lambda: mlp(8, 16), seed=3) for _ in range(2))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(seeded(lambda: mlp(8, 16), seed=4)))
    assert torch.equal(torch.get_rng_state(), state)


def test_training_neither_reads_nor_changes_the_global_random_state():
    state = torch.get_rng_state()
    first = weights(trained(sigma=0.5))
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(weights(trained(sigma=0.5)), first)


class Recorder(nn.Module):
    """Keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(8, 2), []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.layer(x)


def test_the_model_sees_gaussian_noise_of_that_sigma_fresh_at_every_step():
    images, labels = torch.full((256, 8), 0.5), torch.arange(256) % 2
    model = Recorder()
    train(model, images, labels, **{**SETTINGS, "sigma": 0.3, "epochs": 10, "batch_size": 256})
    noise = torch.stack(model.seen) - 0.5  # [10, 256, 8]
    # 20,480 draws: the standard error of their deviation is 0.0015, of a correlation over 2,048 0.022
    assert noise.std().item() == pytest.approx(0.3, abs=0.008)
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    steps = torch.corrcoef(noise.flatten(1)) - torch.eye(10)
    assert steps.abs().max() < 0.12


def test_sigma_0_shows_the_clean_images_every_one_once_per_epoch():
    images, labels = two_blobs(50)
    model = Recorder()
    train(model, images, labels, **{**SETTINGS, "epochs": 1})
    shown = torch.cat(model.seen)
    assert sorted(shown.tolist()) == sorted(images.tolist())
    assert not torch.equal(shown, images)  # in another order


def test_reports_the_mean_loss_of_each_epoch_and_it_falls():
    losses = []
    trained(epochs=8, on_epoch=lambda epoch, loss: losses.append((epoch, loss)))
    assert [epoch for epoch, _ in losses] == list(range(8))
    assert losses[-1][1] < 0.5 * losses[0][1]


def test_trains_in_training_mode_and_restores_the_mode_it_found():
    modes = []
    model = nn.Sequential(nn.Linear(8, 2)).eval()
    model.register_forward_hook(lambda module, *_: modes.append(module.training))
    train(model, *two_blobs(), **SETTINGS)
    assert all(modes)
    assert not model.training


def test_leaves_no_gradients_behind():
    assert all(p.grad is None for p in trained().parameters())


def test_a_loss_that_is_not_finite_stops_the_training_and_says_what_to_do():
    with pytest.raises(ModelError, match=r"Training diverged: the loss became .* Lower the learning rate"):
        trained(learning_rate=1e30)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sigma": -0.1}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"sigma": float("inf")}, "sigma"),
        ({"epochs": 0}, "epochs"),
        ({"seed": 2**63}, "seed"),
        ({"epochs": 1.5}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
    ],
)
def test_refuses_settings_it_cannot_train_with(changes, named):
    with pytest.raises(ConfigError, match=f"Expected `{named}`"):
        trained(**changes)


def test_refuses_integer_images_and_a_missing_label():
    images, labels = two_blobs()
    model = mlp(8, classes=2)
    with pytest.raises(InputError, match="floating-point images"):
        train(model, (images * 255).byte(), labels, **SETTINGS)
    with pytest.raises(InputError, match="128 labels"):
        train(model, images, labels[:-1], **SETTINGS)
