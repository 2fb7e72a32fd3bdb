"""Sites in this process: the hosts are real, only the network is not."""

from __future__ import annotations

import json
from functools import cache

import torch

from fedstrata.config.experiment import Experiment
from fedstrata.config.travel import to_sites
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import build_request, split, to_json
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.site.site_server import SiteServer
from fedstrata.remote.site.source import source

SITES = ("aachen", "bonn", "cologne")
SMALL = {
    "data.clients": 3,
    "model.hidden": (8,),
    "train.rounds": 3,
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.clients_per_round": "all",
    "engine.precision": "fp64",
    "trust.clip": "none",  # as in a simulation, so that both come to the same model
    "trust.samples": "none",
}


class Here:
    """Carries requests to hosts in this process; `tamper` may change what a site says."""

    def __init__(self, hosts, tamper=lambda name, kind, reply: reply):
        self.hosts, self.tamper = hosts, tamper

    def names(self):
        return sorted(self.hosts)

    def reachable(self):
        return sorted(self.hosts)

    def invite(self, sites):
        pass

    def awaited(self):
        return []

    def exchange(self, requests, deadline=None, enough=None):
        told = {}
        for name, request in requests.items():
            kind = split(split(request)[2] if split(request)[0] == b"in" else request)[0].decode()
            reply = self.tamper(name, kind, self.hosts[name].answer(request))
            if reply is not None:
                told[name] = reply
        return told

    def close(self):
        pass


class Restartable(SiteServer):
    """A host that says how it was made, so that it can be made anew."""

    def __init__(self, name, load, credentials=None, folder=None, policy=None, trusted=None):
        super().__init__(name, load, credentials, folder, policy, trusted)
        self.load, self.credentials, self.folder, self.policy, self.trusted = load, credentials, folder, policy, trusted

    def restarted(self, load=None):
        """Return the site as it is after its process ended and began again, with other data where they are given."""
        return Restartable(self.name, load or self.load, self.credentials, self.folder, self.policy, self.trusted)


@cache
def share(data, seed, part):
    """Return what a site has; one set, dealt out in one way, is read once for all tests."""
    return source(json.loads(data), seed, part)


def hosts(
    overrides,
    credentials=lambda name: None,
    sites=SITES,
    memory=None,
    having=lambda federation: federation,
    policy=lambda name: None,
    trusted=lambda name: None,
):
    """Make sites; `memory` is a folder for their state, `having` changes what they have, `policy` what they allow."""
    experiment = Experiment.of(None, **overrides)
    data, seed = experiment.dump()["data"], experiment.train.seed
    data.pop("clients")
    told = json.dumps(data)
    return {
        name: Restartable(
            name,
            lambda i=i: having(share(told, seed, (i, len(sites)))),
            credentials(name),
            None if memory is None else memory / name,
            policy(name),
            trusted(name),
        )
        for i, name in enumerate(sites)
    }


def at_sites(tmp_path, overrides, tamper=lambda name, kind, reply: reply, **how):
    overrides = SMALL | overrides
    transport = Here(hosts(overrides), tamper)
    return run_at_sites(transport, Experiment.of(None, **overrides), tmp_path / "sites", len(SITES), **how)


def introduce(overrides=SMALL, **asked):
    """Return the request that tells a site of a run, and asks what data it has."""
    told = {"run": "r", "experiment": to_sites(Experiment.of(None, **overrides))}
    return build_request("introduce", to_json(told | asked))


def model(run):
    return torch.cat([t.double().reshape(-1) for _, t in sorted(run.model().items())])


def with_keys(keys, overrides, tamper=lambda name, kind, reply: reply, sites=SITES, **more):
    """Return sites that have keys of `deploy keys`."""
    return Here(hosts(overrides, lambda name: Credentials.load(keys / "sites" / name), sites, **more), tamper)
