import pytest
import torch
from torch import nn

from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.architectures import ALIASES, ARCHITECTURES, build, cifar_resnet, resnet50, wide_resnet
from smoothcert.models.contract import check_contract

# Published sizes, or sums over the layers that the papers describe.
SIZES = {
    "mlp-7": (10, 3072 * 1024 + 1024 + 5 * (1024**2 + 1024) + 10_250),
    "small-cnn": (10, 38_282),
    "lenet": (10, 431_080),
    "resnet20": (10, 272_474),
    "resnet32": (10, 466_906),
    "resnet44": (10, 661_338),
    "resnet56": (10, 855_770),
    "resnet110": (10, 1_730_714),
    "wrn-16-4": (10, 2_748_890),
    "wong-resnet": (10, 4_214_850),
    "wong-cnn": (10, 166_406),
    "lipschitz-cnn": (10, 166_406),
    "resnet18": (1000, 11_689_512),
    "resnet50": (1000, 25_557_032),
}
SMALLER = {"resnet50": (3, 64, 64), "resnet18": (3, 64, 64)}  # for passes that need no full size


def shape_of(name):
    return SMALLER.get(name, ARCHITECTURES[name].input_shape)


@pytest.fixture(scope="module")
def networks():
    made = {}

    def network(name):
        if name not in made:
            torch.manual_seed(0)
            made[name] = build(name, classes=7)
        return made[name]

    return network


def test_every_architecture_is_tested():
    assert set(SIZES) == set(ARCHITECTURES)
    assert set(ALIASES.values()) <= set(ARCHITECTURES)


@pytest.mark.parametrize("name", SIZES)
def test_has_the_published_number_of_parameters(name):
    classes, parameters = SIZES[name]
    with torch.device("cpu" if name == "lipschitz-cnn" else "meta"):  # counting needs no weights, unless they are made
        model = build(name, classes=classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", SIZES)
def test_scores_have_one_column_per_class_and_gradients_reach_every_parameter(name, networks):
    model = networks(name).train()
    scores = model(torch.rand(4, *shape_of(name)))
    assert scores.shape == (4, 7)
    nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2, 6])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    model.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", SIZES)
def test_keeps_the_contract_in_eval_mode(name, networks):
    probes = torch.rand(8, *shape_of(name), generator=torch.Generator().manual_seed(1))
    assert check_contract(networks(name).train(), probes, num_classes=7).num_classes == 7


def test_batch_statistics_would_be_refused():
    """The check above sees what it is there for."""

    class Training(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = cifar_resnet(8)

        def forward(self, x):
            return self.network.train()(x)

    with pytest.raises(ModelError, match=r"influence each other|different answers"):
        check_contract(Training(), torch.rand(8, 3, 8, 8), num_classes=10)


def sizes_seen(model, kinds, shape):
    seen = []
    for part in model.modules():
        if type(part).__name__ in kinds:
            part.register_forward_hook(lambda _, __, y: seen.append(tuple(y.shape[1:])))
    with torch.inference_mode():
        model.eval()(torch.rand(1, *shape))
    return seen


def test_cifar_networks_halve_the_sides_twice():
    assert sizes_seen(build("resnet20", classes=10), {"_Residual"}, (3, 32, 32)) == (
        [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3
    )
    assert sizes_seen(build("wrn-16-4", classes=10), {"_PreActivation"}, (3, 32, 32)) == (
        [(64, 32, 32)] * 2 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2
    )


def test_wong_resnet_has_the_units_of_its_blocks():
    blocks = sizes_seen(build("wong-resnet", classes=10), {"_WongBlock"}, (3, 32, 32))
    assert blocks == [(16, 32, 32), (16, 32, 32), (32, 16, 16), (64, 8, 8)]
    units = 16 * 32 * 32 + sum(2 * c * h * w for c, h, w in blocks) + 1000  # each block has two layers of ReLU
    assert units == 107_496
    assert not any(isinstance(part, nn.BatchNorm2d) for part in build("wong-resnet", classes=10).modules())


def test_imagenet_resnet_halves_the_sides_five_times_in_the_right_convolutions():
    with torch.device("meta"):
        model = resnet50()
    strides = {name: part.stride[0] for name, part in model.named_modules() if isinstance(part, nn.Conv2d)}
    strided = {name for name, stride in strides.items() if stride == 2}
    assert strided == {"conv1"} | {f"layer{i}.0.{part}" for i in (2, 3, 4) for part in ("conv2", "downsample.0")}
    small = build("resnet18", classes=2, input_shape=(3, 64, 64))
    assert sizes_seen(small, {"_Basic"}, (3, 64, 64))[::2] == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]


def test_resnet50_has_torchvisions_tensors_in_its_order():
    with torch.device("meta"):
        model = resnet50()
    norm = [("weight", 1), ("bias", 1), ("running_mean", 1), ("running_var", 1), ("num_batches_tracked", 0)]

    def conv_and_norm(conv, bn):
        return [f"{conv}.weight", *[f"{bn}.{name}" for name, _ in norm]]

    expected = conv_and_norm("conv1", "bn1")
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            for i in (1, 2, 3):
                expected += conv_and_norm(f"{prefix}.conv{i}", f"{prefix}.bn{i}")
            if block == 0:
                expected += conv_and_norm(f"{prefix}.downsample.0", f"{prefix}.downsample.1")
    assert list(model.state_dict()) == [*expected, "fc.weight", "fc.bias"]
    assert len(list(model.parameters())) == 161
    assert sum(isinstance(part, nn.BatchNorm2d) for part in model.modules()) == 53
    convolutions = [tuple(p.shape) for p in model.parameters() if p.ndim == 4]
    assert convolutions[:5] == [(64, 3, 7, 7), (64, 64, 1, 1), (64, 64, 3, 3), (256, 64, 1, 1), (256, 64, 1, 1)]


def test_keys_of_weights_already_in_use_stay():
    keys = list(cifar_resnet(8).state_dict())
    assert keys[:2] == ["0.weight", "1.weight"]
    assert {"3.first.weight", "3.first_norm.weight", "4.shortcut.0.weight", "8.bias"} <= set(keys)


@pytest.mark.parametrize("name", ["mlp-7", "resnet20", "wrn-16-4", "wong-resnet", "resnet18"])
def test_the_same_seed_gives_the_same_weights(name):
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in build(name, classes=3).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_convolutions_of_residual_networks_are_initialised_as_he_et_al():
    torch.manual_seed(0)
    for name in ("resnet56", "wrn-16-4", "wong-resnet", "resnet18"):
        widest = max((p for p in build(name, classes=2).parameters() if p.ndim == 4), key=torch.numel)
        fan_out = widest.shape[0] * widest.shape[2] * widest.shape[3]
        assert widest.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.03)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp-7", (20,)),
        ("mlp-7", (1, 28, 28)),
        ("resnet20", (1, 28, 28)),
        ("resnet20", (3, 9, 13)),
        ("wrn-16-4", (1, 28, 28)),
        ("wong-resnet", (1, 28, 28)),
        ("resnet18", (1, 32, 48)),
    ],
)
def test_takes_other_inputs(name, shape):
    assert build(name, classes=3, input_shape=shape).eval()(torch.rand(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("lenet", (3, 28, 28), r"\(1, 28, 28\)"),
        ("lenet", (1, 32, 32), r"\(1, 28, 28\)"),
        ("small-cnn", (1, 28, 28), r"\(1, 8, 8\)"),
        ("resnet20", (3, 32), "channels, height, width"),
        ("resnet20", (3, 4, 32), "at least 8"),
        ("wrn-16-4", (1, 3, 32, 32), "channels, height, width"),
        ("wong-resnet", (3, 30, 32), "multiples of 4"),
        ("resnet50", (3, 28, 28), "at least 32"),
        ("mlp-7", (), "any"),
        ("mlp-7", (0,), "whole number"),
        ("resnet20", (3, 32.0, 32), "whole number"),
    ],
)
def test_refuses_inputs_it_cannot_take(name, shape, words):
    with pytest.raises(ConfigError, match=words):
        build(name, classes=10, input_shape=shape)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"one of mlp-7, .*got 'resnet-20'\. Did you mean 'resnet20'"):
        build("resnet-20", classes=10)
    with pytest.raises(ConfigError, match="classes"):
        build("resnet20", classes=1)
    with pytest.raises(ConfigError, match=r"6k \+ 2"):
        cifar_resnet(21)
    with pytest.raises(ConfigError, match=r"6k \+ 4"):
        wide_resnet(20)


def test_the_names_of_the_papers_code_mean_the_same():
    for alias, name in ALIASES.items():
        with torch.device("meta"):
            shapes = [[p.shape for p in build(which, classes=10).parameters()] for which in (alias, name)]
        assert shapes[0] == shapes[1]
