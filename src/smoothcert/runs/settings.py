"""How a data set is certified or predicted: what the API, the command line, a config file and the manifest share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from smoothcert.checks import check_count, check_sigma
from smoothcert.errors import ConfigError
from smoothcert.options import Floats, OptionalFloat, OptionalInt, OptionalText

if TYPE_CHECKING:
    from smoothcert.stats.procedures import Procedure


def parse_shard(text: str, *, most: int) -> tuple[int, int]:
    """The part and the number of parts in "I/N"."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= most):
        raise ConfigError(f"Expected `shard` as I/N, from 1/N to N/N with N at most {most}, got {text!r}.")
    return int(number), int(count)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run that certifies or predicts."""

    sigma: float
    """Noise level, in units of pixels in [0, 1]."""
    alpha: float = 0.001
    """Probability with which a claim may be false, per input, between 0 and 0.5."""
    n_max: int = 100_000
    """Most draws per input, besides the few that plan them; the paper's n."""
    noise: Literal["auto", "grid", "gaussian"] = "auto"
    """grid: sound for 8-bit images; gaussian: for any input; auto: grid where the input allows it."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps; by default the fastest here."""
    batch_size: OptionalInt = None
    """Noisy copies per forward pass; by default the fastest, measured once."""
    chunk: OptionalInt = None
    """Inputs that are worked on together; by default as many as take a second or two."""
    seed: OptionalInt = None
    """Same seed, same noise. By default a fresh key from the operating system, recorded in the run."""
    secure: bool = False
    """Evidence against whoever made the model: grid noise and a fresh key only."""
    allow_random: bool = False
    """Accept a model that answers at random, fresh for every copy."""
    engine: Literal["local", "ray"] = "local"
    """local: this machine; ray: a Ray cluster."""
    workers: OptionalInt = None
    """Processes that work side by side; by default one here, and as many as fit on a cluster."""
    address: OptionalText = None
    """Address of a running Ray cluster; by default one is started here."""
    timeout: OptionalFloat = None
    """Give an input up after so many seconds without a forward pass; needs worker processes."""

    def check(self) -> None:
        """Raise ConfigError for settings out of range, before anything is loaded or written."""
        check_sigma(self.sigma)
        self.make_procedure()
        for name in ("batch_size", "chunk", "workers"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise ConfigError(f"Expected `timeout` to be a finite number of seconds > 0, got {self.timeout!r}.")
        if self.address is not None and self.engine != "ray":
            raise ConfigError("An `address` is that of a Ray cluster: add --engine ray.")
        if self.secure and (self.seed is not None or self.noise == "gaussian"):
            raise ConfigError("A secure run needs grid noise and a fresh key: drop `seed`, or `secure`.")

    def make_procedure(self) -> Procedure[Any]:
        """The procedure that every input goes through."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """What the run does: certify or predict."""
        raise NotImplementedError

    @property
    def tests_true_labels(self) -> bool:
        """True where an input's procedure is about its true class."""
        return False


@dataclass(frozen=True, kw_only=True)
class CertifySettings(RunSettings):
    """Settings of a run that certifies."""

    procedure: Literal["auto", "planned", "grid", "paper"] = "auto"
    """planned: as large a radius as the draws allow; grid: which of --radii hold; paper: CERTIFY with n-max draws;
    auto: grid where radii are given, else planned."""
    radii: Floats = ()
    """Radii to decide upon; far fewer draws than finding one radius per input."""
    effort: Literal["quick", "balanced", "full"] = "balanced"
    """How many draws a certificate is worth."""
    rival: bool = True
    """Use the strongest rival's votes too, which certifies more where classes are many."""
    known_labels: bool = False
    """Test each input's true class straight away, to evaluate a test set at --radii."""

    def make_procedure(self) -> Procedure[Any]:
        """The certification procedure; for known labels each input's own differs in the label alone."""
        from smoothcert.stats.grid import Grid
        from smoothcert.stats.planned import Planned
        from smoothcert.stats.procedures import FixedN

        name = ("grid" if self.radii else "planned") if self.procedure == "auto" else self.procedure
        if (name == "grid") != bool(self.radii):
            raise ConfigError("Expected `radii` with the procedure grid, and with no other.")
        if self.known_labels and name != "grid":
            raise ConfigError("Known labels are for the procedure grid: give `radii`.")
        if name == "paper":
            return FixedN(alpha=self.alpha, n=self.n_max)
        if name == "planned":
            return Planned(alpha=self.alpha, n_max=self.n_max, effort=self.effort, rival=self.rival)
        radii = tuple(float(radius) for radius in self.radii)
        common: dict[str, Any] = {"alpha": self.alpha, "n_max": self.n_max, "effort": self.effort, "rival": self.rival}
        return Grid(radii=radii, sigma=self.sigma, **common)

    @property
    def kind(self) -> str:
        """What the run does."""
        return "certify"

    @property
    def tests_true_labels(self) -> bool:
        """True where an input's procedure is about its true class."""
        return self.known_labels


@dataclass(frozen=True, kw_only=True)
class PredictSettings(RunSettings):
    """Settings of a run that predicts."""

    procedure: Literal["sequential", "paper"] = "sequential"
    """sequential: stops as soon as it can; paper: PREDICT with n-max draws."""

    def make_procedure(self) -> Procedure[Any]:
        """The prediction procedure."""
        from smoothcert.stats.procedures import Predict, SequentialPredict

        if self.procedure == "paper":
            return Predict(alpha=self.alpha, n=self.n_max)
        return SequentialPredict(alpha=self.alpha, n_max=self.n_max)

    @property
    def kind(self) -> str:
        """What the run does."""
        return "predict"
