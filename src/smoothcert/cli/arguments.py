"""Settings that several commands share: which model, which inputs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated

import tyro

from smoothcert.errors import ConfigError
from smoothcert.models.naming import MatchBy
from smoothcert.options import OptionalFloats, OptionalInt, OptionalInts, OptionalPath, OptionalText

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from smoothcert.data.dataset import Dataset
    from smoothcert.models.classifier import Classifier
    from smoothcert.models.spec import ModelSpec
    from smoothcert.runs.directory import Run


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """Which model, and what it does not say about itself."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A file (.safetensors .onnx .pt2 .pt .pth .joblib), a training run's folder, timm:NAME, hf:NAME, torchvision:NAME,
    package.module:name, file.py:name, or ensemble:A,B."""
    arch: OptionalText = None
    """The architecture, for a file that holds weights only."""
    match_weights: MatchBy = "name"
    """How weights are matched with --arch. name: by our names or a known naming scheme; order: by their order where no
    names fit (check the accuracy, as the wrong order can go unnoticed)."""
    num_classes: OptionalInt = None
    """How many classes, for a model that returns labels only."""
    input_shape: OptionalInts = None
    """Shape of one input, such as 3 32 32, for a model that does not declare it."""
    mean: OptionalFloats = None
    """With --std: put (x − mean) / std in front, for a model trained on such inputs."""
    std: OptionalFloats = None
    """See --mean; one per channel."""
    denoiser: OptionalText = None
    """Denoiser in front of the model: tv, nl-means, or a DnCNN checkpoint."""
    unsafe_load: bool = False
    """Allow a model file to run its own code while it is loaded. Only for files you trust."""

    def model_spec(self, sigma: float) -> ModelSpec:
        """Where the base classifier comes from, with a denoiser for noise `sigma` in front if one was asked for."""
        from smoothcert.models.spec import ModelSpec

        settings = {
            "arch": self.arch,
            "match_weights": self.match_weights,
            "num_classes": self.num_classes,
            "input_shape": self.input_shape,
            "mean": self.mean,
            "std": self.std,
            "denoiser": self.denoiser,
            "sigma": sigma,
            "unsafe": self.unsafe_load,
        }
        return ModelSpec(source=self.model, settings=settings)


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Which inputs of a data set, and how images are prepared."""

    split: str = "test"
    """Which part of the data set."""
    data_root: OptionalPath = None
    """Folder with the data sets; by default $SMOOTHCERT_DATA, else the cache directory."""
    labels: OptionalPath = None
    """File with the true classes, for data that has none."""
    size: OptionalInt = None
    """Bring images to this size; by default to the model's, where they differ among themselves."""
    crop: float = 0.875
    """The part of a resized image that is kept, from its middle."""
    every: int = 1
    """Take every k-th input."""
    first: OptionalInt = None
    """Take at most this many."""
    indices: OptionalInts = None
    """Take just these inputs."""

    def load_data(self, source: str, classifier: Classifier) -> Dataset:
        """The data set, its images brought to the model's size where they have sizes of their own."""
        from smoothcert.data import load

        wanted = classifier.input_shape
        size = None if wanted is None or len(wanted) != 3 else wanted[1:]
        grey = size is not None and wanted[0] == 1

        def prepared(size: int | tuple[int, ...] | None) -> Dataset:
            return load(
                source,
                split=self.split,
                root=self.data_root,
                size=size,
                crop=self.crop,
                channels=1 if grey else None,
                labels=self.labels,
            )

        data = prepared(self.size)
        return data if data.shape is not None or size is None else prepared(size)

    def select(self, data: Dataset) -> npt.NDArray[np.int64]:
        """The indices of the chosen inputs."""
        from smoothcert.data import select_indices

        if self.indices is not None:
            if self.every != 1 or self.first is not None:
                raise ConfigError("Expected either `indices` or `every` and `first`, got both.")
            return select_indices(len(data), indices=self.indices)
        return select_indices(len(data), every=self.every, first=self.first)


@dataclass(frozen=True, kw_only=True)
class SameArguments(ModelArguments, DataArguments):
    """The model and the data of a run that is there: by default where that had them from."""

    model: OptionalText = None  # type: ignore[assignment]  # as in the run, unless given
    """The model, if it is not where the run had it from."""
    data: OptionalText = None
    """The data, if it does not go by the name that the run gives."""
    split: OptionalText = None  # type: ignore[assignment]  # as in the run, unless given
    """Which part of the data set; by default the run's."""
    every: tyro.conf.Suppress[int] = 1
    first: tyro.conf.Suppress[int | None] = None
    indices: tyro.conf.Suppress[tuple[int, ...] | None] = None

    def model_and_data(self, run: Run) -> tuple[ModelSpec, Dataset]:
        """Both, of a run, with the settings that it was given."""
        from smoothcert.data.names import source_and_split

        source, split = source_and_split(run.manifest.values["data"]["name"])
        values = {one.name: getattr(self, one.name) for one in fields(ModelArguments)}
        named = ModelArguments(**{**values, "model": self.model or run.manifest.values["model"]["source"]})
        spec = named.model_spec(run.sigma)
        return spec, replace(self, split=self.split or split).load_data(self.data or source, spec.load())
