"""What the commands certify and predict have in common: load, run, watch, sum up."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from smoothcert.cli.arguments import DataArguments, ModelArguments
from smoothcert.errors import ConfigError, RowsFailedError
from smoothcert.runs.directory import Writer
from smoothcert.runs.settings import RunSettings
from smoothcert.runs.watch import Watch

if TYPE_CHECKING:
    from smoothcert.runs.directory import Run


class Terminated(BaseException):
    """A signal asked us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@dataclass(frozen=True, kw_only=True)
class OutArguments:
    """Where a run goes."""

    out: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Directory of the run; a new one, or with --resume the one to go on with."""
    resume: bool = False
    """Go on with the run in --out, after a crash or Ctrl-C."""
    json: bool = False
    """Print one JSON object at the end."""

    @contextmanager
    def writing(self, kind: str) -> Iterator[tuple[Writer, Watch]]:
        """The directory, taken at once, so that who comes second is told so, and a progress bar."""
        watch = Watch(kind, on_start=None if self.json else _tell_start)
        with ending_on_signals(), Writer(self.out, resume=self.resume) as writer, watch:
            yield writer, watch


@dataclass(frozen=True, kw_only=True)
class RunArguments(OutArguments, ModelArguments, DataArguments, RunSettings):
    """Model, data and settings of a run, and where it goes."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Data set by name (digits, mnist, fashion-mnist, cifar10, cifar100, svhn, imagenet, hf:NAME), or a folder of
    images, .npz or .npy."""
    shard: Annotated[str | None, tyro.conf.arg(metavar="I/N", help_behavior_hint="")] = None
    """Take only the I-th of N parts of the chosen inputs, from 1/N; then merge. Needs --seed, --batch-size and --chunk,
    the same for all parts."""

    def execute(self) -> Run:
        """Check everything, run, and return the finished run."""
        self.check()
        # The directory is taken before torch and the model are loaded: who comes second is told at once.
        with self.writing(self.kind) as (writer, watch):
            from smoothcert.runs.smoothing import run_dataset

            spec = self.model_spec(self.sigma)
            classifier = spec.load()
            data = self.load_data(self.data, classifier)
            return run_dataset(
                spec,
                data,
                self,
                writer,
                classifier=classifier,
                indices=self._part(self.select(data).tolist()),
                on_start=watch.start,
                on_rows=watch.rows,
                on_draws=watch.draws,
            )

    def _part(self, indices: list[int]) -> list[int]:
        from smoothcert.runs.settings import parse_shard

        if self.shard is None:
            return indices
        if None in (self.seed, self.batch_size, self.chunk):
            raise ConfigError("Parts that are to be merged need `seed`, `batch_size` and `chunk`, the same for all.")
        number, count = parse_shard(self.shard, most=len(indices))
        return indices[number - 1 :: count]


def _tell_start(done: int, total: int, notice: str | None) -> None:
    with suppress(OSError):  # that nobody reads this is no reason to stop
        if notice:
            sys.stderr.write(f"notice: {notice}\n")
        if done:
            sys.stdout.write(f"{done:,} of {total:,} inputs are there already.\n")
            sys.stdout.flush()


def tell(words: str) -> None:
    """Write a line to standard error."""
    with suppress(OSError):
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the run as Ctrl-C does: what is written stays, nothing is torn."""

    def end(number: int, _: FrameType | None) -> None:
        raise Terminated(number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    try:
        old = {name: signal.signal(getattr(signal, name), end) for name in names}
    except ValueError:  # not the main thread
        old = {}
    try:
        yield
    finally:
        for name, handler in old.items():
            signal.signal(getattr(signal, name), handler)


def finish(console: Console, run: Run, *, as_json: bool, summary: dict[str, Any]) -> None:
    """Print where the run is; RowsFailedError if inputs failed, so that the exit code says so."""
    if as_json:
        sys.stdout.write(json.dumps(summary, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        console.print(f"Run: {escape(str(run.path))}  [dim]smoothcert show {escape(str(run.path))}[/]", soft_wrap=True)
    if run.errors:
        first = run.errors[0]
        raise RowsFailedError(
            f"{len(run.errors):,} of {len(run.rows):,} inputs failed and are marked so; the first, input "
            f"{first['index']}: {first['error']}. Add --resume --retry-errors to redo them."
        )
