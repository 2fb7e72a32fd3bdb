"""Corrections: how the local step is held back."""

PARTS = {
    "prox": "fedstrata.correct.prox:Prox",
    "scaffold": "fedstrata.correct.scaffold:Scaffold",
    "feddyn": "fedstrata.correct.feddyn:FedDyn",
    "moon": "fedstrata.correct.moon:Moon",
    "fedlc": "fedstrata.correct.fedlc:FedLc",
    "fedrs": "fedstrata.correct.fedrs:FedRs",
    "clip": "fedstrata.correct.clip:Clip",
}
