"""Corrections: how the local step is held back."""

PARTS = {
    "prox": "fedstrata.correct.prox:Prox",
    "scaffold": "fedstrata.correct.scaffold:Scaffold",
}
