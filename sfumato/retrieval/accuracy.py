"""How well retrieval works at a time k, measured on public images that no stage learnt from; and the choice of k by it.

A query is right where the nearest key is of its own public class. Two numbers stand beside that share: *chance*, which the classes'
shares alone give, and a *likelihood reference*, the share that the class posterior of the noised image gets right under the mixture
of the base's own images. The reference knows nothing but the base and is no upper bound: features that learnt from more images
than the base holds may beat it. Where it is near chance, though, the noised image itself hardly holds its class, and no features
will find it.

The paper states accuracy for class-conditional generation (Jiang et al. 2025, section 4.3), which we read so: the one-step image is asked for the very
class that retrieval is then credited with finding. `labelled_first` and `labelled_five` measure that, and `echo` measures the same from
pure noise: what the label alone brings back. Where the two are near each other, the accuracy says nothing about retrieval.

Not covered: retrieval inside one class, where votes confine it; and whether private images resemble the public ones.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sfumato.diffusion.objective import normal
from sfumato.diffusion.schedule import NoiseSchedule, add_noise
from sfumato.rehearsal_findings import RetrievalFindings
from sfumato.retrieval.choice import retrieves
from sfumato.retrieval.features import FeatureMap
from sfumato.retrieval.knowledge_base import PRODUCTS, KnowledgeBase

FIVE = 5
"""Nearest keys of the wider measure, as in the paper."""
COMPARED = 100_000
"""Images of the base to which the likelihood reference compares a query, at most."""


def chosen(bases: Sequence[KnowledgeBase], findings: Sequence[RetrievalFindings]) -> KnowledgeBase:
    """The base of the largest time at which retrieval works, of several; where it works at none, one without keys."""
    both = zip(bases, findings, strict=True)
    fitting = [base for base, one in both if retrieves(one.first, one.chance)]
    return max(fitting, key=lambda base: base.time) if fitting else bases[0].without_keys()


def numbers(base: KnowledgeBase, findings: Sequence[RetrievalFindings]) -> dict[str, float]:
    """The accuracy at the time of the base and what to compare it with; where it has no keys, at the smallest time that was measured."""
    if not findings:
        return {}
    at = next((one for one in findings if one.time == base.time), min(findings, key=lambda one: one.time))
    return {
        "retrieval_accuracy": at.first,
        "retrieval_chance": at.chance,
        "retrieval_of_five": at.five,
        "retrieval_reference": at.reference,
    }


@torch.no_grad()
def measured(
    base: KnowledgeBase, features: FeatureMap, images: Tensor, labels: Tensor, *, seed: int
) -> RetrievalFindings:
    """Retrieval of public queries `[n, c, h, w]` of classes `[n]`, which must not be in the base, at the time of its keys.

    With keys that were asked for a class, so are the queries, and the accuracy is an echo like the paper's.
    """
    time, schedule = base.time, features.one_step.schedule
    generator = torch.Generator(images.device).manual_seed(seed)
    first, five = shares(base, labels, features.noised(images, time, generator, labels)[0])
    labelling = replace(features, one_step=replace(features.one_step, conditional=True))
    generator = torch.Generator(images.device).manual_seed(seed)
    noised = x_t(schedule, images, time, generator)
    labelled = shares(base, labels, labelling.encoder(labelling.one_step.guess(noised, time, labels)))
    echo = shares(base, labels, labelling.encoder(labelling.one_step.guess(normal(images, generator), time, labels)))
    part = torch.bincount(base.labels).float() / len(base.labels)
    mine = torch.bincount(labels.to(part.device), minlength=len(part)).float()[: len(part)] / len(labels)
    return RetrievalFindings(
        time=time,
        share=time / schedule.timesteps,
        first=first,
        five=five,
        chance=float((part * mine).sum()),
        chance_five=float(((1 - (1 - part) ** FIVE) * mine).sum()),
        reference=float((likeliest_class(base, schedule, noised) == labels).float().mean()),
        labelled_first=labelled[0],
        labelled_five=labelled[1],
        echo=echo[0],
    )


def x_t(schedule: NoiseSchedule, x: Tensor, time: int, generator: torch.Generator) -> Tensor:
    """Images `[n, c, h, w]`, noised to `time`."""
    noise = normal(x, generator)
    return add_noise(schedule, x, torch.full((len(x),), time, device=x.device), noise)


def shares(base: KnowledgeBase, labels: Tensor, queries: Tensor) -> tuple[float, float]:
    """Shares of queries `[n, features]` of classes `[n]` whose class is that of the nearest key, and of one of the nearest five."""
    near = base.labels[base.search(queries, FIVE).to(base.labels.device)].to(labels.device) == labels[:, None]
    return float(near[:, 0].float().mean()), float(near.any(1).float().mean())


def likeliest_class(base: KnowledgeBase, schedule: NoiseSchedule, x_t: Tensor) -> Tensor:
    """The public class `[n]` of largest posterior for images `[n, c, h, w]` at the time of the base, under the mixture of its images:
    of N(sqrt(alpha_bar) x_i, 1 - alpha_bar) over all i, each weighed alike."""
    compared = base.images[:COMPARED].flatten(1)
    level = schedule.alpha_bar[base.time].to(compared.device)
    of_class = torch.nn.functional.one_hot(base.labels[:COMPARED]).to(compared.dtype)
    parts = []
    for part in x_t.flatten(1).split(max(1, PRODUCTS // len(compared))):
        logits = -torch.cdist(part, level.sqrt() * compared).square() / (2 * (1 - level))
        parts.append((logits - logits.max(1, keepdim=True).values).exp() @ of_class)
    return torch.cat(parts).argmax(1)
