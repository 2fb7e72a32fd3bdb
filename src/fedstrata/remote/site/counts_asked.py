"""Which label counts a server may ask a site for: those that its own experiment needs, and with the noise it names.

The experiment is what the site's rules were held against and what its owner approved. Requests come later, and say
again what the server wants; a hostile one would want more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fedstrata.config.experiment import Experiment
from fedstrata.config.needs import needs_of
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.labels.prf import PrfClient
from fedstrata.privacy.setup import tells_counts
from fedstrata.remote.introduction import COUNTED
from fedstrata.remote.protocol import read_values

CLUSTERED = {"cluster": "masked", "centres": "masked", "enclave": "enclave"}  # requests, and the clustering they are of


def check_introduction(asked: Collection[str], experiment: Experiment) -> bool:
    """Say whether counts by name are asked for; refuse where the run masks them, or its method does not need them."""
    wanted, privacy = COUNTED & set(asked), experiment.privacy
    if wanted and (privacy.labels != "none" or privacy.clustering != "server"):
        raise RefusedError("labels are not counted by name where they are masked, or clustered in secret")
    if not wanted <= needs_of(experiment):
        raise RefusedError("labels are not counted for a method that does not need it")
    return bool(wanted)


def check_request(kind: str, fields: Sequence[bytes], experiment: Callable[[], Experiment]) -> None:
    """Refuse a request for counts, in the open or in secret, that does not belong to the run."""
    if kind in CLUSTERED and (way := experiment().privacy.clustering) != CLUSTERED[kind]:
        raise RefusedError(f'sites are not clustered that way in this run: privacy.clustering = "{way}"')
    if kind == "cluster" and read_values(fields[0]).get("epsilon") != experiment().privacy.histogram_epsilon:
        raise RefusedError("label counts have the noise of this run's privacy.histogram_epsilon, and no other")
    if kind == "labels":
        run = experiment()
        if run.privacy.labels == "none":
            raise RefusedError("labels are not masked in this run")
        begins = fields[0] == PrfClient.steps[0].encode()
        if begins and read_values(fields[1]).get("open") and not tells_counts(run.privacy, needs_of(run)):
            raise RefusedError("no site tells in this run how often it has a label")
