"""One argument for any model: a file, a name with the library that has it, or Python code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from smoothcert.checks import check_choice, check_count
from smoothcert.errors import ConfigError, ModelError
from smoothcert.models.checkpoints import WEIGHTS_FILE, load_checkpoint
from smoothcert.models.classifier import AS_GIVEN, Classifier
from smoothcert.models.denoisers import make_denoiser
from smoothcert.models.estimators import load_joblib
from smoothcert.models.exported import load_exported
from smoothcert.models.hashes import hash_bytes
from smoothcert.models.hubs import load_timm, load_torchvision, load_transformers
from smoothcert.models.layers import Ensemble
from smoothcert.models.naming import MatchBy
from smoothcert.models.objects import from_object, load_object
from smoothcert.models.onnx_files import load_onnx
from smoothcert.models.torch_files import load_torch_file


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a user may have to add for sources that do not say it themselves."""

    arch: str | None = None
    num_classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    unsafe: bool = False
    match_by: MatchBy = "name"


def _checkpoint(path: Path, settings: _Settings) -> Classifier:
    return load_checkpoint(
        path,
        architecture=settings.arch,
        num_classes=settings.num_classes,
        input_shape=settings.input_shape,
        match_by=settings.match_by,
    )


def _torch_file(path: Path, settings: _Settings) -> Classifier:
    return load_torch_file(
        path,
        arch=settings.arch,
        num_classes=settings.num_classes,
        input_shape=settings.input_shape,
        match_by=settings.match_by,
        unsafe=settings.unsafe,
    )


FILES: dict[str, Callable[[Path, _Settings], Classifier]] = {
    ".safetensors": _checkpoint,
    ".onnx": lambda path, _: load_onnx(path),
    ".pt2": lambda path, settings: load_exported(path, unsafe=settings.unsafe),
    ".pt": _torch_file,
    ".pth": _torch_file,
    ".th": _torch_file,
    ".tar": _torch_file,  # .pth.tar, as the paper's code writes
    ".ckpt": _torch_file,
    ".joblib": lambda path, settings: load_joblib(path, unsafe=settings.unsafe),
    ".pkl": lambda path, settings: load_joblib(path, unsafe=settings.unsafe),
}
LIBRARIES: dict[str, Callable[[str, _Settings], Classifier]] = {
    "timm": lambda name, _: load_timm(name),
    "torchvision": lambda name, _: load_torchvision(name),
    "hf": lambda name, settings: load_transformers(name, unsafe=settings.unsafe),
}
_OBJECT = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):[A-Za-z_][\w.]*")
_ENSEMBLE = "ensemble:"


def load(
    source: Any,
    *,
    arch: str | None = None,
    num_classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: Sequence[str] | None = None,
    denoiser: str | None = None,
    sigma: float | None = None,
    unsafe: bool = False,
    match_weights: MatchBy = "name",
    weights_hash: str | None = None,
) -> Classifier:
    """Load a base classifier of inputs in [0, 1] from any source.

    Args:
        source: a file (.safetensors, .onnx, .pt2, .pt, .pth, .joblib), a training run's folder, `timm:NAME`,
            `hf:NAME` or `hf:FOLDER`, `torchvision:NAME`, `package.module:name` or `file.py:name`, `ensemble:A,B,…`; or
            a Python object: a module, a function of a batch, an estimator, or a list of sources to make an ensemble of.
        arch: the architecture, for files with weights only; one of `models.architectures.ARCHITECTURES`.
        num_classes: the number of classes, for functions that return labels and for weights.
        input_shape: the shape of one input, for sources that do not declare it.
        mean: with `std`, (x − mean) / std per channel is put in front, for sources that do not normalise by themselves.
        std: see `mean`.
        classes: names of the classes, for sources that do not know them.
        denoiser: a denoiser in front, by name or checkpoint (see `models.denoisers`); needs `sigma`.
        sigma: the noise level that the denoiser is to remove.
        unsafe: allow files whose loading runs code from the file.
        match_weights: how weights from other code are matched with `arch`: by "name", ours or those of a known naming
            scheme; or, where no names fit, by "order". The wrong order can go unnoticed, so check the accuracy.
        weights_hash: the hash that the weights must have, as an earlier load recorded it.

    Raises ModelError for what cannot be loaded, MissingExtraError for a library that is not installed.
    """
    shape = None if input_shape is None else tuple(check_count("input_shape", side) for side in input_shape)
    if num_classes is not None:
        check_count("num_classes", num_classes, least=2)
    if (mean is None) != (std is None):
        raise ConfigError("Expected `mean` and `std` together, got one of them.")
    check_choice("match_weights", match_weights, get_args(MatchBy))
    settings = _Settings(arch, num_classes, shape, unsafe, match_weights)
    loaded = _declared(_load(source, settings), num_classes, shape, classes)
    if mean is not None and std is not None:
        if loaded.normalization != AS_GIVEN:
            raise ConfigError(f"{loaded.source} normalises by itself ({loaded.normalization}): drop `mean` and `std`.")
        loaded = loaded.normalized(mean, std)
    loaded = loaded if denoiser is None else _denoised(loaded, denoiser, sigma)
    if weights_hash not in (None, loaded.weights_hash):
        raise ModelError(f"Expected weights with {weights_hash} in {loaded.source}, got {loaded.weights_hash}.")
    return loaded


def _load(source: Any, settings: _Settings) -> Classifier:
    if isinstance(source, list | tuple):
        return _ensemble([_load(one, settings) for one in source])
    if not isinstance(source, str | Path):
        return from_object(source)
    text, path = str(source), Path(source)
    if isinstance(source, str) and not path.exists():
        library, _, name = source.partition(":")
        if source.startswith(_ENSEMBLE):
            return _load(source.removeprefix(_ENSEMBLE).split(","), settings)
        if library in LIBRARIES and name:
            return LIBRARIES[library](name, settings)
        if _OBJECT.fullmatch(source):
            return load_object(source)
    if path.is_dir():
        return _folder(path, settings)
    if path.suffix.lower() not in FILES:
        raise ModelError(
            f"Expected a model, got {text!r}: neither a file of a known kind ({', '.join(FILES)}), nor a folder with "
            f"{WEIGHTS_FILE}, nor package.module:name, nor one of {', '.join(f'{one}:NAME' for one in LIBRARIES)}."
        )
    if not path.is_file():
        raise ModelError(f"There is no file {text}.")
    return FILES[path.suffix.lower()](path, settings)


def _folder(path: Path, settings: _Settings) -> Classifier:
    """A training run of ours, or a model that transformers saved."""
    if (path / "config.json").is_file():
        return load_transformers(str(path), unsafe=settings.unsafe)
    if (path / WEIGHTS_FILE).is_file():
        return _checkpoint(path / WEIGHTS_FILE, settings)
    raise ModelError(
        f"Expected {WEIGHTS_FILE} (a training run) or config.json (of transformers) in {path}, got neither."
    )


def _declared(
    loaded: Classifier, num_classes: int | None, shape: tuple[int, ...] | None, classes: Sequence[str] | None
) -> Classifier:
    """The classifier with what the user declares; a contradiction is an error."""
    if num_classes is not None and loaded.num_classes not in (None, num_classes):
        raise ModelError(f"Expected num_classes={num_classes}, got {loaded.num_classes} in {loaded.source}.")
    if shape is not None and loaded.input_shape is not None:
        loaded = loaded.fitted(shape)
    return replace(
        loaded,
        num_classes=loaded.num_classes or num_classes or (None if classes is None else len(classes)),
        input_shape=loaded.input_shape or shape,
        classes=loaded.classes if classes is None else tuple(classes),
    )


def _ensemble(members: list[Classifier]) -> Classifier:
    """The mean of the members' scores, as one classifier."""
    if not members:
        raise ConfigError("Expected at least one member of an ensemble, got none.")

    def common(name: str) -> Any:
        values = {getattr(one, name) for one in members} - {None}
        if len(values) > 1 and name in ("num_classes", "input_shape"):
            raise ModelError(f"Expected one {name} in an ensemble, got {' and '.join(map(str, sorted(values)))}.")
        return values.pop() if len(values) == 1 else None

    hashes = [one.weights_hash for one in members if one.weights_hash is not None]
    return Classifier(
        network=Ensemble([one.network for one in members]),
        source=_ENSEMBLE + ",".join(one.source for one in members),
        kind="ensemble",
        normalization="; ".join(dict.fromkeys(one.normalization for one in members)),
        weights_hash=hash_bytes(*(one.encode() for one in hashes)) if len(hashes) == len(members) else None,
        input_shape=common("input_shape"),
        num_classes=common("num_classes"),
        classes=common("classes"),
        sigma=common("sigma"),
        recipe=common("recipe"),
        notes=tuple(dict.fromkeys(note for one in members for note in one.notes)),
    )


def _denoised(loaded: Classifier, name: str, sigma: float | None) -> Classifier:
    if sigma is None:
        raise ConfigError("A denoiser must know the noise that it is to remove: give `sigma`.")
    note = f"a denoiser is in front, {name} for σ = {sigma:g}: it is part of the base classifier"
    return replace(loaded.behind(make_denoiser(name, sigma)), notes=(*loaded.notes, note))
