"""Votes that are checked while they are counted: a few noisy samples of every input are classified again, alone.

The contract is checked once per shape, on the first input. A model may couple the rows of a batch only for some
inputs, or carry state from call to call; so for every input a keyed sample of the very draws that were counted must get
the same answers alone as they got in company.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from smoothcert.errors import ModelError
from smoothcert.models.agreement import differing, voted
from smoothcert.models.contract import INFLUENCE, SHARES_LEVEL, Model, answers_alone
from smoothcert.records import Votes
from smoothcert.stats.shares import same_shares_p_value

# Of many thousand rows some are further from typical than the few that the contract is checked on.
_RELATIVE = 1e-2
_LEAST, _MOST = 4, 16
_MOST_RANDOM = 64


def sample_size(n: int, *, first: bool, allow_random: bool) -> int:
    """How many of the `n` draws of a stage are classified again: of an input's first stage at least four.

    One draw in a thousand costs less than 1 % of the time, though a batch of one row is less efficient. Random models
    need more, since only shares of votes can be compared.
    """
    least = min(n, _LEAST) if first else 0
    share = n // 100 if allow_random else n // 1000
    return max(least, min(share, _MOST_RANDOM if allow_random else _MOST))


class Reclassification:
    """Collects sampled rows with the answers that were counted, from any number of threads, and checks them.

    Args:
        samples: for each request, the numbers of its draws that are classified again.
        spread: how far apart the model's scores typically lie.
        allow_random: compare shares of votes rather than answers.
    """

    def __init__(self, samples: Sequence[Sequence[int]], spread: float, *, allow_random: bool) -> None:
        self.samples, self._spread, self._allow_random = samples, spread, allow_random
        self._kept: list[tuple[int, Tensor, Tensor]] = []
        self._lock = threading.Lock()

    def keep(self, request: int, inputs: Tensor, answers: Tensor) -> None:
        """Keep rows [N, *D] of a request, which the model must not have changed, and the answers to them."""
        with self._lock:
            self._kept.append((request, inputs, answers.clone()))

    def check(self, model: Model, votes: Sequence[Votes], names: Sequence[str]) -> None:
        """Classify what was kept alone; ModelError naming the inputs whose answers are not the same.

        The model must be in eval mode and inference mode. `votes` are those of each request, `names` its input's.
        """
        kept = sorted(self._kept, key=lambda part: part[0])
        if not kept:
            return
        owners = [request for request, inputs, _ in kept for _ in range(len(inputs))]
        counted = torch.cat([answers for _, _, answers in kept])
        alone = torch.cat([answers_alone(model, inputs) for _, inputs, _ in kept])
        if self._allow_random:
            refused = self._different_shares(owners, alone, votes)
        else:
            wrong = differing(counted, alone, self._spread, relative=_RELATIVE).tolist()
            refused = {owner for owner, is_wrong in zip(owners, wrong, strict=True) if is_wrong}
        if refused:
            inputs = ", ".join(dict.fromkeys(names[request] for request in sorted(refused)))
            raise ModelError(
                f"Noisy samples of {inputs} get other answers alone than in the batch in which they were counted. "
                f"{INFLUENCE}"
            )

    def _different_shares(self, owners: Sequence[int], alone: Tensor, votes: Sequence[Votes]) -> set[int]:
        labels = voted(alone)
        refused = set()
        for request in set(owners):
            mine = [int(label) for label, owner in zip(labels.tolist(), owners, strict=True) if owner == request]
            counts = [mine.count(label) for label in range(len(votes[request].counts))]
            in_company = (*votes[request].counts, votes[request].invalid)
            if same_shares_p_value((*counts, len(mine) - sum(counts)), in_company) < SHARES_LEVEL:
                refused.add(request)
        return refused
