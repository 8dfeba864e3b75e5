"""Weights of other code land where their names say, in whatever order a file lists them; else they are refused."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from evidence import WEIGHTS
from smoothcert import Normalize, models
from smoothcert.cli import main
from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.architectures import build, small_cnn
from smoothcert.models.naming import SCHEMES
from smoothcert.models.weights import load_weights

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class Block(nn.Module):
    """A residual block under customary names; norms may be declared in another order than they are used in."""

    def __init__(self, before, width, stride, shortcut, swapped):
        super().__init__()
        norms = ("bn2", "bn1") if swapped else ("bn1", "bn2")
        for number, norm in enumerate(norms, start=1):
            self.add_module(
                f"conv{number}", nn.Conv2d(before if number == 1 else width, width, 3, stride, 1, bias=False)
            )
            self.add_module(norm, nn.BatchNorm2d(width))
            stride = 1
        self.bridge = shortcut if before != width else None
        if self.bridge:
            bridge = nn.Sequential(nn.Conv2d(before, width, 1, 2, bias=False), nn.BatchNorm2d(width))
            self.add_module(shortcut, bridge)

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (getattr(self, self.bridge)(x) if self.bridge else x))


class ResNet20(nn.Module):
    """ResNet-20 as other code writes it."""

    def __init__(self, shortcut, head, *, swapped=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        before = 16
        for stage, width in enumerate((16, 32, 64), start=1):
            blocks = []
            for _ in range(3):
                blocks.append(Block(before, width, 2 if before != width else 1, shortcut, swapped))
                before = width
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        self.head = head
        self.add_module(head, nn.Linear(64, 10))
        shuffle_statistics(self)
        self.eval()

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return getattr(self, self.head)(x.mean(dim=(2, 3)))


def shuffle_statistics(network):
    """Norms of a trained network differ from one another; those of a new one are all alike."""
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.3)
            nn.init.normal_(part.running_mean, std=0.3)
            nn.init.uniform_(part.running_var, 0.5, 2)


def saved(content, path):
    torch.save(content, path)
    return path


def assert_same_scores(loaded, network):
    x = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), network(x), atol=1e-4, rtol=1e-4)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("swapped", [False, True], ids=["usual order", "norms in another order"])
@pytest.mark.parametrize("prefix", ["1.", "1.module."])
def test_the_papers_checkpoints_load_by_name_with_their_normalisation(tmp_path, prefix, swapped):
    """As the research code writes them, behind a layer that normalises and leaves nothing in the file."""
    network = ResNet20("downsample", "fc", swapped=swapped)
    theirs = {prefix + name: tensor for name, tensor in network.state_dict().items()}
    path = saved({"arch": "cifar_resnet20", "epoch": 90, "state_dict": theirs}, tmp_path / "checkpoint.pth.tar")
    loaded = models.load(path)
    assert_same_scores(loaded, nn.Sequential(Normalize(MEAN, STD), network))
    assert (loaded.input_shape, loaded.num_classes) == ((3, 32, 32), 10)
    assert any("Cohen et al. 2019" in note for note in loaded.notes)
    assert "0.4914" in loaded.normalization


@pytest.mark.parametrize("swapped", [False, True], ids=["usual order", "norms in another order"])
@pytest.mark.parametrize("counters", [True, False], ids=["with counters", "before torch 0.4.1"])
@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_names_of_akamasters_code_are_known(tmp_path, swapped, counters, kind):
    network = ResNet20("shortcut", "linear", swapped=swapped)
    theirs = {f"module.{name}": tensor for name, tensor in network.state_dict().items()}
    if not counters:
        theirs = {name: tensor for name, tensor in theirs.items() if not name.endswith("num_batches_tracked")}
    path = tmp_path / f"m.{kind}"
    if kind == "pth":
        torch.save({"state_dict": theirs, "best_prec1": 91.7}, path)
    else:
        save_file(theirs, path)
    loaded = models.load(path, arch="resnet20")
    assert_same_scores(loaded, network)
    assert any("akamaster" in note for note in loaded.notes)


def test_the_head_tells_the_classes_wherever_it_stands_in_the_file(tmp_path):
    network = ResNet20("downsample", "fc")
    network.fc = nn.Linear(64, 7)
    tensors = network.state_dict()
    first = {"fc.bias": tensors.pop("fc.bias"), "fc.weight": tensors.pop("fc.weight")}
    loaded = models.load(saved({**first, **tensors}, tmp_path / "m.pth"), arch="resnet20")
    assert loaded.num_classes == 7
    assert_same_scores(loaded, network)


@pytest.mark.parametrize("prefix", ["", "module.", "1.module."])
def test_torchvisions_names_are_our_own(tmp_path, prefix):
    network = build("resnet18", classes=12)
    shuffle_statistics(network)
    tensors = {prefix + name: tensor for name, tensor in reversed(network.state_dict().items())}
    loaded = models.load(saved(tensors, tmp_path / "m.pth"), arch="resnet18")
    assert (loaded.num_classes, loaded.notes) == (12, ())
    for name, tensor in loaded.network.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name])


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_names_every_tensor_of_its_architecture_once(name):
    own = list(build(name, classes=2).state_dict())
    for scheme in SCHEMES[name]:
        theirs = [scheme.translate(one) for one in own]
        assert len(set(theirs)) == len(own)
        assert {"conv1.weight", "layer3.0.bn2.running_var"} <= set(theirs)


def renamed(network):
    return {f"tensor{place}": tensor for place, tensor in enumerate(network.state_dict().values())}


@pytest.mark.parametrize("swapped", [False, True], ids=["usual order", "norms in another order"])
def test_where_only_the_order_fits_weights_are_refused_unless_the_user_asks_for_it(tmp_path, swapped):
    """Nothing in the file tells the two orders apart, and one of them gives other scores."""
    network = ResNet20("downsample", "fc", swapped=swapped)
    path = saved(renamed(network), tmp_path / "m.pth")
    with pytest.raises(ModelError, match=r"--match-weights order \(match_weights='order'\)"):
        models.load(path, arch="resnet20")
    loaded = models.load(path, arch="resnet20", match_weights="order")
    assert any("by their order" in note for note in loaded.notes)
    if swapped:
        with pytest.raises(AssertionError):
            assert_same_scores(loaded, network)
    else:
        assert_same_scores(loaded, network)


def test_names_that_fit_come_before_the_order(tmp_path):
    network = ResNet20("downsample", "fc", swapped=True)
    path = saved(network.state_dict(), tmp_path / "m.pth")
    assert_same_scores(models.load(path, arch="resnet20", match_weights="order"), network)


def test_safetensors_do_not_keep_an_order_to_match_by(tmp_path):
    save_file(renamed(small_cnn()), tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match="not those of this architecture") as caught:
        models.load(tmp_path / "m.safetensors", arch="small-cnn")
    assert "--match-weights" not in str(caught.value)
    with pytest.raises(ModelError, match="does not keep the order"):
        models.load(tmp_path / "m.safetensors", arch="small-cnn", match_weights="order")


def test_the_order_counts_for_files_without_counters(tmp_path):
    old = ResNet20("downsample", "fc")
    tensors = [tensor for name, tensor in old.state_dict().items() if not name.endswith("num_batches_tracked")]
    path = saved({f"w{place}": tensor for place, tensor in enumerate(tensors)}, tmp_path / "old.pth")
    assert_same_scores(models.load(path, arch="resnet20", match_weights="order"), old)


def test_a_misspelt_way_to_match_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="match_weights"):
        models.load(saved(renamed(small_cnn()), tmp_path / "m.pth"), arch="small-cnn", match_weights="odrer")


def test_the_command_line_asks_for_the_order_too(tmp_path, capsys):
    path = str(saved(renamed(small_cnn()), tmp_path / "m.pth"))
    arguments = ["inspect", path, "--arch", "small-cnn", "--data", "digits", "--first", "20"]
    assert main(arguments) == 3
    assert "--match-weights order" in " ".join(capsys.readouterr().err.split())
    assert main([*arguments, "--match-weights", "order"]) == 0
    assert "by their order" in " ".join(capsys.readouterr().out.split())


def test_weights_load_by_name_behind_the_prefixes_of_wrappers(network):
    for prefix in ("", "module.", "module.1.", "model.net."):
        other = small_cnn()
        load_weights(other, {prefix + name: one for name, one in network.state_dict().items()}, "here")
        for ours, theirs in zip(other.state_dict().values(), network.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "swapped"])
def test_weights_that_do_not_fit_are_refused(network, tmp_path, change):
    tensors, named = renamed(network), dict(network.state_dict())
    if change == "missing":
        tensors.popitem(), named.popitem()
    elif change == "extra":
        tensors["more"] = named["more"] = torch.zeros(3)
    elif change == "shape":
        tensors["tensor0"] = named["0.weight"] = torch.zeros(16, 1, 5, 5)
    else:
        tensors = named = {"tensor1": tensors.pop("tensor1"), **tensors}
    for one in (tensors, named):
        path = saved(one, tmp_path / "m.pth")
        with pytest.raises(ModelError, match=r"not those of this architecture|Expected .* of shape"):
            models.load(path, arch="small-cnn", match_weights="order")
        with pytest.raises(ModelError, match=r"not those of this architecture|Expected 0\.weight of shape"):
            load_weights(small_cnn(), one, "here")


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason=f"the published weights are not there: {WEIGHTS}")
@pytest.mark.parametrize(("file", "arch"), [("resnet20-12fca82f", "resnet20"), ("resnet56-4bfd9763", "resnet56")])
def test_published_networks_with_other_shortcuts_are_refused_in_their_own_words(file, arch):
    """Their shortcuts have no weights; ours are convolutions. Nothing else is missing."""
    with pytest.raises(ModelError, match=r"missing layer2\.0\.shortcut\.0\.weight.*nothing unexpected\.$"):
        models.load(WEIGHTS / f"cifar10-{file}.th", arch=arch, match_weights="order")
