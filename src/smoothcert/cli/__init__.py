"""The command `smoothcert`: parses, calls the library, prints. Torch is loaded only by commands that need it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, NoReturn, Union

import tyro
from rich.console import Console

from smoothcert import __version__
from smoothcert.allocator import keep_freed_memory
from smoothcert.cli.attack import Attack
from smoothcert.cli.attack_base import AttackBase
from smoothcert.cli.baseline import Baseline
from smoothcert.cli.card import Card
from smoothcert.cli.certify import Certify
from smoothcert.cli.compare import Compare
from smoothcert.cli.data import Data
from smoothcert.cli.demo import Demo
from smoothcert.cli.export import Export
from smoothcert.cli.import_run import Import
from smoothcert.cli.inspect import Inspect
from smoothcert.cli.merge import Merge
from smoothcert.cli.plan import Plan
from smoothcert.cli.plot import Plot
from smoothcert.cli.predict import Predict
from smoothcert.cli.replay import Replay
from smoothcert.cli.report import Report
from smoothcert.cli.run_command import Terminated
from smoothcert.cli.show import Show
from smoothcert.cli.sweep import Sweep
from smoothcert.cli.table import Table
from smoothcert.cli.train import Train
from smoothcert.cli.tune import Tune
from smoothcert.cli.verify import Verify
from smoothcert.config import load_config
from smoothcert.errors import SmoothcertError

COMMANDS: dict[str, type[Any]] = {
    "demo": Demo,
    "train": Train,
    "sweep": Sweep,
    "tune": Tune,
    "card": Card,
    "inspect": Inspect,
    "certify": Certify,
    "predict": Predict,
    "attack": Attack,
    "attack-base": AttackBase,
    "baseline": Baseline,
    "compare": Compare,
    "show": Show,
    "table": Table,
    "plot": Plot,
    "report": Report,
    "verify": Verify,
    "export": Export,
    "import": Import,
    "merge": Merge,
    "data": Data,
    "plan": Plan,
    "replay": Replay,
}

_DESCRIPTION = "Certified robustness for any classifier by randomized smoothing."
_EXAMPLES = """
examples:
  smoothcert demo                       see it work, in under a minute
  smoothcert train DATA --sigma 0.25 --out MODEL
  smoothcert inspect MODEL --data DATA  is it the right model, and what would certifying it take
  smoothcert tune MODEL --data DATA     the fastest way to run it on this machine
  smoothcert certify MODEL DATA --sigma 0.25 --out RUN
  smoothcert attack RUN --factor 1 1.5 2 --out ATTACK
  smoothcert baseline MODEL DATA --method crown --out RUN
  smoothcert compare RUN RUN --out DIR  smoothing and bounds on the same inputs
  smoothcert show RUN                   what was certified
  smoothcert table RUN RUN RUN          runs side by side
  smoothcert plot certified-accuracy RUN RUN --out curves.pdf
  smoothcert report RUN --out report.html   one page to hand over
  smoothcert verify RUN                 check it, certificate by certificate
  smoothcert export RUN --out log.tsv   for other tools
  smoothcert data list                  which data sets are here
  smoothcert plan --sigma 0.25          how many draws which radius takes
  smoothcert replay votes.npz           any procedure on recorded votes
  smoothcert demo --config demo.toml    settings from a file; flags win over it
  smoothcert plan --help                all settings of a command
  smoothcert --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (by default the process's own) and return its exit code.

    0 done; 1 other errors; 2 bad settings or input; 3 bad model; 4 not the run to resume; 5 an extra is missing;
    6 the output cannot be written; 130 interrupted.
    """
    _never_fail_to_encode()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except SmoothcertError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except Terminated as end:
        return _fail("terminated", end.exit_code)
    except BrokenPipeError:  # whoever read our output has seen enough
        _silence_stdout()
        return 141
    except OSError as error:
        return _fail(f"cannot write the output: {error}", 6)


def entry() -> NoReturn:
    """The command as a process: ends it, and at once if it was asked to end, even where a thread still hangs."""
    keep_freed_memory()  # for the whole process, which is ours
    code = main()
    if code > 128:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(argv: list[str]) -> int:
    if argv in (["--version"], ["-V"]):
        sys.stdout.write(f"smoothcert {__version__}\n")
        return 0
    try:
        command = _parse(argv or ["--help"])
        command.run(Console(highlight=False))
    except SystemExit as stop:  # how tyro ends after --help or an unknown flag
        if stop.code == 0:
            sys.stdout.write(COMMANDS[argv[0]].examples if argv and argv[0] in COMMANDS else _EXAMPLES)
        return stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.stdout.flush()
    return 0


def _parse(argv: list[str]) -> Any:
    name, path = argv[0], _config_path(argv)
    defaults = {}
    if path is not None and name in COMMANDS:
        defaults[name] = _with_defaults(COMMANDS[name], load_config(COMMANDS[name], path))
    choices = tuple(
        Annotated[cls, tyro.conf.subcommand(key, **({"default": defaults[key]} if key in defaults else {}))]
        for key, cls in COMMANDS.items()
    )
    return tyro.cli(Union[choices], prog="smoothcert", description=_DESCRIPTION, args=argv)  # noqa: UP007


def _config_path(argv: list[str]) -> Path | None:
    """What follows --config: the file must be read before the flags, since these win over it."""
    for flag, following in zip(argv, [*argv[1:], ""], strict=True):
        if flag.startswith("--config="):
            return Path(flag.removeprefix("--config="))
        if flag == "--config" and following:
            return Path(following)
    return None


def _with_defaults(cls: type[Any], values: dict[str, Any]) -> Any:
    """A command with these values, and with tyro's mark for "must be given" where it has no default."""
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return cls(**{**dict.fromkeys(required, tyro.MISSING), **values})


def _fail(message: str, exit_code: int) -> int:
    from smoothcert.data.names import printable  # a name in the message may hold commands to the terminal

    sys.stderr.write(f"error: {printable(' '.join(message.split()))}\n")
    return exit_code


def _never_fail_to_encode() -> None:
    """On a terminal without Greek letters, σ becomes a question mark instead of a crash."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _silence_stdout() -> None:
    """Python flushes stdout once more when it ends; let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
