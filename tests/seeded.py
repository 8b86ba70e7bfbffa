"""Sources of noise that give the same again, for tests alone; what they noise is INTERNAL."""

import numpy as np

from sfumato.privacy.noise import KEY_BYTES, Source


def seeded_source(seed: int = 0) -> Source:
    """A source whose key, and whose ordinary generators, follow from a number."""
    key = np.random.default_rng(seed)
    return Source(key.bytes(KEY_BYTES), entropy=key.bytes)


class Scripted(Source):
    """A source that gives chosen words first, and then those of a seeded one."""

    def __init__(self, *words: int):
        super().__init__(bytes(KEY_BYTES), entropy=np.random.default_rng(0).bytes)
        self.given = np.array(words, np.uint64)

    def words(self, count: int) -> np.ndarray:
        """The next words."""
        given, self.given = self.given[:count], self.given[count:]
        return np.concatenate([given, super().words(count - len(given))])
