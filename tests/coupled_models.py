"""Models that break the contract by letting the rows of a batch, or the calls, influence each other; and honest ones.

Both families are for images [3, 4, 4] and have five classes unless they say otherwise.
"""

import math

import torch
from torch import nn
from torch.nn import functional

CLASSES = 5
MASKS = {"no mask": 0.0, "-1e4": -1e4, "-1e9": -1e9, "smallest": torch.finfo(torch.float32).min, "-inf": -math.inf}


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def plain(classes=CLASSES):
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, classes))).eval()


def flat(batch):
    return batch.flatten(1)


def brightness(batch):
    return flat(batch).mean(dim=1)


class Coupled(nn.Module):
    """Changes the batch by something computed over all of it, then classifies; the last class may be masked."""

    def __init__(self, change, mask=0.0):
        super().__init__()
        self.network, self.change, self.mask = plain(), change, mask

    def forward(self, batch):
        scores = self.network(self.change(batch))
        if self.mask:
            scores = scores.clone()
            scores[:, -1] = self.mask
        return scores


def quantised(values):
    scale = values.abs().max() / 7
    return (values / scale).round() * scale


def attended(batch):
    rows = flat(batch)
    return (torch.softmax(rows @ rows.T / 4, dim=1) @ rows).view_as(batch)


CHANGES = {
    "batch mean": lambda batch: batch - batch.mean(),
    "batch statistics": lambda batch: (batch - batch.mean(0)) / (batch.std(0, correction=0) + 1e-2),
    "dynamic quantisation": quantised,
    "attention across the batch": attended,
}


class Stateful(nn.Module):
    """Adds something that depends on earlier calls."""

    def __init__(self, update):
        super().__init__()
        self.network, self.update, self.state, self.calls = plain(), update, 0.0, 0

    def forward(self, batch):
        scores = self.network(batch)
        scores = scores + self.state * torch.arange(CLASSES)
        self.calls += 1
        self.state = self.update(self, batch)
        return scores


class Cached(nn.Module):
    """Returns the answers of an earlier batch whose key was the same."""

    def __init__(self, key):
        super().__init__()
        self.network, self.key, self.known = plain(), key, {}

    def forward(self, batch):
        return self.known.setdefault(self.key(batch), self.network(batch))


class Positional(nn.Module):
    """Shifts each image by its position in the batch, as a random crop keyed by position does."""

    def __init__(self):
        super().__init__()
        self.network = plain()

    def forward(self, batch):
        return self.network(torch.stack([image.roll(place % 4, dims=-1) for place, image in enumerate(batch)]))


class OnlyWhere(nn.Module):
    """Couples rows only under a condition on the batch."""

    def __init__(self, condition):
        super().__init__()
        self.network, self.condition = plain(), condition

    def forward(self, batch):
        scores = self.network(batch)
        if self.condition(self, batch):
            scores = scores.roll(1, dims=0)
        return scores


class AfterCalls(OnlyWhere):
    """Couples rows only after a number of calls."""

    def __init__(self, calls):
        super().__init__(lambda model, batch: model.count > calls and len(batch) > 1)
        self.count = 0

    def forward(self, batch):
        self.count += 1
        return super().forward(batch)


def by_scores(change):
    """A model that changes the scores of the plain one, given the scores and the batch."""
    network = plain()
    return lambda batch: change(network(batch), batch)


def by_batch_mean(sign, *, one_hot):
    def model(batch):
        label = int(sign * (batch.mean() - 0.4) > 0)
        labels = torch.full((len(batch),), label)
        return functional.one_hot(labels, CLASSES).float() if one_hot else labels

    return model


def row_or_mean_labels(batch):
    """Labels by the row's brightness relative to the batch's."""
    return (brightness(batch) > batch.mean()).long()


def coupled_models():
    """Name to a function that makes the model."""
    models = {}
    for change_name, change in CHANGES.items():
        for mask_name, mask in MASKS.items():
            models[f"{change_name}, {mask_name}"] = lambda change=change, mask=mask: Coupled(change, mask)
    for sign in (1, -1):
        for one_hot in (False, True):
            form = "one-hot scores" if one_hot else "labels"
            name = f"{form} by batch mean, sign {sign}"
            models[name] = lambda sign=sign, one_hot=one_hot: by_batch_mean(sign, one_hot=one_hot)
    models |= {
        "labels relative to the batch": lambda: row_or_mean_labels,
        "labels of batch statistics": lambda: by_scores(lambda s, _: (s - s.mean(0)).argmax(1)),
        "softmax over the batch": lambda: by_scores(lambda s, _: s.softmax(0)),
        "scores over the batch's largest": lambda: by_scores(lambda s, _: s / s.abs().max() + s.sign() * s.max()),
        "ranks within the batch": lambda: by_scores(lambda s, _: s.argsort(0).argsort(0).float()),
        "cumulative sum": lambda: by_scores(lambda s, _: s.cumsum(0)),
        "rolled by one": lambda: by_scores(lambda s, _: s.roll(1, 0) + 1e-3 * s),
        "mixed with the neighbour": lambda: by_scores(lambda s, _: s + 0.5 * s.flip(0)),
        "median subtracted": lambda: by_scores(lambda s, _: s - s.median(0).values),
        "last row zero": lambda: by_scores(lambda s, _: torch.cat([s[:-1], 0 * s[-1:]])),
        "bias by position": lambda: by_scores(
            lambda s, _: s + torch.arange(len(s))[:, None] * torch.arange(CLASSES) * 0.01
        ),
        "bias by batch length": lambda: by_scores(lambda s, _: s + math.log(len(s)) * torch.arange(CLASSES)),
        "branch by batch deviation": lambda: by_scores(lambda s, b: -s if b.std() > 1 else s),
        "crops keyed by position": Positional,
        "running mean of calls": lambda: Stateful(lambda m, b: 0.9 * m.state + 0.1 * float(b.mean())),
        "alternating calls": lambda: Stateful(lambda m, _: float(m.calls % 2)),
        "mean of the previous batch": lambda: Stateful(lambda _, b: float(b.mean())),
        "cache by batch length": lambda: Cached(len),
        "cache by first value's sign": lambda: Cached(lambda b: (len(b), float(b[0, 0, 0, 0]) > 0)),
        "couples from 200 rows on": lambda: OnlyWhere(lambda _, b: len(b) >= 200),
        "couples full batches only": lambda: OnlyWhere(lambda _, b: len(b) in (64, 128, 256, 512, 1024)),
        "couples after 40 calls": lambda: AfterCalls(40),
    }
    return models


class SharedDropout(nn.Module):
    """Draws one mask for the whole batch."""

    def __init__(self, *, per_row=False):
        super().__init__()
        self.network, self.per_row = plain(), per_row

    def forward(self, batch):
        rows = len(batch) if self.per_row else 1
        mask = (torch.rand(rows, 3, 4, 4) < 0.3).float() * 6
        return self.network(batch * mask)


def random_coupled_models():
    """Random models whose rows influence each other, all declared as random."""
    network = plain()

    def jittered_labels(batch):
        flips = torch.rand(len(batch)) < 0.3
        return torch.where(flips, 1, (brightness(batch) > batch.mean()).long())

    return {
        "one dropout mask per batch": SharedDropout,
        "one random class per batch": lambda: lambda b: torch.randint(CLASSES, (1,)).repeat(len(b)),
        "random, and batch mean": lambda: lambda b: network(b - b.mean()) * 30 + torch.randn(len(b), CLASSES),
        "random, and relative to the batch": lambda: jittered_labels,
        "random noise shared by the batch": lambda: lambda b: network(b) + torch.randn(1, CLASSES),
    }


class HalfInside(nn.Module):
    """Computes in low precision and returns float32."""

    def __init__(self, dtype):
        super().__init__()
        self.network, self.dtype = plain().to(dtype), dtype

    def forward(self, batch):
        return self.network(batch.to(self.dtype)).float()


class RowQuantised(nn.Module):
    """Dynamic quantisation with a scale for each row."""

    def __init__(self):
        super().__init__()
        self.network = plain()

    def forward(self, batch):
        scale = batch.abs().amax(dim=(1, 2, 3), keepdim=True) / 127
        return self.network((batch / scale).round() * scale)


class RowAttention(nn.Module):
    """Attention between the pixels of a row."""

    def __init__(self):
        super().__init__()
        self.attention = seeded(lambda: nn.MultiheadAttention(16, 2, batch_first=True))
        self.head = plain()

    def forward(self, batch):
        rows = batch.flatten(2)
        return self.head((rows + self.attention(rows, rows, rows, need_weights=False)[0]).view_as(batch))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = seeded(lambda: nn.LSTM(16, CLASSES, batch_first=True))

    def forward(self, batch):
        return self.lstm(batch.flatten(2))[0][:, -1]


class Ensemble(nn.Module):
    def __init__(self, *, votes=False):
        super().__init__()
        self.members = nn.ModuleList(plain() for _ in range(3))
        with torch.no_grad():
            for number, member in enumerate(self.members):
                member[1].weight += 0.05 * number
        self.votes = votes

    def forward(self, batch):
        scores = torch.stack([member(batch) for member in self.members])
        if self.votes:
            return functional.one_hot(scores.argmax(2), CLASSES).sum(0).float()
        return scores.mean(0)


class RowCache(nn.Module):
    """Remembers the answer to each row by its content, which changes no answer."""

    def __init__(self):
        super().__init__()
        self.network, self.known = plain(), {}

    def forward(self, batch):
        return torch.cat([self.known.setdefault(row.numpy().tobytes(), self.network(row[None])) for row in batch])


def convolutional(*extra):
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), *extra, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, CLASSES)
        )
    )


def masked(value, classes=1):
    def model(scores, _):
        scores = scores.clone()
        scores[:, CLASSES - classes :] = value
        return scores

    return by_scores(model)


def in_place(batch):
    batch.sub_(0.5).mul_(2)
    return torch.stack([flat(batch)[:, start::CLASSES].sum(1) for start in range(CLASSES)], dim=1)


def honest_models():
    """Name to a function that makes the model."""
    network = plain()
    models = {
        "plain": plain,
        "a thousand classes": lambda: plain(1000),
        "two classes": lambda: plain(2),
        "scores times 1e6": lambda: by_scores(lambda s, _: s * 1e6),
        "scores times 1e-8": lambda: by_scores(lambda s, _: s * 1e-8),
        "scores times 1e30": lambda: by_scores(lambda s, _: s * 1e30),
        "offset of 1e4": lambda: by_scores(lambda s, _: s + 1e4),
        "offset of 1e6": lambda: by_scores(lambda s, _: s * 100 + 1e6),
        "exponential range": lambda: by_scores(lambda s, b: s * torch.exp(20 * brightness(b))[:, None]),
        "squared scores": lambda: by_scores(lambda s, _: s.square() * 1e3),
        "softmax": lambda: by_scores(lambda s, _: s.softmax(1)),
        "sharp softmax": lambda: by_scores(lambda s, _: (1e3 * s).softmax(1)),
        "log softmax": lambda: by_scores(lambda s, _: (1e3 * s).log_softmax(1)),
        "one-hot": lambda: by_scores(lambda s, _: functional.one_hot(s.argmax(1), CLASSES).float()),
        "labels": lambda: lambda b: network(b).argmax(1),
        "int32 labels": lambda: lambda b: network(b).argmax(1).int(),
        "no label for some": lambda: lambda b: torch.where(brightness(b) > 0.5, -1, network(b).argmax(1)),
        "NaN for some": lambda: by_scores(lambda s, b: torch.where(brightness(b)[:, None] > 0.5, math.nan, s)),
        "infinity for some": lambda: (
            lambda b: torch.where((brightness(b)[:, None] > 0.5) & (torch.arange(CLASSES) == 2), math.inf, network(b))
        ),
        "constant": lambda: lambda b: torch.tensor([[3.0, 1, 1, 1, 1]]).repeat(len(b), 1),
        "tied": lambda: lambda b: torch.zeros(len(b), CLASSES),
        "nearly tied": lambda: by_scores(lambda s, _: 1 + 1e-5 * s),
        "float16 inside": lambda: HalfInside(torch.float16),
        "bfloat16 inside": lambda: HalfInside(torch.bfloat16),
        "float16 scores": lambda: lambda b: network(b).half(),
        "bfloat16 scores": lambda: lambda b: network(b).bfloat16(),
        "float64": lambda: HalfInside(torch.float64),
        "quantised by row": RowQuantised,
        "ensemble": Ensemble,
        "majority of an ensemble": lambda: Ensemble(votes=True),
        "batch norm": lambda: convolutional(nn.BatchNorm2d(8)),
        "layer norm": lambda: convolutional(nn.LayerNorm([8, 4, 4])),
        "group norm": lambda: convolutional(nn.GroupNorm(2, 8)),
        "instance norm": lambda: convolutional(nn.InstanceNorm2d(8)),
        "dropout": lambda: convolutional(nn.Dropout(0.5)),
        "attention within a row": RowAttention,
        "recurrent": Recurrent,
        "sorted within a row": lambda: lambda b: network(flat(b).sort(1).values.view_as(b)),
        "row by row": lambda: lambda b: torch.cat([network(row[None]) for row in b]),
        "cache by row": RowCache,
        "changes its input": lambda: in_place,
        "nearest prototype": lambda: lambda b: -torch.cdist(flat(b), torch.eye(CLASSES, 48)),
        "decision stump": lambda: lambda b: (flat(b)[:, 7] > 0.3).long() + 2 * (flat(b)[:, 11] > 0.6).long(),
    }
    for name, value in MASKS.items():
        if value:
            models[f"masked {name}"] = lambda value=value: masked(value)
            models[f"three of five masked {name}"] = lambda value=value: masked(value, classes=3)
    return models


def random_honest_models():
    """Random models whose randomness is fresh for every row."""
    network = plain()
    return {
        "fresh dropout": lambda: SharedDropout(per_row=True),
        "random labels": lambda: lambda b: torch.randint(CLASSES, (len(b),)),
        "noise on scores": lambda: lambda b: network(b) + torch.randn(len(b), CLASSES),
        "no answer for some": lambda: (
            lambda b: torch.where(torch.rand(len(b), 1) < 0.4, math.nan, network(b) + torch.randn(len(b), CLASSES))
        ),
    }
