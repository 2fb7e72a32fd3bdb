"""What sites are asked about their labels before a run: nothing, their counts, or to agree on placeholders."""

from __future__ import annotations

from pathlib import Path

from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Privacy
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.plan import Plan
from fedstrata.privacy.labels.kept import read_kept
from fedstrata.privacy.setup import tells_counts
from fedstrata.remote.credentials import Credentials, keys_for
from fedstrata.remote.introduction import COUNTED
from fedstrata.remote.server.federation import MaskedRemoteFederation, RemoteFederation
from fedstrata.remote.server.first_questions import FirstQuestions, say_refusals, say_too_few
from fedstrata.remote.server.setup import mask_labels_at, renumber_at
from fedstrata.remote.server.site_registry import SiteRegistry, ask_facts, read_sites


def settle_question(site_registry: SiteRegistry, privacy: Privacy, plan: Plan, federation: RemoteFederation) -> None:
    """Say what sites are asked about their labels: before the run, and whenever their data changed."""
    needs = plan.needs & COUNTED
    if privacy.labels != "none":
        site_registry.fixed = "labels were agreed on when the run began"
        return
    if privacy.clustering != "server" or privacy.histogram_epsilon is not None:
        site_registry.fixed = "what it told of its labels holds for the whole run"
    if privacy.clustering != "server":
        needs -= {"counts"}
        if needs:
            raise RequestError(
                f'privacy.clustering = "{privacy.clustering}" at sites: another part of the method asks them for '
                f'their {" and ".join(sorted(needs))}, by name; use privacy.labels = "prf"'
            )
    if needs:
        told = {"needs": sorted(needs), "classes": federation.classes}
        site_registry.question = {**site_registry.question, **told}


def ask_labels(
    asking: FirstQuestions,
    experiment: Experiment,
    credentials: Credentials | None,
    plan: Plan,
    federation: RemoteFederation,
) -> RemoteFederation:
    """Ask sites for what the method needs of their labels."""
    site_registry = asking.registry
    if experiment.privacy.labels != "none":
        known = _mask_labels(asking, experiment, credentials, plan)
        return RemoteFederation.of({name: site_registry.facts[name] for name in known.sites}, known)
    if "needs" not in site_registry.question:
        return federation
    facts, wrong = ask_facts(
        site_registry.transport, site_registry.names, site_registry.question, site_registry.deadline
    )
    for name, error in wrong.items():
        asking.note("site_refused", round=0, step=0, site=name, why=str(error))
    if not facts:
        raise RequestError(say_too_few(0, 1, asking.notes))
    site_registry.facts = facts
    return RemoteFederation.of(facts)


def _mask_labels(
    asking: FirstQuestions, experiment: Experiment, credentials: Credentials | None, plan: Plan
) -> MaskedRemoteFederation:
    privacy = experiment.privacy
    keys = keys_for(credentials, f'privacy.labels = "{privacy.labels}"')
    counts = tells_counts(privacy, plan.needs)
    rng, run, names = plan.streams("placeholders"), asking.registry.run, asking.registry.names
    try:
        known = mask_labels_at(asking.heard, keys, names, run, counts, rng, asking.note)
    except FedstrataError as error:
        raise RequestError("; ".join([str(error), *say_refusals(asking.notes)])) from None
    if (init := experiment.model.init) is None:
        return known
    event, earlier = read_kept(init), read_sites(Path(init).parent)
    if earlier is None or "sites" not in event:
        raise RequestError(f'model.init = "{init}": its run had other clients than these sites')
    return renumber_at(asking.heard, known, run, earlier[0], MaskedRemoteFederation.read(event))
