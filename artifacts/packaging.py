"""Terms and form in which a set leaves, from the settings of its run and what a person adds at publishing."""

from dataclasses import dataclass, field, replace

from artifacts.marking import ImageSigner
from artifacts.record import RunRecord
from sfumato.config import Release
from sfumato.errors import BadInput
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
        """With the run's own terms; `BadInput` where neither names a licence."""
        run = release_of(record.settings)
        named = {name: getattr(self.terms, name) for name in self.terms.model_fields_set}
        terms = run.model_copy(update=named)
        require_licence(terms)
        return replace(self, terms=terms)


def require_licence(terms: Release) -> None:
    """`BadInput` for terms without a licence."""
    if not terms.licence:
        raise BadInput(
            "no licence for the published images is named: give one by sfumato publish --licence or --set release.licence=, an identifier of SPDX such "
            "as CC-BY-4.0, or LicenseRef-NAME for terms of your own"
        )
