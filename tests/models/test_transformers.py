"""Image classifiers of transformers, made from a configuration and saved to disk; no hub is asked."""

import os

import numpy as np
import pytest
import torch

from networks import PROCEDURE
from smoothcert import Smoothed, models
from smoothcert.errors import ModelError


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    folder = tmp_path_factory.mktemp("vit")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    names = dict(enumerate(["cat", "dog", "frog"]))
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=4, num_channels=3, num_labels=3, id2label=names, **sizes)
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(folder)
    ViTImageProcessorPil(
        size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
    ).save_pretrained(folder)
    return folder, model


def test_a_transformers_model_gets_its_processors_normalisation(vit):
    folder, model = vit
    for source in (f"hf:{folder}", folder):
        loaded = models.load(source)
        x = torch.rand(4, 3, 16, 16)
        normal = (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(pixel_values=normal).logits, atol=1e-4, rtol=1e-4)
        assert (loaded.kind, loaded.input_shape, loaded.num_classes) == ("transformers", (3, 16, 16), 3)
        assert loaded.classes == ("cat", "dog", "frog")
        assert "(0.1, 0.2, 0.3)" in loaded.normalization


def test_a_transformers_model_certifies(vit):
    loaded = models.load(f"hf:{vit[0]}")
    result = Smoothed(loaded, 0.25, seed=0).certify(np.full((3, 16, 16), 90, np.uint8), PROCEDURE)
    assert sum(result.stages[1].counts) == 2_000
    assert len(result.stages[1].counts) == 3


@pytest.mark.parametrize(
    ("settings", "mean", "std"),
    [
        ({"do_rescale": False}, [0.1 / 255] * 3, [0.5 / 255] * 3),
        ({"do_normalize": False}, [0.0] * 3, [1.0] * 3),
        ({"rescale_factor": 1 / 127.5}, [0.05] * 3, [0.25] * 3),
    ],
)
def test_unusual_processors_are_measured_not_read(vit, tmp_path, settings, mean, std):
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    vit[1].save_pretrained(tmp_path)
    usual = {"size": {"height": 16, "width": 16}, "image_mean": [0.1] * 3, "image_std": [0.5] * 3}
    ViTImageProcessorPil(**usual, **settings).save_pretrained(tmp_path)
    layer = models.load(tmp_path).network[0]
    np.testing.assert_allclose(layer.mean.flatten(), mean, atol=1e-6)
    np.testing.assert_allclose(layer.std.flatten(), std, rtol=1e-5)


@pytest.mark.parametrize("missing", ["preprocessor_config.json", "model.safetensors", "config.json"])
def test_an_incomplete_transformers_folder_is_a_clear_error(vit, tmp_path, missing):
    for file in vit[0].iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError):
        models.load(f"hf:{tmp_path}")
