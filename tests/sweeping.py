"""Products of cases: those that differ in what they exercise are always run, the rest of the product with the others.

`make test` leaves out what is marked `extended`; `make test-all` runs it.
"""

from __future__ import annotations

from itertools import product

import pytest


def sweep(always, ids=None, **axes):
    """Parametrise over a product; cases for which `always` does not hold are extended."""
    marks = {True: (), False: pytest.mark.extended}
    cases = [pytest.param(*case, marks=marks[bool(always(*case))]) for case in product(*axes.values())]
    return pytest.mark.parametrize(tuple(axes), cases, ids=ids)
