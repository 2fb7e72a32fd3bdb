"""What an experiment may ask of real sites, and what it leaves open means there."""

from __future__ import annotations

from typing import Any

from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Trust
from fedstrata.config.travel import to_sites
from fedstrata.core.errors import RequestError

LENGTH = 10.0  # to which sites shorten their update under masks, unless the experiment says another
SAMPLES = 2.0  # times the median, that no site counts for more of


def possible_at_sites(experiment: Experiment) -> None:
    """Refuse what sites cannot do, or what would be passed over in silence."""
    to_sites(experiment)
    privacy, data = experiment.privacy, experiment.data
    reasons = [
        (
            privacy.labels == "ckks-paper",
            'privacy.labels = "ckks-paper"',
            "its clients share one secret key, which no server can bring them safely",
            'use privacy.labels = "prf"',
        ),
        (
            bool(data.proxy),
            f"data.proxy = {data.proxy}",
            "samples stay at the sites, and the server holds none",
            "leave it out",
        ),
        (
            data.drift is not None or data.stream is not None,
            "data.drift or data.stream",
            "what a site has, and when, is its own",
            "leave them out",
        ),
    ]
    for holds, key, why, instead in reasons:
        if holds:
            raise RequestError(f"{key} is not possible at real sites: {why}; {instead}")


def doubting_sites(experiment: Experiment) -> Experiment:
    """Return the experiment with what `auto` means where a client may be anybody: one site must not own the model."""
    privacy, trust = experiment.privacy, experiment.trust
    clip: Any = "none" if privacy.dp is not None else LENGTH if privacy.aggregate == "masked" else "median"
    doubt = Trust(
        clip=clip if trust.clip == "auto" else trust.clip,
        samples=SAMPLES if trust.samples == "auto" else trust.samples,
    )
    return experiment.model_copy(update={"trust": doubt})
