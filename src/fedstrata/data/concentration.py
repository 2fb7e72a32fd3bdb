"""The Dirichlet distribution that spreads labels as unevenly as these clients do.

Counts of a client are taken as drawn from its own mix, and mixes as drawn from Dir(A p) around the global mix p: a
Dirichlet-multinomial distribution, of which only A is unknown. Its maximum likelihood counts in that a small client
differs from the rest by chance alone, which distances to the global mix do not.
"""

from __future__ import annotations

import numpy as np

from fedstrata.data.label_table import LabelTable

LEAST, MOST = 1e-3, 1e4  # beyond these, clients hold one label each, or differ by no more than chance


def concentration(table: LabelTable) -> float:
    """Return A: `alpha` of the partition dirichlet-client, and C times that of dirichlet-class; from LEAST to MOST."""
    from scipy.optimize import minimize_scalar  # noqa: PLC0415  scipy takes long to import, and few runs need it
    from scipy.special import gammaln  # noqa: PLC0415

    rows, columns = np.nonzero(table.counts)  # the others say nothing: their terms cancel
    held, base, sizes = table.counts[rows, columns], table.mix[columns], table.sizes

    def unlikely(log_a: float) -> float:
        a = np.exp(log_a)
        inside = gammaln(held + a * base) - gammaln(a * base)
        return float(len(sizes) * -gammaln(a) + gammaln(a + sizes).sum() - inside.sum())

    bounds = np.log(LEAST), np.log(MOST)
    found = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    best = min((*bounds, float(found.x)), key=unlikely)  # the search never tries the ends themselves
    return float(np.exp(best))
