"""Networks of timm, torchvision and Hugging Face, with the normalisation that each was trained with folded in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smoothcert.errors import MissingExtraError, ModelError
from smoothcert.models.classifier import Classifier, affine_words
from smoothcert.models.hashes import hash_tensors
from smoothcert.models.layers import Normalize
from smoothcert.models.torch_files import first_line


def load_timm(name: str) -> Classifier:
    """A pretrained network of timm, by any name that timm.create_model knows."""
    timm = _imported("timm", "timm")
    try:
        network = timm.create_model(name, pretrained=True)
    except Exception as error:  # unknown names, no network, no weights: each library has kinds of its own
        raise _not_loaded(f"timm:{name}", error) from error
    about = network.pretrained_cfg
    shape = tuple(about["input_size"])
    return _normalized(
        network, f"timm:{name}", "timm", about["mean"], about["std"], shape, _timm_classes(timm, network)
    )


def _timm_classes(timm: Any, network: nn.Module) -> tuple[str, ...] | None:
    """The names that come with the weights, or those of the part of ImageNet that they know."""
    given = network.pretrained_cfg.get("label_names")
    if given:
        return tuple(map(str, given))
    part = timm.data.infer_imagenet_subset(network)
    return None if part is None else tuple(timm.data.ImageNetInfo(part).label_descriptions())


def load_torchvision(name: str) -> Classifier:
    """A pretrained network of torchvision with its default weights."""
    models = _imported("torchvision.models", "torchvision")
    try:
        weights = models.get_model_weights(name).DEFAULT
        network = models.get_model(name, weights=weights)
    except Exception as error:
        raise _not_loaded(f"torchvision:{name}", error) from error
    preparation = weights.transforms()
    size = preparation.crop_size[0]
    classes = tuple(weights.meta["categories"])
    shape = (3, size, size)
    return _normalized(network, f"torchvision:{name}", "torchvision", preparation.mean, preparation.std, shape, classes)


def load_transformers(name: str, *, unsafe: bool) -> Classifier:
    """An image classifier of Hugging Face, from the hub or a local folder, with its processor's scaling."""
    transformers = _imported("transformers", "transformers")
    source = f"hf:{name}"
    quiet = _Quiet(transformers, bars=not Path(name).is_dir())  # a download may take minutes
    try:
        with quiet:
            network = transformers.AutoModelForImageClassification.from_pretrained(
                name, trust_remote_code=False, use_safetensors=None if unsafe else True
            )
            processor = transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise _not_loaded(source, error) from error
    mean, std, shape = _measured(processor, source, getattr(network.config, "num_channels", 3))
    names = network.config.id2label
    classes = tuple(str(names[i]) for i in range(len(names)))
    return _normalized(_Logits(network), source, "transformers", mean, std, shape, classes)


class _Logits(nn.Module):
    """A transformers model that returns its scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(pixel_values=x).logits


class _Quiet:
    """Keeps the advice of transformers from the terminal, and its progress bars unless they are wanted."""

    def __init__(self, transformers: Any, *, bars: bool) -> None:
        self._logging, self._wanted = transformers.utils.logging, bars

    def __enter__(self) -> None:
        self._level, self._bars = self._logging.get_verbosity(), self._logging.is_progress_bar_enabled()
        self._logging.set_verbosity_error()
        if not self._wanted:
            self._logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        self._logging.set_verbosity(self._level)
        if self._bars:
            self._logging.enable_progress_bar()


def _measured(processor: Any, source: str, channels: int) -> tuple[list[float], list[float], tuple[int, ...]]:
    """What a processor does to pixels, found by giving it plain images: (x − mean) / std, and the size it wants.

    Processors differ in how their settings combine (factors, offsets, a second scaling); what they do to black, grey
    and white does not leave room for misreading them.
    """

    def of(level: int) -> np.ndarray:
        image = np.full((256, 256, 3), level, np.uint8)
        return processor(images=image if channels == 3 else image[..., 0], return_tensors="np")["pixel_values"][0]

    black, grey, white = (np.asarray(of(level), np.float64) for level in (0, 51, 255))
    plain = all(np.ptp(one, axis=(1, 2)).max() <= 1e-5 * (1 + np.abs(one).max()) for one in (black, grey, white))
    span = (white - black).mean(axis=(1, 2))
    straight = np.allclose(grey, black + 0.2 * (white - black), atol=1e-4 * (1 + np.abs(span).max()))
    if not plain or not straight or not (span > 0).all():
        raise ModelError(
            f"The processor of {source} does more to pixels than (x − mean) / std: it cannot be folded in."
        )
    return (-black.mean(axis=(1, 2)) / span).tolist(), (1 / span).tolist(), tuple(black.shape)


def _normalized(
    network: nn.Module,
    source: str,
    kind: str,
    mean: Any,
    std: Any,
    shape: tuple[int, ...],
    classes: tuple[str, ...] | None = None,
) -> Classifier:
    layer = Normalize([float(m) for m in mean], [float(s) for s in std])
    whole = nn.Sequential(layer, network.eval())
    with torch.no_grad():
        columns = whole(torch.zeros(1, *shape)).shape[1]
    return Classifier(
        network=whole.eval(),
        source=source,
        kind=kind,
        normalization=f"a layer in front of the network, by the numbers of {kind}: {affine_words(mean, std)}",
        weights_hash=hash_tensors(whole.state_dict()),
        input_shape=shape,
        num_classes=columns,
        classes=classes if classes is not None and len(classes) == columns else None,
    )


def _imported(module: str, extra: str) -> Any:
    """The library, or an error that says whether it is missing or broken."""
    from importlib import import_module

    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or module, extra) from error
    except Exception as error:  # torchvision beside a torch of another build raises RuntimeError
        raise ModelError(
            f"{module} is installed but cannot be imported ({first_line(error)}). It may not match the torch here."
        ) from error


def _not_loaded(source: str, error: Exception) -> ModelError:
    return ModelError(
        f"Cannot load {source}: {first_line(error)} Check the name; if the weights are not on this machine yet, they "
        "are downloaded, which needs the internet."
    )
