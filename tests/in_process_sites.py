"""Sites in this process: the hosts are real, only the network is not."""

from __future__ import annotations

from functools import cache

import torch

from fedstrata.config.experiment import Experiment
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.protocol import split
from fedstrata.remote.session import run_at_sites
from fedstrata.remote.site_server import Host
from fedstrata.remote.source import source

SITES = ("aachen", "bonn", "cologne")
SMALL = {"data.clients": 3, "train.rounds": 3, "train.clients_per_round": "all", "engine.precision": "fp64"}


class Here:
    """Carries requests to hosts in this process; `tamper` may change what a site says."""

    def __init__(self, hosts, tamper=lambda name, kind, reply: reply):
        self.hosts, self.tamper = hosts, tamper

    def names(self):
        return sorted(self.hosts)

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


def hosts(overrides, credentials=lambda name: None, sites=SITES):
    experiment = Experiment.of(None, **overrides)
    data, seed = experiment.dump()["data"], experiment.train.seed
    data.pop("clients")
    return {
        name: Host(name, cache(lambda i=i: source(data, seed, (i, len(sites)))), credentials(name))
        for i, name in enumerate(sites)
    }


def at_sites(tmp_path, overrides, tamper=lambda name, kind, reply: reply, **how):
    overrides = SMALL | overrides
    transport = Here(hosts(overrides), tamper)
    return run_at_sites(transport, Experiment.of(None, **overrides), tmp_path / "sites", len(SITES), **how)


def model(run):
    return torch.cat([t.double().reshape(-1) for _, t in sorted(run.model().items())])


def with_keys(keys, overrides, tamper=lambda name, kind, reply: reply, sites=SITES):
    """Return sites that have keys of `deploy keys`."""
    return Here(hosts(overrides, lambda name: Credentials.load(keys / "sites" / name), sites), tamper)
