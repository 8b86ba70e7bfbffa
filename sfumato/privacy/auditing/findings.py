"""Results of an audit of a run, as plain values that a record can hold without the libraries that compute them; INTERNAL."""

from pydantic import Field

from sfumato.config import Section
from sfumato.evaluation.attack_results import CopyCheck, Membership, Value

FALSE_ALARM = 1e-5
"""Largest chance that a mechanism which does what its entry says is found faulty."""
AGAINST_SAMPLER, AGAINST_QUERIES = "games against the sampler", "games against what was asked of the records"
"""The objects of the games whose coins are guessed where there are no canaries."""


class Fit(Section):
    """The fit of the observed noise, contribution and sample rate to the ledger entry."""

    what: str
    """The mechanism under test."""
    numbers: int
    """Number of noise values observed."""
    noise: float
    """Their standard deviation, relative to what the entry says."""
    noise_at_most: float
    """The upper end of its confidence interval."""
    contribution: float
    """The most by which one record moved what is let out, relative to what the entry says."""
    rate_at_least: float = 1.0
    """How often a record took part, relative to what the entry says: the lower end of its confidence interval."""
    epsilon: float = Field(ge=0)
    """Lower bound on the epsilon of the entry's mechanism with the observed noise, contribution and rate."""
    priced: float = Field(ge=0)
    """Its epsilon according to the entry."""
    delta: float
    false_alarm: float = FALSE_ALARM
    """Largest chance of a fault being found where there is none."""
    faults: tuple[str, ...] = ()
    """Deviations from the entry."""


class Bound(Value):
    """The lower bound on epsilon that guessing coins gives."""

    epsilon: float = Field(ge=0)
    """Every epsilon below this is refuted with `confidence`."""
    delta: float = Field(ge=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    canaries: int = Field(ge=1)
    """Canaries made, joined or not."""
    guesses: int = Field(ge=2)
    """Coins guessed, half of them as "joined"; the number of guesses that gave the best bound."""
    correct: int = Field(ge=0)
    """Guesses that were right."""
    attainable: float = Field(ge=0)
    """The bound had every guess been right: these canaries cannot refute an epsilon above it, whatever went wrong."""


class Audit(Value):
    """All results of the audit of a run; INTERNAL."""

    run: str
    """The audited run."""
    certificate: float | None
    """Its certified epsilon, where it has one."""
    claim: float | None = None
    """The epsilon that the paper claims."""
    delta: float = Field(ge=0, lt=1)
    bound: Bound | None = None
    """The canary audit, where one was done."""
    canary: str = ""
    """Description of a canary, where groups are the unit; empty for one image."""
    canary_attack: Membership | None = None
    """How well the attack separates joined canaries from the others; the bound uses the same scores."""
    memberships: tuple[Membership, ...] = ()
    """Attacks on the released model and images."""
    played: str = AGAINST_SAMPLER
    """Games whose coins were guessed, where there were no canaries."""
    fits: tuple[Fit, ...] = ()
    """White-box tests of the run's mechanisms against its ledger entries."""
    copies: CopyCheck | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """Deviations from the entries that the white-box tests show."""
        return tuple(f"{fit.what}: {fault}" for fit in self.fits for fault in fit.faults)

    @property
    def guessed_at(self) -> str:
        """The objects whose coins were guessed for `bound`."""
        return "canaries" if self.canary_attack else self.played

    @property
    def promised(self) -> float | None:
        """The epsilon that is to be defended: the certificate, or else the claim on which images might leave."""
        return self.claim if self.certificate is None else self.certificate

    @property
    def refuted(self) -> bool:
        """Whether something contradicts what is promised: too many guesses right, or a mechanism that is not as its entry says.

        Where nothing is promised, there is nothing to contradict.
        """
        return self.outguessed or bool(self.faults)

    @property
    def reason(self) -> str:
        """The reason why the promise is refuted; empty where it is not."""
        reasons = list(self.faults)
        if self.outguessed and self.bound:
            reasons.append(
                f"{self.guessed_at} show an epsilon of at least {self.bound.epsilon:.3f} at {self.bound.confidence:.0%} confidence, above "
                f"{self.promised:.3f}"
            )
        return "; ".join(reasons)

    @property
    def outguessed(self) -> bool:
        """Whether more guesses were right than the promised epsilon allows."""
        return self.bound is not None and self.promised is not None and self.bound.epsilon > self.promised

    @property
    def passed(self) -> bool:
        """Whether the certificate is not refuted and no image repeats a record; never without a copy check."""
        return not self.refuted and self.copies is not None and self.copies.passed
