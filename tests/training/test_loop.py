from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from smoothcert.data.dataset import ArrayData
from smoothcert.errors import ConfigError, InputError, ModelError
from smoothcert.models.architectures import mlp
from smoothcert.training.augmentations import WARP_NUMBERS, warped
from smoothcert.training.batches import Batches
from smoothcert.training.engine import Engine
from smoothcert.training.loop import Trainer, seeded, train
from smoothcert.training.recipes import RECIPES, Draws
from smoothcert.training.recipes.smoothadv import SmoothAdv
from smoothcert.training.recipes.smoothmix import SmoothMix
from smoothcert.training.settings import TrainSettings, suitable_augmentations

CPU = torch.device("cpu")


def two_blobs(count: int = 128) -> ArrayData:
    """Points around (0.2, …) and (0.8, …) in eight dimensions."""
    labels = torch.arange(count) % 2
    spread = 0.05 * torch.randn(count, 8, generator=torch.Generator().manual_seed(5))
    inputs = 0.2 + 0.6 * labels[:, None] + spread
    return ArrayData(inputs.numpy(), labels.numpy(), None, "tensors")


def settings(**changes) -> TrainSettings:
    chosen = {"sigma": 0.0, "epochs": 3, "batch_size": 16, "learning_rate": 0.1, "seed": 0, "device": "cpu"}
    return TrainSettings(**{**chosen, **changes})


def network() -> nn.Module:
    return seeded(lambda: mlp(8, 16, classes=2), 0)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(on_epoch=None, **changes) -> nn.Module:
    return train(network(), two_blobs(), settings(**changes), on_epoch=on_epoch)


def trainer(count: int = 128, engine: Engine | None = None, **changes) -> Trainer:
    return Trainer(network(), two_blobs(count), settings(**changes), engine)


# ---- what a training does ----------------------------------------------------------------------------------------


def test_learns_to_tell_two_classes_apart():
    data = two_blobs()
    answers = trained(epochs=10)(torch.from_numpy(data.inputs)).argmax(1).numpy()
    assert (answers == data.labels).all()


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    assert torch.equal(weights(trained(sigma=0.1)), weights(trained(sigma=0.1)))
    assert not torch.equal(weights(trained(sigma=0.1)), weights(trained(sigma=0.1, seed=1)))
    assert not torch.equal(weights(trained(sigma=0.1, seed=None)), weights(trained(sigma=0.1, seed=None)))


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
    model = Recorder()
    data = ArrayData(np.full((256, 8), 0.5, np.float32), np.arange(256) % 2, None, "constant")
    train(model, data, settings(sigma=0.3, epochs=10, batch_size=256))
    noise = torch.stack(model.seen) - 0.5  # [10, 256, 8]
    # 20,480 draws: the standard error of their deviation is 0.0015, of a correlation over 2,048 0.022
    assert noise.std().item() == pytest.approx(0.3, abs=0.008)
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    steps = torch.corrcoef(noise.flatten(1)) - torch.eye(10)
    assert steps.abs().max() < 0.12


def test_sigma_0_shows_the_clean_images_every_one_once_per_epoch_in_ever_other_orders():
    data, model = two_blobs(50), Recorder()
    train(model, data, settings(epochs=2))
    assert [len(one) for one in model.seen] == [16, 16, 16, 2] * 2
    first, second = torch.cat(model.seen[:4]), torch.cat(model.seen[4:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(data.inputs.tolist())
    assert not torch.equal(first, torch.from_numpy(data.inputs))
    assert not torch.equal(first, second)


def test_reports_the_mean_loss_and_accuracy_of_each_epoch_over_all_its_inputs():
    seen, model, data = [], network(), two_blobs(50)  # the last batch has two inputs
    with torch.no_grad():
        scores, labels = model(torch.from_numpy(data.inputs)), torch.from_numpy(data.labels)
    train(model, data, settings(learning_rate=1e-9, epochs=2), on_epoch=lambda *given: seen.append(given))
    assert [epoch for epoch, _ in seen] == [0, 1]
    for _, progress in seen:
        assert progress.seen == 50
        assert progress.loss == pytest.approx(functional.cross_entropy(scores, labels).item(), rel=1e-5)
        assert progress.accuracy == pytest.approx((scores.argmax(1) == labels).double().mean().item())


def test_the_loss_falls_from_epoch_to_epoch():
    losses = []
    trained(epochs=8, on_epoch=lambda _, progress: losses.append(progress.loss))
    assert losses[-1] < 0.5 * losses[0]


def test_trains_in_training_mode_and_returns_the_same_network_in_eval_mode():
    modes = []
    model = nn.Sequential(nn.Linear(8, 2)).eval()
    model.register_forward_hook(lambda module, *_: modes.append(module.training))
    assert train(model, two_blobs(), settings()) is model
    assert len(modes) == 24
    assert all(modes)
    assert not model.training


def test_leaves_no_gradients_behind():
    assert all(p.grad is None for p in trained().parameters())


def test_a_loss_that_is_not_finite_or_far_too_high_stops_the_training_and_says_what_to_do():
    for rate in (1e30, 1e4):
        with pytest.raises(ModelError, match=r"Training diverged: the loss became .* Lower the learning rate"):
            trained(learning_rate=rate)


@pytest.mark.parametrize("after", [1, 2])
def test_a_network_that_forgets_all_it_knew_stops_the_training_and_says_what_to_do(after):
    model, seen = network(), []

    def forget(epoch: int, progress) -> None:
        seen.append(progress.accuracy)
        if epoch == after:
            nn.utils.vector_to_parameters(torch.zeros_like(weights(model)), model.parameters())
            list(model.parameters())[-1].data[0] = 5.0  # too far for the rest of the training

    chosen = settings(epochs=9, learning_rate=0.5, schedule="step", drop_every=1)
    message = r"Training collapsed: accuracy under noise fell from \d+.\d% to 50.0% in epoch \d, .* recipe gaussian"
    with pytest.raises(ModelError, match=message) as caught:
        train(model, two_blobs(), chosen, on_epoch=forget)
    assert f"in epoch {after + 2}," in str(caught.value)
    assert len(seen) == after + 2
    assert max(seen) > 0.75
    assert seen[-1] == 0.5


def test_a_network_that_has_not_learned_anything_yet_may_go_on():
    seen = []
    trained(learning_rate=1e-9, on_epoch=lambda _, progress: seen.append(progress.accuracy))
    assert len(seen) == 3
    assert max(seen) < 0.75


def test_a_part_of_the_loss_that_sets_in_late_is_not_taken_for_divergence():
    losses, recipe = [], "macer:deferred=0.75,copies=8,sharpness=1"
    chosen = {"sigma": 1.0, "epochs": 12, "learning_rate": 0.05}
    trained(recipe=recipe, on_epoch=lambda _, progress: losses.append(progress.loss), **chosen)
    assert losses[9] > 20 > 1 > losses[8]
    assert losses[9] > losses[10] > losses[11]


# ---- steps -------------------------------------------------------------------------------------------------------


def test_steps_are_stochastic_gradient_descent_with_momentum_and_decay_at_the_scheduled_rate():
    chosen = settings(momentum=0.8, weight_decay=0.01, lr_warmup=0.5)
    model, reference = network(), network()
    ours, velocity = Trainer(model, two_blobs(), chosen), torch.zeros(len(weights(reference)))
    for step in range(12):
        x, y = ours.batches.get(step)
        gradients = torch.autograd.grad(functional.cross_entropy(reference(x), y), reference.parameters())
        velocity = 0.8 * velocity + torch.cat([g.flatten() for g in gradients]) + 0.01 * weights(reference)
        moved = weights(reference) - chosen.rate(step / 8) * velocity
        nn.utils.vector_to_parameters(moved, reference.parameters())
        ours.advance()
        torch.testing.assert_close(weights(model), moved, rtol=1e-4, atol=1e-6)
    assert (weights(model) - weights(network())).norm() > 0.1


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({}, {0: 0.2, 2.5: 0.1 + 0.1 * math.sqrt(0.5), 5: 0.1, 7.5: 0.1 - 0.1 * math.sqrt(0.5), 10: 0.0}),
        ({"lr_warmup": 2.0}, {0: 0.0, 0.5: 0.05, 1: 0.1, 2: 0.2, 6: 0.1, 10: 0.0}),
        ({"schedule": "step", "drop_every": 3}, {0: 0.2, 2.99: 0.2, 3: 0.02, 5.99: 0.02, 6: 0.002, 9.5: 0.0002}),
        ({"schedule": "step", "drop_every": 3, "lr_warmup": 2.0}, {1: 0.1, 2: 0.2, 3: 0.02}),
    ],
)
def test_the_learning_rate_follows_its_schedule(changes, rates):
    chosen = settings(learning_rate=0.2, epochs=10, **changes)
    assert [chosen.rate(epoch) for epoch in rates] == pytest.approx(list(rates.values()), abs=1e-12)


@pytest.mark.parametrize("ema", [0.0, 0.5, 0.999])
def test_an_average_of_the_weights_follows_its_formula_and_is_used_at_the_end(ema):
    plain, averaging = trainer(sigma=0.1), trainer(sigma=0.1, ema=ema)
    average = weights(plain.model)
    for step in range(plain.steps):
        plain.advance()
        averaging.advance()
        decay = min(ema, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weights(plain.model)
        assert torch.equal(weights(averaging.model), weights(plain.model))
    torch.testing.assert_close(weights(averaging.finish()), average, rtol=1e-4, atol=1e-6)
    if ema:
        assert not torch.allclose(weights(averaging.model), weights(plain.finish()), rtol=1e-3)


def test_recipes_warm_up_over_at_most_a_tenth_of_all_epochs(monkeypatch):
    recipe = SmoothMix(warmup=10)
    assert [recipe.strength(epoch, 200) for epoch in (0, 1, 5, 10, 200)] == pytest.approx([0, 0.1, 0.5, 1, 1])
    assert [recipe.strength(epoch, 20) for epoch in (0, 1, 2, 20)] == pytest.approx([0, 0.5, 1, 1])
    assert SmoothMix(warmup=0).strength(0, 20) == 1
    strengths, real = [], SmoothAdv.losses
    monkeypatch.setattr(SmoothAdv, "losses", lambda *given: strengths.append(given[-1]) or real(*given))
    trained(recipe="smoothadv:steps=1,copies=1", epochs=10)
    assert strengths == pytest.approx([min(1, step / 8) for step in range(80)])


# ---- batches, augmentations, data --------------------------------------------------------------------------------


def test_only_data_whose_classes_survive_it_are_augmented():
    assert {suitable_augmentations(name) for name in ("mnist", "mnist (train)", "digits (train)", "tensors")} == {()}
    assert suitable_augmentations("cifar10") == suitable_augmentations("cifar10 (train)") == ("crop", "flip")
    assert suitable_augmentations("svhn (train)") == ("crop",)
    assert suitable_augmentations("imagenet (train)") == ("resized-crop", "flip")


def image() -> torch.Tensor:
    return torch.randint(1, 256, (2, 16, 8), generator=torch.Generator().manual_seed(7)) / 255


def shown(name: str, augment: tuple[str, ...] | None, kind=np.uint8) -> torch.Tensor:
    """600 copies [600, 2, 16, 8] of one image as they are shown in the first step."""
    images = (image() * 255).round().byte() if kind is np.uint8 else image()
    data = ArrayData(images.repeat(600, 1, 1, 1).numpy(), np.zeros(600, np.int64), None, name)
    chosen = settings(batch_size=600, augment=augment)
    batches, of_second = (
        Trainer(nn.Sequential(nn.Flatten(), nn.Linear(256, 2)), data, chosen, engine).batches
        for engine in (Engine(CPU), OneOf(1, 2))
    )
    found = batches.get(0)[0]
    assert torch.equal(batches.get(0)[0], found)
    assert torch.equal(of_second.get(0)[0], found[1::2])
    return found


def variants(down: int, right: int) -> dict[tuple[int, int, bool], torch.Tensor]:
    """The image shifted over black by up to so many rows and columns, and mirrored."""
    found = {}
    for rows in range(-down, down + 1):
        for columns in range(-right, right + 1):
            for flipped in (False, True):
                source, moved = image().flip(2) if flipped else image(), torch.zeros(2, 16, 8)
                for row in range(16):
                    for column in range(8):
                        if 0 <= row + rows < 16 and 0 <= column + columns < 8:
                            moved[:, row, column] = source[:, row + rows, column + columns]
                found[rows, columns, flipped] = moved
    return found


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_cifar_is_shifted_by_up_to_an_eighth_and_mirrored_half_the_time(kind):
    known, counts = variants(2, 1), {}
    for one in shown("cifar10 (train)", None, kind):
        [name] = [key for key, variant in known.items() if torch.equal(one, variant)]
        counts[name] = counts.get(name, 0) + 1
    assert counts.keys() == known.keys()  # 30 of them, 20 times each on average
    assert max(counts.values()) < 50
    flipped = sum(count for (_, _, mirrored), count in counts.items() if mirrored)
    assert flipped == pytest.approx(300, abs=60)  # five standard errors


@pytest.mark.parametrize(
    ("name", "augment", "expected"),
    [
        ("mnist (train)", None, 1),
        ("digits (train)", None, 1),
        ("cifar10 (train)", (), 1),
        ("digits (train)", ("flip",), 2),
        ("svhn (train)", None, 15),
    ],
)
def test_other_data_are_left_as_they_are_unless_asked_for(name, augment, expected):
    found = shown(name, augment)
    assert len(found.unique(dim=0)) == expected
    assert (found == image()).flatten(1).all(1).any()
    assert (found == image().flip(2)).flatten(1).all(1).any() == (augment == ("flip",))


def spot(chance: dict[int, float]) -> torch.Tensor:
    """Where a spot at (0.3, -0.4) is after warping by these numbers, all others 1/2; an image reaches from -1 to 1."""
    axis = (torch.arange(56) + 0.5) / 28 - 1
    image = torch.exp(-((axis[None, :] - 0.3) ** 2 + (axis[:, None] + 0.4) ** 2) / 0.02)
    numbers = torch.full((WARP_NUMBERS, 1), 0.5)
    for place, number in chance.items():
        numbers[place] = number
    found = warped(image[None, None], numbers)[0, 0]
    assert found.min() >= 0
    assert found.max() <= 1.0001
    return torch.stack([(found.sum(0) * axis).sum(), (found.sum(1) * axis).sum()]) / found.sum()


@pytest.mark.parametrize(
    ("chance", "back"),
    [
        ({}, lambda x, y: (x, y)),
        ({0: 1}, lambda x, y: (0.99027 * x - 0.13917 * y, 0.13917 * x + 0.99027 * y)),  # 8 degrees
        ({0: 0}, lambda x, y: (0.99027 * x + 0.13917 * y, -0.13917 * x + 0.99027 * y)),
        ({1: 1}, lambda x, y: (x + 0.08 * y, y)),
        ({2: 0}, lambda x, y: (0.92 * x, y)),
        ({3: 1}, lambda x, y: (x, 1.08 * y)),
        ({4: 1}, lambda x, y: (x + 1 / 14, y)),
        ({5: 0.25}, lambda x, y: (x, y - 1 / 28)),
        (dict.fromkeys(range(6, 31), 1), lambda x, y: (x + 0.05, y)),
        (dict.fromkeys(range(31, 56), 0), lambda x, y: (x, y - 0.05)),
    ],
)
def test_warping_turns_shears_scales_shifts_and_bends_by_as_much_as_it_says(chance, back):
    assert back(*spot(chance)) == pytest.approx((0.3, -0.4), abs=2e-3)


def test_one_point_bends_its_surroundings_only():
    near, far = spot({6 + 1 * 5 + 3: 1}), spot({6 + 4 * 5: 1})  # the point at (0.5, -0.5), and a corner
    assert 0.02 < 0.3 - near[0] < 0.05
    assert far.tolist() == pytest.approx((0.3, -0.4), abs=2e-3)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_warped_images_differ_and_stay_in_range(kind):
    found = shown("mnist (train)", ("warp",), kind)
    assert len(found.unique(dim=0)) == 600
    assert found.min() >= 0
    assert found.max() <= 1
    assert (found.mean(0) - image()).abs().mean() < (found - image()).abs().mean()


def test_refuses_data_that_it_cannot_train_on():
    data = two_blobs()
    with pytest.raises(InputError, match="with labels, tensors has none"):
        Batches(ArrayData(data.inputs, None, None, "tensors"), 16, 0, (), Engine(CPU))
    with pytest.raises(InputError, match="of one shape"):
        Batches(ArrayData(data.inputs[:0], data.labels[:0], None, "tensors"), 16, 0, (), Engine(CPU))
    with pytest.raises(InputError, match=r"images \[C, H, W\] to augment, got inputs of shape \(8,\)"):
        trained(augment=("flip",))
    with pytest.raises(InputError, match=r"image files for the augmentation resized-crop, tensors has none"):
        shown("tensors", ("resized-crop",))


# ---- noise for several processes ---------------------------------------------------------------------------------


def draws(places: torch.Tensor, sigma: float = 0.5) -> Draws:
    return Draws(sigma, torch.Generator().manual_seed(1), places, 7)


def test_two_parts_of_a_batch_together_have_exactly_the_noise_of_the_whole():
    x, whole = torch.rand(7, 3, 2), draws(torch.arange(7))
    noises, numbers = whole.noises(x, 4), whole.uniform(x, 2)
    assert noises.shape == (4, 7, 3, 2)
    assert len(noises.unique()) == noises.numel()
    for rank in (0, 1):
        part = draws(torch.arange(rank, 7, 2))
        assert torch.equal(part.noises(x[rank::2], 4), noises[:, rank::2])
        assert torch.equal(part.uniform(x[rank::2], 2), numbers[:, rank::2])


def test_sigma_0_draws_no_noise_but_leaves_later_draws_as_they_are():
    x, silent, loud = torch.rand(7, 3), draws(torch.arange(7), 0.0), draws(torch.arange(7), 0.5)
    assert torch.equal(silent.noises(x, 2), torch.zeros(2, 7, 3))
    assert loud.noises(x, 2).std() > 0.3
    assert torch.equal(silent.uniform(x), loud.uniform(x))


class OneOf(Engine):
    """One of several processes, which keeps its gradients."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(CPU)
        self.rank, self.world = rank, world

    def add_up_gradients(self, parameters):
        self.gradients = torch.cat([p.grad.flatten() for p in parameters])


def test_the_gradients_of_two_processes_add_up_to_those_of_one():
    engines = [OneOf(0, 1), OneOf(0, 2), OneOf(1, 2)]
    for engine in engines:
        trainer(7, engine, recipe="consistency", sigma=0.1).advance()
    whole, first, second = (engine.gradients for engine in engines)
    torch.testing.assert_close(first + second, whole)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "denoiser"])
def test_a_process_with_no_input_of_the_last_batch_takes_the_step_all_the_same(recipe):
    one = trainer(17, OneOf(1, 2), recipe=recipe, sigma=0.1, epochs=1)
    one.advance()
    assert one.advance()
    assert one.progress.seen == 8


# ---- going on ----------------------------------------------------------------------------------------------------


def with_statistics() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)), 0)


def copied(state):
    tensors, progress = state
    return {name: tensor.clone() for name, tensor in tensors.items()}, dict(progress)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ema": 0.9},
        {"momentum": 0.0},
        {"recipe": "smoothmix:steps=2,copies=2"},
        {"recipe": "cat-rs"},
    ],
)
@pytest.mark.parametrize("stop", [0, 11, 20])
def test_going_on_from_a_state_within_an_epoch_ends_with_the_same_weights_to_the_bit(changes, stop):
    chosen = settings(sigma=0.2, batch_size=10, **changes)  # 13 steps per epoch
    whole = Trainer(with_statistics(), two_blobs(), chosen)
    for _ in range(stop):
        whole.advance()
    state = copied(whole.state())
    resumed = Trainer(with_statistics(), two_blobs(), chosen)
    resumed.restore(*state)
    assert resumed.epoch == whole.epoch
    while whole.progress.step < whole.steps:
        assert resumed.advance() == whole.advance()
    assert resumed.progress == whole.progress
    ours, theirs = resumed.finish().state_dict(), whole.finish().state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_state_can_be_gone_on_from_twice():
    first = trainer(sigma=0.2, ema=0.9)
    for _ in range(3):
        first.advance()
    state, ends = copied(first.state()), []
    for _ in range(2):
        again = trainer(sigma=0.2, ema=0.9)
        again.restore(*state)
        for _ in range(4):
            again.advance()
        ends.append(weights(again.finish()))
    assert torch.equal(*ends)


# ---- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sigma": -0.1}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"sigma": float("inf")}, "sigma"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"seed": 2**63}, "seed"),
        ({"batch_size": 0}, "batch_size"),
        ({"drop_every": 0}, "drop_every"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"lr_warmup": 3.0}, "lr_warmup"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -1e-4}, "weight_decay"),
        ({"ema": 1.0}, "ema"),
        ({"ema": float("nan")}, "ema"),
        ({"recipe": "consistency:copies=0"}, "copies"),
        ({"schedule": "linear"}, "schedule"),
        ({"precision": "fp16"}, "precision"),
        ({"augment": ("rotate",)}, "augment"),
    ],
)
def test_refuses_settings_it_cannot_train_with(changes, named):
    with pytest.raises(ConfigError, match=f"Expected `{named}`"):
        trained(**changes)
