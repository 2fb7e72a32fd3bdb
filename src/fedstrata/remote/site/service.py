"""What a site's own process does: it holds data, model and state, and answers requests on a private socket.

Whatever brings them there is thin.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedstrata.config.sections import EnclaveChoice
from fedstrata.core.origin import find_own_parts_in
from fedstrata.core.storage.json_log import FILE, JsonLines
from fedstrata.data.federation import Federation
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.flower.joining import with_stream
from fedstrata.remote.site.policy.resources import keep_to
from fedstrata.remote.site.policy.rules import SitePolicy
from fedstrata.remote.site.private_socket import serve
from fedstrata.remote.site.process_state import StatedAnswer
from fedstrata.remote.site.site_server import SiteServer
from fedstrata.remote.site.source import source

LOG = logging.getLogger(__name__)


def serve_site(config: Mapping[str, Any]) -> None:
    """Serve until ended."""
    policy = SitePolicy.model_validate(config["policy"])
    keep_to(policy.resources)
    find_own_parts_in(config["folder"])
    part = None if config.get("partition") is None else (int(config["partition"][0]), int(config["partition"][1]))
    table = config["data"]

    @cache
    def load() -> Federation:
        return source(table["data"], int(table.get("seed", 0)), part)

    doubts = load().doubts if config["remarks"] else ()  # what is wrong with it should be said now
    folder = None if config.get("state") is None else Path(config["state"])
    if folder is not None:
        log_to(folder / FILE, site=config["site"], server=config["server"])
    for doubt in doubts:  # to the owner alone: it quotes values
        LOG.warning("site %s: %s; every site has to do the same", config["site"], doubt)
    credentials = None if config.get("keys") is None else Credentials.load(Path(config["keys"]), kept=folder)
    site = SiteServer(config["site"], load, credentials, folder, policy, EnclaveChoice(**config["enclave"]))
    serve(StatedAnswer(with_stream(site.answer, policy.check_server), site.state), Path(config["socket"]))


def log_to(path: Path, **always: str) -> None:
    """Let what this site's code logs go into the site's log, and to where it prints."""
    log = logging.getLogger("fedstrata")
    log.addHandler(JsonLines(path, **always))
    printed = logging.StreamHandler()
    printed.setLevel(logging.WARNING)
    log.addHandler(printed)
    log.setLevel(logging.INFO)
