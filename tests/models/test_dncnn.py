import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pictures import noisy, psnr, scene
from smoothcert.errors import ConfigError, ModelError, OutputError
from smoothcert.models.contract import check_contract
from smoothcert.models.denoisers import Denoised, make_denoiser
from smoothcert.models.dncnn import DnCNN, load_dncnn, save_dncnn
from smoothcert.models.sealed import write_sealed


@pytest.mark.parametrize(("channels", "parameters"), [(1, 556_096), (3, 558_400)])
def test_dncnn_has_the_published_size(channels, parameters):
    model = DnCNN(channels)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(isinstance(part, nn.Conv2d) for part in model.modules()) == 17
    x = torch.rand(2, channels, 12, 10)
    assert model.eval()(x).shape == x.shape


def test_dncnn_takes_off_the_noise_it_predicts_and_learns_to():
    torch.manual_seed(0)
    model = DnCNN(1, depth=4, width=8)
    truth = torch.stack([scene(1, side=24, seed=seed) for seed in range(16)])
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(60):
        optimiser.zero_grad()
        (model(noisy(truth, 0.25, seed=step)) - truth).square().mean().backward()
        optimiser.step()
    x = noisy(truth, 0.25, seed=1000)
    model.eval()
    assert torch.equal(model(x), x - model.noise(x))
    assert psnr(model(x), truth) > psnr(x, truth) + 4
    assert check_contract(Denoised(model, nn.Flatten()), x[:8], num_classes=None).num_classes == 576


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "small.safetensors"
    save_dncnn(path, DnCNN(1, depth=4, width=3), 0.25)
    return path


def test_dncnn_comes_back_from_its_file(tmp_path):
    torch.manual_seed(0)
    model = DnCNN(2, depth=5, width=4)
    model(torch.rand(4, 2, 8, 8))  # moves the batch norms' statistics
    save_dncnn(tmp_path / "a.safetensors", model, 0.5)
    loaded = make_denoiser(str(tmp_path / "a.safetensors"), 0.25)
    assert (loaded.channels, loaded.depth, loaded.width, loaded.trained_sigma) == (2, 5, 4, 0.5)
    assert not loaded.training
    x = torch.rand(3, 2, 8, 8)
    assert torch.equal(loaded(x), model.eval()(x))
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_truncated_files_are_refused(checkpoint):
    whole = checkpoint.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        checkpoint.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="Expected a whole safetensors file"):
            load_dncnn(checkpoint)


def test_every_flipped_bit_is_seen(checkpoint):
    whole = checkpoint.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    padding = range(len(whole[:header].rstrip()), header)  # spaces that fill the header up
    for place in (place for place in range(0, len(whole), 3) if place not in padding):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        checkpoint.write_bytes(flipped)
        with pytest.raises(ModelError):
            load_dncnn(checkpoint)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": "unet"}, "architecture 'unet'"),
        ({"width": 4}, "needs .* values"),
        ({"channels": 3}, "needs .* values"),
        ({"width": 2}, "shape"),
        ({"depth": 5}, "not those of this architecture"),
        ({"depth": 10**9}, "whole number"),
        ({"width": "64"}, "whole number"),
        ({"sigma": -1}, "sigma"),
        ({"sigma": None}, "sigma"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused(tmp_path, change, said):
    about = {"architecture": "dncnn", "channels": 1, "depth": 4, "width": 3, "sigma": 0.25}
    write_sealed(tmp_path / "a.safetensors", DnCNN(1, depth=4, width=3).state_dict(), {**about, **change})
    with pytest.raises(ModelError, match=said):
        load_dncnn(tmp_path / "a.safetensors")


def test_other_files_are_refused(tmp_path):
    save_file(DnCNN(1, depth=4, width=3).state_dict(), tmp_path / "a.safetensors")
    with pytest.raises(ModelError, match="weights of another program"):
        make_denoiser(tmp_path / "a.safetensors", 0.25)
    torch.save({"a": 1}, tmp_path / "b.pth")
    with pytest.raises(ModelError, match="Expected a whole safetensors file"):
        make_denoiser(tmp_path / "b.pth", 0.25)


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(OutputError, match="Cannot write"):
        save_dncnn(tmp_path / "missing" / "a.safetensors", DnCNN(1, depth=2, width=2), 0.25)
    with pytest.raises(ConfigError, match="sigma"):
        save_dncnn(tmp_path / "a.safetensors", DnCNN(1, depth=2, width=2), 0)
