"""`fedstrata deploy package`: one archive a site, and one for the server, with all that a service needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstrata.cli.options import Sets, overrides
from fedstrata.core.errors import RequestError


def package(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the archives.")],
    keys: Annotated[Path, typer.Option(metavar="DIR", help="The folder that `deploy keys` made.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites find the server.")],
    sites: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Only these sites, and no server; by default all.")
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="WHAT", help="What a site has, as in `deploy client`; a path at the site.")
    ] = "/data/samples.csv",
    sets: Sets = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="SITE.toml", help="What sites agree to; docs/policy.md.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Figures for Prometheus.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of that port, in a container of its machine's.")
    ] = "127.0.0.1",
) -> None:
    """Write one archive a site, with all that it needs. Keys, configuration, start script, systemd unit, containers."""
    from fedstrata.config.experiment import Experiment
    from fedstrata.deploy import state
    from fedstrata.deploy.package import MetricsAddress, for_server, for_site, sites_of, write_all
    from fedstrata.deploy.site.client import describe_data
    from fedstrata.remote.site.policy.rules import read_policy

    host, port = state.address(server)
    known = sites_of(keys)
    wanted = known if sites is None else [name.strip() for name in sites.split(",") if name.strip()]
    if strange := [name for name in wanted if name not in known]:
        raise RequestError(f'--sites names "{strange[0]}", which has no keys in {keys}; there are: {", ".join(known)}')
    table = describe_data(data, overrides(sets)).dump()["data"]
    named = {key: table[key] for key in ("name", "path") if table.get(key) is not None}
    usual = Experiment.of({"data": named}).dump()["data"]
    given = named | {key: value for key, value in table.items() if value not in (None, usual.get(key))}
    rules = None
    if policy is not None:
        read_policy(policy, [])
        rules = policy.read_bytes()
    at = state.join_address(host, port)
    figures = None if metrics_port is None else MetricsAddress(metrics_port, metrics_host)
    made = [for_site(name, keys / "sites" / name, at, given, rules, figures) for name in wanted]
    if sites is None:
        made.append(for_server(keys / "server", "0.0.0.0", port, host, figures))
    for path in write_all(folder, made):
        print(path)
    print("each holds private keys: give every site its own, over a safe channel, and delete the rest")
