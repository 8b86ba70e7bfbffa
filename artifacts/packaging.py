"""Terms and form in which a set leaves, from the settings of its run and what a person adds at publishing."""

from dataclasses import dataclass, field, replace

from artifacts.marking import ImageSigner
from artifacts.record import RunRecord
from sfumato.config import APPROVALS, Release
from sfumato.errors import BadInput
from sfumato.privacy.ledger.decisions import APPROVED
from sfumato.settings import release_of


@dataclass(frozen=True)
class Packaging:
    """Terms and form in which a set leaves."""

    terms: Release = field(default_factory=Release)
    signer: ImageSigner | None = None
    """Signs each image by C2PA."""
    model: bool = True
    """With the model where the certificate covers any number of images."""
    date: str = ""
    """Day of publishing, as `2026-01-31`; empty where it is not to be told."""

    def of_run(self, record: RunRecord) -> "Packaging":
        """With the run's own terms; `BadInput` where neither they nor an approval name a licence."""
        terms = terms_of(record, self.terms)
        require_licence(terms)
        return replace(self, terms=terms)


def terms_of(record: RunRecord, own: Release = Release()) -> Release:
    """The terms of a run's settings, with the licence that was approved, and with what a person sets at publishing.

    Of both, the stricter approval is asked for, by the run's approvers where it names any.
    """
    run = release_of(record.settings)
    licences = [one.licence for one in record.decisions if one.decision == APPROVED]
    approved = {"licence": licences[-1]} if licences else {}
    named = {name: getattr(own, name) for name in own.model_fields_set}
    strict = {
        "approval": max(run.approval, own.approval, key=APPROVALS.index),
        "approvers": run.approvers or own.approvers,
    }
    return run.model_copy(update=approved | named | strict)


def require_licence(terms: Release) -> None:
    """`BadInput` for terms without a licence."""
    if not terms.licence:
        raise BadInput(
            "no licence for the published images is named: give one by --licence (of sfumato publish, run or approve), or --set release.licence= of the run, an identifier of SPDX such "
            "as CC-BY-4.0, or LicenseRef-NAME for terms of your own"
        )
