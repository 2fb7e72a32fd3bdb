"""A model that was trained on masked labels, opened by one of its sites: its answers get their names back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedstrata.core.errors import RequestError
from fedstrata.privacy.frames import RefusedError
from fedstrata.privacy.labels.kept import OwnMap
from fedstrata.privacy.labels.names import open_names
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.site.privacy import map_key
from fedstrata.runs.saved_model import SavedModel


def open_model(path: Path, keys: Path | None = None) -> SavedModel:
    """Find the model of a run; with the keys of a site that trained it, its placeholders have names."""
    saved = SavedModel.find(path)
    directory = saved.info.label_directory
    if keys is None or directory is None:
        return saved
    credentials = Credentials.load(keys)
    name = next((name for name, key in credentials.sites.items() if key == credentials.identity.public), None)
    if name is None or name not in directory["sites"]:
        raise RequestError(
            f"--keys {keys} are not those of a site that trained the model: {', '.join(directory['sites'])}"
        )
    try:
        sealed = bytes.fromhex(directory["sites"][name])
        own = OwnMap.open(map_key(credentials.identity.private.private_bytes_raw()), sealed, directory["run"])
        names = open_names(own.names_key, [bytes.fromhex(entry) for entry in directory["names"]])
    except RefusedError as error:
        raise RequestError(f"--keys {keys}: {error}") from None
    return replace(saved, names=names)
