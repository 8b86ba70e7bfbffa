"""Plain DP-SGD fine-tuning of a publicly pretrained denoiser: the baseline that every paper compares with.

After Dockhorn et al. 2023 (noise multiplicity K) and Ghalebikesabi et al. 2023 (public pretraining): all diffusion
times, K noised copies per record averaged before clipping. The trained parameters are a setting (`fine_tuning.trainable`,
`fine_tuning.rank`), so that the presets `dpdm`, `dp-diffusion`, `dp-ldm` and `lora` are this one method; the EDM form in which
Dockhorn et al. denoise is one of schedule, network and solver, and so of every method (`schedule.kind`, `network.prediction`, `generation.solver`). Of Ghalebikesabi et al. are
the augmentation of a record's copies and the times that private steps draw (`mirror`, `shift`, `times`). Votes for public classes, from
whose rows the private ones then start, are an option beyond the papers: the control for any method that takes them. Certificate: PLD.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from sfumato.config import LATER, MethodSection, SettingsOf
from sfumato.errors import BadInput
from sfumato.methods.algorithm import Algorithm
from sfumato.methods.plan import UNCLAIMED, Claim, Facts, Plan, Spend, calibrated, shared_spends, tuning_spends
from sfumato.methods.sampling import draw, network_evaluations, walk
from sfumato.methods.voting import nearest_image_class, voting
from sfumato.privacy.accounting import accountant

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor

    from sfumato.diffusion.objective import Corrupt, Examples
    from sfumato.methods.parts import Parts

PROMISE = """\
The papers claim the epsilon that Renyi accounting (RDP) gives for the noisy steps, under add/remove with Poisson \
sampling. The run can be certified: every access to private images is one of those steps, and PLD prices them tightly. \
RDP is a sound bound and the looser of the two: noise 1.13, sample rate 1/15 and 750 steps are 11.3 by RDP and 10.4 by \
PLD at delta 1e-5. The central-limit formula that some papers quote errs the other way: 9.9 for the same run, and at \
small sample rates a fraction of the truth (noise 0.5, rate 1e-4, 10,000 steps: 0.24 for 1.18), so it certifies \
nothing here. Exchanging a record instead of adding or removing one costs more, 18.7 for the first run."""
"""The papers' claim, the certificate, and why they differ (Markdown)."""


class Method(MethodSection):
    """What a record's noised copies are, after Ghalebikesabi et al. 2023, and votes, which no paper takes with plain DP-SGD."""

    name: Literal["dp-sgd"] = "dp-sgd"
    """DP-SGD on all diffusion times."""
    votes: Annotated[bool, LATER] = False
    """Take votes for the public class that resembles each private class, whose row it then starts from."""
    vote_noise: Annotated[float, Field(gt=0), LATER] = 6.0
    """Noise on each count of the votes, in records."""
    distinct: Annotated[bool, LATER] = False
    """Give each private class a public class of its own, by the assignment with the most votes. It reads the noisy votes alone."""
    mirror: Annotated[bool, LATER] = False
    """Mirrors each of a record's `fine_tuning.draws` noised copies left to right or not, as a coin falls; at no cost, since copies are averaged before
    clipping. Right for photographs, wrong for characters and for bodies. In pixels alone."""
    shift: Annotated[int, Field(ge=0), LATER] = 0
    """Shifts each of these copies by up to so many pixels across and down, as random crops do; the picture's mirror image moves in. In pixels alone."""
    times: Annotated[tuple[Annotated[int, Field(ge=0)], ...], LATER] = ()
    """Rising times between 0 and T for a mixture of uniform laws from which private steps draw theirs, such as `[0,30,600,800]`: above the first of two
    neighbours up to the second. Public training keeps `schedule.law`. Empty: private steps do too."""
    time_shares: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], LATER] = ()
    """How often each of those spans is drawn, such as `[0.05,0.9,0.05]`; only the proportions count."""

    @model_validator(mode="after")
    def _spans(self) -> Self:
        """Spans have a share each, and rise."""
        if len(self.times) != (len(self.time_shares) + 1 if self.time_shares else 0):
            raise PydanticCustomError(
                "times", "method.times must have one time more than method.time_shares has shares, or both be empty"
            )
        if any(above >= last for above, last in pairwise(self.times)):
            raise PydanticCustomError("times", "method.times must rise")
        return self


def claim(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> Claim:
    """The epsilon that Dockhorn et al. 2023 report: Renyi accounting of the Poisson-subsampled Gaussian (Opacus)."""
    epsilon = accountant.dp_sgd_epsilon(noise_multiplier, sample_rate, steps, delta, accountant="rdp")
    return Claim(epsilon=epsilon, source="Dockhorn et al. 2023: RDP accountant, add/remove, Poisson sampling")


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where the budget does not fit."""
    tuning, privacy = settings.fine_tuning, settings.privacy
    _refuse_copies(settings, facts)
    shared = shared_spends(settings)
    votes, ask = voting(settings.method, settings, facts, time=0)

    def spends(noise: float) -> list[Spend]:
        return [*shared, *ask, *tuning_spends(tuning, privacy, "DP-SGD on all diffusion times", noise)]

    noise, certificate = calibrated(privacy, spends)
    return Plan(
        method=settings.method.name,
        facts=facts,
        votes=votes,
        fine_tuning=tuning,
        noise_multiplier=noise,
        generation=settings.generation,
        evaluations=network_evaluations(settings),
        spends=tuple(spends(noise)),
        privacy=privacy,
        certificate=certificate,
        claim=claim(noise, tuning.sample_rate, tuning.trainings * tuning.steps, privacy.delta) if noise else UNCLAIMED,
    )


def _refuse_copies(settings: SettingsOf[Method], facts: Facts) -> None:
    """`BadInput` for an augmentation of what is no picture, a shift out of it, or times that there are not."""
    method, horizon, side = settings.method, settings.schedule.timesteps, min(facts.shape[1:])
    for name, value, off in (("mirror", str(method.mirror).lower(), "false"), ("shift", str(method.shift), "0")):
        for section, kind in (("latent", settings.latent.kind), ("alignment", settings.alignment.kind)):
            if value != off and kind != "none":
                raise BadInput(
                    f"method.{name}={value} changes pictures, and {section}.kind={kind} trains on what they become: use method.{name}={off}, or "
                    f"{section}.kind=none"
                )
    if method.shift >= side:
        raise BadInput(
            f"method.shift={method.shift} takes images of {side} pixels out of sight: use at most {side - 1}"
        )
    if method.times and method.times[-1] > horizon:
        raise BadInput(
            f"method.times ends at {method.times[-1]}, and there are {horizon} times: raise schedule.timesteps, or use at most that"
        )


def corrupt(settings: SettingsOf[Method], parts: Parts) -> Corrupt:
    """Plain denoising of K copies of each record, each augmented and noised by itself, on all times 1..T or on those that `times` draws."""
    from sfumato.diffusion.augmentation import augmented
    from sfumato.diffusion.objective import denoising_examples, repeat_records
    from sfumato.diffusion.schedule import mixture_law

    method, draws, horizon, schedule = (
        settings.method,
        settings.fine_tuning.draws,
        settings.schedule.timesteps,
        parts.schedule,
    )
    if method.times:
        schedule = replace(schedule, law=mixture_law(horizon, method.times, method.time_shares))

    def examples(x: Tensor, y: Tensor, generator: Generator) -> Examples:
        copies, labels = repeat_records(x, y, draws)
        shown = augmented(copies, mirror=method.mirror, shift=method.shift, generator=generator)
        single = denoising_examples(schedule, shown, labels, draws=1, low=1, high=horizon, generator=generator)
        return single.map(lambda field: field[:, 0].unflatten(0, (-1, draws)))

    return examples


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    walk=walk,
    corrupt=corrupt,
    ballot=nearest_image_class,
    distinct=lambda settings: settings.method.distinct,
    controls=("method.votes=true",),
    is_baseline=True,
)
