"""How a data set is certified or predicted: what the API, the command line, a config file and the manifest share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from smoothcert.checks import check_alpha, check_choice, check_count, check_sigma
from smoothcert.errors import ConfigError
from smoothcert.options import Effort, Floats, OptionalFloat, OptionalInt, OptionalText, PlanName, Precision
from smoothcert.time_limit import DEFAULT_HOURS, check_hours

if TYPE_CHECKING:
    from smoothcert.stats.procedures import Procedure


def parse_shard(text: str, *, most: int) -> tuple[int, int]:
    """The part and the number of parts in "I/N"."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= most):
        raise ConfigError(f"Expected `shard` as I/N, from 1/N to N/N with N at most {most}, got {text!r}.")
    return int(number), int(count)


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Who does the work of a run, of whatever kind it is."""

    engine: Literal["local", "ray"] = "local"
    """local: this machine; ray: a Ray cluster."""
    workers: OptionalInt = None
    """Processes that work side by side; by default one here, and as many as fit on a cluster."""
    address: OptionalText = None
    """Address of a running Ray cluster; by default one is started here."""
    timeout: OptionalFloat = None
    """Seconds without a forward pass after which an input is tried once more, then marked as failed. Time during which
    the machine or the process was stopped does not count. Runs the model in worker processes."""
    retry_errors: bool = False
    """With --resume: redo the inputs that failed, with the same noise. Other rows stay as they are."""

    def check(self) -> None:
        """Raise ConfigError for settings out of range, before anything is loaded or written."""
        if self.workers is not None:
            check_count("workers", self.workers)
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise ConfigError(f"Expected `timeout` to be a finite number of seconds > 0, got {self.timeout!r}.")
        if self.address is not None and self.engine != "ray":
            raise ConfigError("An `address` is that of a Ray cluster: add --engine ray.")


@dataclass(frozen=True, kw_only=True)
class RunSettings(EngineSettings):
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
    plan: PlanName = "auto"
    """What runs the model: auto as `smoothcert tune` finds, which is looked for now if that pays; eager as it is; or
    another backend."""
    precision: Precision = "fp32"
    """Numbers that the model computes with. An int8 network is another one, and what is certified then is that one."""
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

    def check(self) -> None:
        """Raise ConfigError for settings out of range, before anything is loaded or written."""
        check_sigma(self.sigma)
        self.make_procedure()
        for name in ("batch_size", "chunk"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        super().check()
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
    """planned: as large a radius as the draws allow; grid: which of --radii hold; paper: CERTIFY with n-max draws.
    auto: grid where radii are given, else planned."""
    radii: Floats = ()
    """Radii to decide upon; far fewer draws than finding one radius per input."""
    effort: Effort = "balanced"
    """How many draws a certificate is worth. As a number: for planned, the radius in units of sigma that one more draw
    must promise (balanced: 2e-6); for grid, the draws that one more certified radius is worth (balanced: 1e6)."""
    rival: bool = True
    """Use the strongest rival's votes too, which certifies more where classes are many."""
    margin: float = 0.0
    """Certify the radius within which the class leads every other class by at least this much in probability (from 0 to
    below 1), so that perturbations cannot force predictions to abstain."""
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
            return FixedN(alpha=self.alpha, n=self.n_max, margin=self.margin)
        common: dict[str, Any] = {"alpha": self.alpha, "n_max": self.n_max, "effort": self.effort, "rival": self.rival}
        if name == "planned":
            return Planned(margin=self.margin, **common)
        radii = tuple(float(radius) for radius in self.radii)
        return Grid(radii=radii, sigma=self.sigma, margin=self.margin, **common)

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


@dataclass(frozen=True, kw_only=True)
class BoundSettings(EngineSettings):
    """Settings of a run that bounds a network."""

    method: Literal["lipschitz", "dual", "crown", "auto-lirpa"] = "crown"
    """lipschitz: margin over the product of the layers' norms (Tsuzuku et al. 2018); dual: linear relaxation with the
    same slopes (Wong & Kolter 2018); crown: with the better of two kinds of slopes (Zhang et al. 2018); auto-lirpa:
    CROWN as auto_LiRPA computes it, if that is installed."""
    batch_size: int = 8
    """Inputs that are bounded together."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps; by default the fastest here."""
    time_limit: float = DEFAULT_HOURS
    """Hours that the run may take, by an estimate from its first inputs; longer runs are refused. inf: no limit."""

    def check(self) -> None:
        """Raise ConfigError for settings out of range."""
        check_hours(self.time_limit)
        check_choice("method", self.method, ("lipschitz", "dual", "crown", "auto-lirpa"))
        check_count("batch_size", self.batch_size)
        super().check()

    @property
    def kind(self) -> str:
        """What the run does."""
        return "bound"


@dataclass(frozen=True, kw_only=True)
class AttackSettings(EngineSettings):
    """Settings of a run that attacks a smoothed classifier."""

    factor: Floats = (1.0, 1.5, 2.0)
    """Attack within these multiples of each input's certified radius."""
    attacks: Annotated[
        tuple[Literal["paper", "strong", "ddn", "abstain"], ...],
        tyro.conf.arg(help_behavior_hint="(default: paper strong)"),
    ] = ("paper", "strong")
    """paper: Cohen et al. 2019, Appendix J.3; strong: soft votes, common noises, several rivals and restarts; ddn: the
    smallest perturbation; abstain: a tie, so that PREDICT abstains."""
    alpha: float = 0.001
    """Level of the test by which fresh draws judge an attack."""
    n_max: int = 10_000
    """Most draws of the judge per attempt."""
    clip: bool = False
    """Keep perturbed inputs in [0, 1]; certified balls are not, so that attacks may leave it too."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Numeric precision of the search for perturbations. bf16 is faster on hardware that supports it. The judge always
    runs the network in fp32."""
    seed: OptionalInt = None
    """Same seed, same attacks. By default a fresh key from the operating system, recorded in the run."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps; by default the fastest here."""

    def check(self) -> None:
        """Raise ConfigError for settings out of range."""
        check_alpha(self.alpha)
        check_count("n_max", self.n_max)
        _check_names("attacks", self.attacks, ("paper", "strong", "ddn", "abstain"))
        check_choice("precision", self.precision, ("fp32", "bf16"))
        positive = all(0 < one < float("inf") for one in self.factor)
        if not self.factor or not positive or len(set(self.factor)) < len(self.factor):
            raise ConfigError(f"Expected `factor` to be different finite numbers > 0, got {self.factor!r}.")
        super().check()

    @property
    def kind(self) -> str:
        """What the run does."""
        return "attack"


@dataclass(frozen=True, kw_only=True)
class BaseAttackSettings(EngineSettings):
    """Settings of a run that attacks a base classifier."""

    attacks: Annotated[
        tuple[Literal["deepfool", "pgd", "ddn", "cw"], ...], tyro.conf.arg(help_behavior_hint="(default: all)")
    ] = ("deepfool", "pgd", "ddn", "cw")
    """Attacks of foolbox, in L2; the smallest perturbation that any of them finds counts."""
    steps: OptionalInt = None
    """Gradients of one ascent; by default each attack's own number."""
    batch_size: int = 100
    """Inputs that are attacked together."""
    clip: bool = True
    """Keep perturbed inputs in [0, 1]."""
    seed: int = 0
    """Same seed, same attacks."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps; by default the fastest here."""

    def check(self) -> None:
        """Raise ConfigError for settings out of range."""
        _check_names("attacks", self.attacks, ("deepfool", "pgd", "ddn", "cw"))
        for name, value in (("steps", self.steps), ("batch_size", self.batch_size)):
            if value is not None:
                check_count(name, value)
        check_count("seed", self.seed, least=0)
        super().check()

    @property
    def kind(self) -> str:
        """What the run does."""
        return "attack-base"


def _check_names(name: str, values: Sequence[str], known: Sequence[str]) -> None:
    for value in values:
        check_choice(name, value, known)
    if not values or len(set(values)) < len(values):
        raise ConfigError(f"Expected different names in `{name}`, at least one, got {values!r}.")
