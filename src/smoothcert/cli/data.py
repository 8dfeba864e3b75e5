"""`smoothcert data`: fetch standard data sets and published evidence, see which are there, check their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.errors import ConfigError

_EXAMPLES = """
examples:
  smoothcert data list
  smoothcert data fetch mnist
  smoothcert data fetch svhn --split extra --data-root /big/disk
  smoothcert data fetch cohen2019
  smoothcert data check cifar10
"""


@dataclass(frozen=True)
class Data:
    """Fetch a standard data set or published evidence from its publisher, list what is there, or check files."""

    action: Annotated[Literal["fetch", "list", "check"], tyro.conf.Positional]
    """What to do."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """What to fetch or check: mnist, fashion-mnist, cifar10, cifar100, svhn; cohen2019 (logs of the paper),
    cohen2019-votes (votes of its CIFAR-10 networks), wong2018 (a network it is compared with)."""
    split: str | None = None
    """Fetch only this split; the extra images of svhn come only when asked for."""
    data_root: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder of the data sets; by default $SMOOTHCERT_DATA or the cache."""
    mirror: Annotated[str | None, tyro.conf.arg(metavar="URL", help_behavior_hint="")] = None
    """Fetch from below this address instead of the publisher's."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """TOML file with any of these settings; flags win over it."""
    examples: ClassVar[str] = _EXAMPLES

    def run(self, console: Console) -> None:
        """Do what was asked for and print where the files are."""
        if self.action == "list":
            self._list(console)
            return
        if not self.name:
            raise ConfigError(f"Expected the name of a data set, as in `smoothcert data {self.action} mnist`.")
        if self.action == "check":
            self._check(console)
        else:
            self._fetch(console)

    def _list(self, console: Console) -> None:
        from smoothcert.data.fetching import whereabouts
        from smoothcert.data.known import KNOWN
        from smoothcert.data.names import printable
        from smoothcert.data.publications import PUBLICATIONS

        folders = whereabouts(self.data_root)
        where = {name: "missing" if folder is None else printable(folder) for name, folder in folders.items()}
        where["digits"] = "comes with scikit-learn"
        table = Table("data set", "shape", "splits", "where", box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[-1].overflow = "fold"
        for name, data in KNOWN.items():
            shape = "×".join(map(str, data.shape or ("any",)))
            table.add_row(name, shape, " ".join(data.counts), escape(where[name]))
        console.print(table)
        for name, publication in PUBLICATIONS.items():
            console.print(f"{escape(publication.attribution)}where: {escape(where[name])}\n", soft_wrap=True)

    def _check(self, console: Console) -> None:
        from smoothcert.data.fetching import check, named
        from smoothcert.data.names import printable

        files = check(self.name, self.data_root)
        for file in files:
            console.print(f"whole: {escape(printable(file))}", soft_wrap=True)
        if not files:
            console.print(f"{named(self.name).name} comes with scikit-learn; there are no files to check.")

    def _fetch(self, console: Console) -> None:
        from smoothcert.data.fetching import fetch, missing, named
        from smoothcert.data.names import printable
        from smoothcert.data.publications import Publication
        from smoothcert.folders import data_root
        from smoothcert.progress import ProgressBar

        root, data = data_root(self.data_root), named(self.name)
        total = sum(download.size for download in missing(data, root, self.split))
        with ProgressBar(f"fetching {data.name}, kB", total // 1000) as bar:
            new = fetch(
                self.name,
                root,
                split=self.split,
                mirror=self.mirror,
                advance=lambda count: bar.advance(count // 1000),
            )
        for file in new:
            console.print(f"fetched: {escape(printable(file))}", soft_wrap=True)
        if not new:
            console.print(f"{data.name} is there and whole; nothing was fetched.")
        if isinstance(data, Publication):
            console.print(escape(data.attribution), end="", soft_wrap=True)
