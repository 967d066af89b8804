"""Whether two passes over one text differ by more than chance: paired differences over its documents.

    edges = edges_of(starts)                           # the text as groups: documents, or parts of them where these are few
    found = paired(one_G, other_G, tokens_G)           # sums of nats in each group, and its tokens
    found.mean, found.margin, found.beyond_chance
    found = paired_over_seeds(ours_SG, theirs_SG, tokens_G)   # the same of two models, each trained with several seeds

A text is a sample of all that could be read. The difference per token is a ratio of sums over groups, and its standard error
that of the ratio (Cochran 1977, section 2.11); the margin is the half of its 95 % interval by Student's t. Where both passes cost
as much in every group but for noise, the difference lies within the margin in 19 of 20 texts.

Letters: S seeds, G groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

FEW_DOCUMENTS = 10
"""With fewer documents than this, groups are parts of documents."""
PARTS = 20
"""Least number of groups into which few documents are cut."""
MAX_GROUPS = 1000
MIN_GROUPS = 5
"""Groups below which no interval is given."""
TAIL = 0.025
"""Probability beyond each end of an interval."""


@dataclass(frozen=True)
class Difference:
    """By how much the second of two passes costs more than the first, per token."""

    mean: float
    error: float
    """Standard error of the mean."""
    groups: int
    degrees: float
    """Degrees of freedom of the error."""

    @property
    def margin(self) -> float:
        """Half of the 95 % interval."""
        return student_t(self.degrees) * self.error

    @property
    def beyond_chance(self) -> bool:
        return abs(self.mean) > self.margin


def edges_of(starts: np.ndarray) -> np.ndarray:
    """Where groups begin and end, int64 [G + 1]. A group is a document, or several in a row if there are more than `MAX_GROUPS`, or
    a part of one if there are fewer than `FEW_DOCUMENTS`.

    Args:
        starts: int64 [documents + 1]. Where the positions of each document begin, in one row of all of them.
    """
    begins = starts[:-1][np.diff(starts) > 0]
    bounds = np.append(begins, starts[-1:])
    if len(begins) >= FEW_DOCUMENTS:
        chosen = np.linspace(0, len(begins), min(len(begins), MAX_GROUPS) + 1).astype(np.int64)
        return bounds[chosen]
    parts = math.ceil(PARTS / max(len(begins), 1))
    pieces = [np.linspace(*ends, parts + 1).astype(np.int64) for ends in pairwise(bounds.tolist())]
    return np.unique(np.concatenate([*pieces, bounds]))


def paired(one_G: np.ndarray, other_G: np.ndarray, tokens_G: np.ndarray) -> Difference | None:
    """The difference of two passes, from their sums over the same groups. None if the numbers of groups differ or are too small."""
    if len(one_G) != len(other_G) or len(one_G) != len(tokens_G):
        return None
    used_G = tokens_G > 0
    differences_G = (other_G - one_G)[used_G]
    tokens_G = tokens_G[used_G]
    groups = len(tokens_G)
    if groups < MIN_GROUPS:
        return None
    mean = differences_G.sum() / tokens_G.sum()
    residuals_G = differences_G - mean * tokens_G
    error = math.sqrt(groups / (groups - 1) * (residuals_G**2).sum()) / tokens_G.sum()
    return Difference(float(mean), float(error), groups, groups - 1)


def paired_over_seeds(
    ours_SG: np.ndarray, theirs_SG: np.ndarray, tokens_G: np.ndarray, *, same_trainings: bool = False
) -> Difference | None:
    """The difference of two models' means over seeds, from each training's sums over the same groups. With one seed each it is
    that of `paired`; None as there.

    Both the text and the trainings are samples. To the variance of `paired` for the means over seeds come the variances of both
    means over their seeds, s² / S. The degrees of freedom are those of Welch and Satterthwaite: (Σ v)² / Σ (v² / degrees of v),
    where v has groups − 1 or S − 1. A model with one seed is taken to vary by the other's s². What a seed changes in single
    documents is in both variances, so the error is rather too large.

    Where the models are equal, a difference is found in 4 to 7 % of cases with two to five seeds each, and in up to 12 % with one
    against two (5 % are expected).

    Args:
        same_trainings: whether both are the same trainings in the same order, read in two ways. Then the seeds are paired too.
    """
    found = paired(ours_SG.mean(0), theirs_SG.mean(0), tokens_G)
    if found is None:
        return None
    sides = [theirs_SG - ours_SG] if same_trainings else [ours_SG, theirs_SG]
    means = [side_SG.sum(1) / tokens_G.sum() for side_SG in sides]
    several = [mean_S for mean_S in means if len(mean_S) > 1]
    variances = [(float(mean_S.var(ddof=1)) / len(mean_S), float(len(mean_S) - 1)) for mean_S in several]
    if len(several) == 1:  # its s² holds for the other side as well
        (known_S,) = several
        known = float(known_S.var(ddof=1))
        variances = [(known * sum(1 / len(mean_S) for mean_S in means), float(len(known_S) - 1))]
    variances.append((found.error**2, found.degrees))
    total = sum(variance for variance, _ in variances)
    if total == 0:
        return found
    degrees = total**2 / sum(variance**2 / degrees for variance, degrees in variances)
    return Difference(found.mean, math.sqrt(total), found.groups, degrees)


@lru_cache
def student_t(degrees: float) -> float:
    """The quantile of Student's t that leaves `TAIL` above it, for 1 degree of freedom or more.

    With t = √degrees · tan(angle), the density of the angle is proportional to cos(angle) ** (degrees − 1). It is integrated.
    """
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.append(0.0, np.cumsum(density[1:] + density[:-1]))
    angle = np.interp(1 - 2 * TAIL, mass / mass[-1], angles)
    return math.sqrt(degrees) * math.tan(angle)
