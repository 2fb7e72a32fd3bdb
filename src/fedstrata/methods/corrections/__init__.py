"""Corrections: how the local step is held back."""

PARTS = {
    "prox": "fedstrata.methods.corrections.prox:Prox",
    "scaffold": "fedstrata.methods.corrections.scaffold:Scaffold",
    "feddyn": "fedstrata.methods.corrections.feddyn:FedDyn",
    "moon": "fedstrata.methods.corrections.moon:Moon",
    "fedlc": "fedstrata.methods.corrections.fedlc:FedLc",
    "fedrs": "fedstrata.methods.corrections.fedrs:FedRs",
    "clip": "fedstrata.methods.corrections.clip:Clip",
}
