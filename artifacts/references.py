"""References to artifacts: small, typed, frozen values that tasks pass to each other in place of the artifacts."""

from pydantic import BaseModel, ConfigDict

from artifacts.labels import Label

EFFORT = ("seconds", "memory", "gpu_memory")
"""Fields that are noted beside an artifact, of which its address says nothing."""


class Ref(BaseModel):
    """Address, label and parents of an artifact in the store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    """Content address: sha256 of the manifest, which holds the sha256 of every file."""
    label: Label
    seconds: float = 0.0
    """Time that its stage took when it was made."""
    memory: float = 0.0
    """Largest memory (GB) of its process meanwhile, and of a GPU; INTERNAL, since what INTERNAL stages left there counts too. 0 where not measured."""
    gpu_memory: float = 0.0
    tracked: str = ""
    """Id of the MLflow run that describes it."""

    @property
    def effort(self) -> dict[str, float]:
        """What it took to make it: `EFFORT` by name."""
        return {name: value for name, value in self.model_dump().items() if name in EFFORT}


class PublicImages(Ref):
    """Public images with labels and class names."""


class ChosenImages(PublicImages):
    """The public images that private records voted for."""


class PublicClusters(Ref):
    """The centroids of public images that look alike."""


class PublicAutoencoder(Ref):
    """An autoencoder trained on public images alone, with the scale of its latents."""


class PublicBackbone(Ref):
    """A larger classifier of public images, with the whitening of its features."""


class PublicMoments(Ref):
    """Mean, covariance and centroids of the public images."""


class PublicClassifier(Ref):
    """A small CNN trained on public images alone, in whose features images are compared."""


class PublicModel(Ref):
    """A denoiser trained on public images alone."""


class PublicStart(Ref):
    """A network of a method's own, trained on public images alone."""


class FeatureExtractor(Ref):
    """The contrastive extractor h."""


class Trajectories(Ref):
    """The knowledge base."""


class Rehearsal(Ref):
    """Findings of a run's rehearsal on public images, before anything is paid for."""


class ClassVotes(Ref):
    """The noisy histogram of votes."""


class Candidates(Ref):
    """Images that private records vote for, as the denoisers work on them."""


class CandidateVotes(Ref):
    """The noisy votes of private records for candidates."""


class ClassCounts(Ref):
    """The number of private records of each class, with noise."""


class PaidJudge(Ref):
    """A linear head on the features of a backbone, trained on private records with noise."""


class ClassMoments(Ref):
    """Noisy moments of the private classes, and the maps computed from them."""


class CentralSums(Ref):
    """Noisy sums of the private images of each class, whose means are central images."""


class EmbeddingSums(Ref):
    """Noisy sums of the features of private images, class by class, with the number of images of each."""


class WarmModel(Ref):
    """The denoiser so far after a warm-up on central images, before DP-SGD."""


class NoisedImages(Ref):
    """Private images noised once, in random order and without labels."""


class PhaseOneModel(Ref):
    """The public denoiser after a first phase on noised private images, before DP-SGD."""


class MemberModel(Ref):
    """A denoiser trained plainly on one shard of the private images; always INTERNAL."""


class MemberHeads(Ref):
    """All members of an ensemble as heads on one public denoiser, each trained plainly on one shard of the private images; always INTERNAL."""


class TunedModel(Ref):
    """A denoiser trained on private images."""


class RateVotes(Ref):
    """The noisy votes of private records for models trained at several learning rates."""


VOTES_FOR = "votes_for_"
"""Begins the number of votes for a candidate in the summary of a chosen model."""


class ChosenModel(TunedModel):
    """That of several trained models which private records voted for."""


class WatchedSteps(Ref):
    """Losses and norms of private steps, without noise; always INTERNAL."""


class Samples(Ref):
    """Generated images with their labels."""


class NearestPublic(Ref):
    """Some samples, each beside the public image that is nearest to it."""


class Judgement(Ref):
    """Scores against private images; always INTERNAL."""


class Copies(Ref):
    """Whether samples repeat training records; always INTERNAL."""


class CanaryImages(Ref):
    """Images made up for an audit, with the coins that say which of them joined the private set."""


class Games(Ref):
    """Fit of a mechanism to its ledger entry; no private image is used for it."""


class Findings(Ref):
    """Results of an audit; always INTERNAL."""
