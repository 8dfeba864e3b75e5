"""CIFAR-10: the attack of Section 4 of Cohen et al. 2019 on a smoothed ResNet-56 at σ = 0.25.

    python reproduce/attack_cifar10.py                   train, certify and attack, then write the page
    python reproduce/attack_cifar10.py --network MODEL   the same with a network that is trained already
    python reproduce/attack_cifar10.py --page            write the page from the kept runs

The page is docs/results/attack-cifar10.md. Interrupted commands resume. The network and the runs go into --out; the
runs that the page is made from are copied to docs/results/attack-cifar10.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from results import RESULTS, ROOT, attack_success, keep_run

from smoothcert.cli import main as smoothcert
from smoothcert.records import ceil_decimal
from smoothcert.runs import open as open_run
from smoothcert.runs.attacking import certified_inputs

SIGMA = "0.25"
EVERY = "200"
N_MAX = "10000"
TRAIN = "train cifar10 --arch resnet56 --sigma 0.25 --recipe gaussian --epochs 30 --precision bf16 --seed 1"
CERTIFY = f"--sigma {SIGMA} --every {EVERY} --n-max {N_MAX} --seed 0"
ATTACK = "--attacks paper --factor 1.5 2 --inputs 40 --precision bf16 --seed 0"
KEPT = RESULTS / "attack-cifar10"
PAGE = """# CIFAR-10: the attack of the paper's Section 4

{table}
The attack of Cohen et al. 2019, Appendix J.3, takes 20 steps of length 0.1 up the expected cross-entropy, with 1,000
noise samples per step. It is applied to {inputs} CIFAR-10 test images that a smoothed ResNet-56 certifies with their
true class, within 1.5 and 2 times each image's certified radius R. No ball has a radius above {ball}. Twenty steps
can reach 2.0, so the number of steps is the paper's. The printed figures are for ImageNet at σ = 0.25.

## How it was made

    smoothcert {train}
    smoothcert certify NETWORK cifar10 {certify}
    smoothcert attack RUN {attack}

- Of {images} images, {right} are certified with their true class, by the planned procedure with α = 0.001.
- The search computes its gradients in mixed precision. The judge runs the network in fp32: fresh draws decide, by a
  test at α = 0.001, whether the class changed. If {judge:,} draws cannot decide, the attempt counts as an abstention.

`make reproduce-attack` repeats everything; the runs are in [attack-cifar10/](attack-cifar10/).

## Caveats

- The certificates use at most {n_max:,} draws, where the paper uses 100,000. The radii of the most robust images are
  therefore smaller (at most {largest}) than 100,000 draws would certify, and so are the balls that are attacked.
- The paper certifies with α = 0.01 here, this page with α = 0.001, which makes R smaller.
- {inputs} images give wide intervals.
- An attack shows what can be changed at least. [On MNIST](baselines.md) a stronger attack does at least as well within
  the same radii.
"""


def run(out: Path, network: str | None) -> None:
    """Train unless there is a network, certify, and attack what is certified."""
    if network is None:
        network = str(out / "network")
        _call([*TRAIN.split(), "--out", network], Path(network), "train.json")
    _call(["certify", network, "cifar10", *CERTIFY.split(), "--out", str(out / "smoothed")], out / "smoothed")
    _call(["attack", str(out / "smoothed"), *ATTACK.split(), "--out", str(out / "attacked")], out / "attacked")
    for name in ("smoothed", "attacked"):
        keep_run(out / name, KEPT / name, times=False)


def _call(words: list[str], out: Path, begun: str = "run.json") -> None:
    resume = ["--resume"] if (out / begun).exists() else []
    if smoothcert([*words, *resume]):
        sys.exit(f"smoothcert {words[0]} failed")


def page() -> str:
    """The page of the kept runs."""
    smoothed, attacked = open_run(KEPT / "smoothed"), open_run(KEPT / "attacked")
    radii = [row["radius"] for row in attacked.rows]
    return PAGE.format(
        table="\n".join(attack_success(attacked)),
        inputs=len(attacked.rows),
        ball=ceil_decimal(max(radii) * max(attacked.manifest.values["factors"]), 2),
        largest=ceil_decimal(max(radii), 2),
        images=len(smoothed.rows),
        right=len(certified_inputs(smoothed)),
        n_max=smoothed.manifest.values["procedure"]["n_max"],
        judge=attacked.manifest.values["procedure"]["n_max"],
        train=TRAIN,
        certify=CERTIFY,
        attack=ATTACK,
    )


def main() -> None:
    """Do it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "reproduced" / "attack-cifar10")
    parser.add_argument("--network", help="a trained network; default: train one")
    parser.add_argument("--page", action="store_true")
    chosen = parser.parse_args()
    if not chosen.page:
        chosen.out.mkdir(parents=True, exist_ok=True)
        run(chosen.out, chosen.network)
    target = RESULTS / "attack-cifar10.md"
    target.write_text(page(), "utf-8")
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
