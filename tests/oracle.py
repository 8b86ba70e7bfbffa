"""The slow oracle of the clipping engine: one record after the other, in float64, by ordinary autograd."""

import copy

import torch
from torch import nn

from sfumato.diffusion.objective import Examples, record_losses


def loop(model, names, examples):
    """Each record's gradient in float64: `[b]` dictionaries."""
    slow = copy.deepcopy(model).double().requires_grad_(True)
    gradients = []
    for record in range(len(examples.y)):
        one = examples.map(lambda field, at=record: field[at : at + 1])
        one = Examples(one.x_t.double(), one.t, one.y, one.target.double())
        slow.zero_grad()
        record_losses(slow, one).sum().backward()
        gradients.append(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for name, p in slow.named_parameters()
                if name in names
            }
        )
    return gradients


def norm(gradient):
    """Over all parameters."""
    return torch.cat([g.double().flatten() for g in gradient.values()]).norm()


def clipped(gradients, clip):
    """The clipped sum of a list of gradients."""
    total = {name: torch.zeros_like(value) for name, value in gradients[0].items()}
    for gradient in gradients:
        factor = min(1.0, clip / max(float(norm(gradient)), 1e-300))
        for name, value in gradient.items():
            total[name] += factor * value
    return total


def distance(computed, expected):
    """Relative to the size of what is expected."""
    return float(norm({name: computed[name].double() - expected[name] for name in expected}) / norm(expected))


class Wrapped(nn.Module):
    """A net on images alone as a denoiser: what it says is shrunk or repeated to the size of the image."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, t, y):
        out = self.net(x).flatten(1)
        pixels = x[0].numel()
        return out.repeat(1, -(-pixels // out.shape[1]))[:, :pixels].view_as(x)


def pictures(records, draws, shape=(3, 6, 6), scale=1.0):
    """Random examples, the same each time."""
    generator = torch.Generator().manual_seed(5)
    x, target = (torch.randn(records, draws, *shape, generator=generator) * scale for _ in range(2))
    ones = torch.ones(records, draws, dtype=torch.long)
    return Examples(x, ones, ones, target)


def by(way):
    """A choice that takes this way wherever it can serve."""

    def choose(layer, saved, q, records):
        ways = layer.ways(saved, q, records)
        return way if way in ways else ways[0]

    return choose


WAYS = ("loop", "grouped", "product", "patches", "gram", "scatter")
