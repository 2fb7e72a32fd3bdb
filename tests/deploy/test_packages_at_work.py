"""What the files of a package tell systems to do, done here: keys in a pod, the lines of the README, exit codes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from fedstrata.core.errors import RequestError
from fedstrata.core.storage.archives import unpack
from fedstrata.deploy.keys import of_server, of_site
from fedstrata.deploy.package import MetricsAddress, PartyPackage, for_server, for_site, write_all
from fedstrata.deploy.shut_out import OtherProtocolError, RevokedError
from fedstrata.remote.credentials import Credentials

UID = 10001
DATA = {"name": "own", "path": "/data/x.csv"}


def unpacked(folder: Path, *packages: PartyPackage) -> None:
    for archive in write_all(folder / "out", packages):
        with tarfile.open(archive) as file:
            unpack(file, folder)


@pytest.fixture
def packages(made, tmp_path):
    figures = MetricsAddress(9100)
    unpacked(
        tmp_path,
        for_site("a", made / "sites/a", "fl.example.org:8443", DATA, figures=figures),
        for_server(made / "server", "0.0.0.0", 8443, "fl.example.org", figures),
    )
    return tmp_path


def kubernetes(root: Path) -> dict:
    _, pod = yaml.safe_load_all((root / "kubernetes.yaml").read_text())
    return pod["spec"]["template"]["spec"]


def service(root: Path) -> dict:
    return yaml.safe_load((root / "compose.yaml").read_text())["services"]["fedstrata"]


# ---- keys in a pod -------------------------------------------------------------------------------------------------


@pytest.fixture
def volumes():
    """Return a secret and an empty folder as a pod gets them: root's, with the group of the pod."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with TemporaryDirectory() as name:  # tmp_path is closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        for each, mode in (("secret", 0o755), ("keys", 0o2777)):
            (folder / each).mkdir()
            os.chown(folder / each, 0, UID)
            (folder / each).chmod(mode)
        yield folder


def mounted(secret: Path, number: int, keys: Path) -> None:
    """Lay files into a secret as the kubelet does: behind links, the last of which is exchanged at once."""
    version = secret / f"..{number}"
    version.mkdir()
    for file in keys.iterdir():
        shutil.copyfile(file, version / file.name)
        os.chown(version / file.name, 0, UID)
        (version / file.name).chmod(0o440)
        if not (secret / file.name).is_symlink():
            (secret / file.name).symlink_to(f"..data/{file.name}")
    (secret / "..next").symlink_to(version.name)
    os.replace(secret / "..next", secret / "..data")


@pytest.mark.parametrize("party", ["a", "server"])
def test_a_pod_gets_its_keys_as_another_user_and_a_new_roll_without_a_restart(packages, made, volumes, party):
    keys = made / "server" if party == "server" else made / "sites/a"
    (init,) = kubernetes(packages / f"fedstrata-{party}")["initContainers"]
    *shell, script = init["command"]
    script = re.sub(r"/(secret|keys)\b", lambda at: str(volumes / at[1]), script)
    mounted(volumes / "secret", 1, keys)
    for _ in range(2):  # the folder outlives a restart of the pod's containers
        done = subprocess.run(
            [*shell, script], user=UID, group=UID, extra_groups=[], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    there = volumes / "keys"
    assert {path.name for path in there.iterdir()} == {path.name for path in keys.iterdir()}
    for path in there.iterdir():
        if path.name != "roll.json":
            assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o600, UID)
    if party == "server":
        of_server(there, "0.0.0.0")
    else:
        of_site(there, "a")
    assert Credentials.load(there).roll.serial == 1
    newer = shutil.copytree(keys, volumes / "newer")
    (newer / "roll.json").write_text("the next one")
    mounted(volumes / "secret", 2, newer)
    assert (there / "roll.json").read_text() == "the next one"


def test_a_pod_mounts_the_secret_where_the_roll_is_read(packages):
    spec = kubernetes(packages / "fedstrata-server")
    (container,) = spec["containers"]
    assert {"name": "secret", "mountPath": "/secret", "readOnly": True} in container["volumeMounts"]


# ---- a key that does not count any more ----------------------------------------------------------------------------


def test_a_site_that_is_shut_out_is_not_started_for_ever(packages):
    codes = {RevokedError.exit_code, OtherProtocolError.exit_code}
    assert codes == {76, 77}
    assert len({0, 1, 2, 130} | codes) == 6, "they are nobody else's"
    unit = (packages / "fedstrata-a/fedstrata-a.service").read_text()
    (prevent,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert {int(code) for code in prevent.split()} == codes
    assert service(packages / "fedstrata-a")["restart"] == "unless-stopped"  # also after the machine was restarted


# ---- figures -------------------------------------------------------------------------------------------------------


def test_figures_of_a_container_can_be_scraped_on_its_machine_and_nowhere_else(packages, made, tmp_path):
    for name, others in (("a", []), ("server", ["8443:8443"])):
        root = packages / f"fedstrata-{name}"
        assert service(root)["ports"] == [*others, "127.0.0.1:9100:9100"]
        assert "FEDSTRATA_METRICS_HOST=0.0.0.0" in (root / "Dockerfile").read_text()
        (container,) = kubernetes(root)["containers"]
        assert 9100 in [port["containerPort"] for port in container["ports"]]
        assert "http://127.0.0.1:9100/metrics" in (root / "README.md").read_text()
    wide = for_site("a", made / "sites/a", "h:1", DATA, figures=MetricsAddress(9100, "10.0.0.5"))
    unpacked(tmp_path / "wide", wide)
    assert service(tmp_path / "wide/fedstrata-a")["ports"] == ["10.0.0.5:9100:9100"]
    assert "${FEDSTRATA_METRICS_HOST:-10.0.0.5}" in (tmp_path / "wide/fedstrata-a/start.sh").read_text()
    with pytest.raises(RequestError, match="--metrics-host"):
        MetricsAddress(9100, "$(reboot)")


def test_who_wants_no_figures_opens_no_port(made, tmp_path):
    unpacked(tmp_path, for_site("a", made / "sites/a", "h:1", DATA))
    root = tmp_path / "fedstrata-a"
    assert "ports" not in service(root)
    assert "ports" not in kubernetes(root)["containers"][0]
    assert "metrics" not in (root / "start.sh").read_text()


# ---- the lines of the README ---------------------------------------------------------------------------------------

# What stands for sudo, docker and kubectl: each does on this machine what it would do in the service's place.
SUDO = 'case $1 in install) shift; shift 6; exec cp "$@";; -u) shift 2; exec "$@";; esac; exit 9'
DOCKER = """
[ "$1 $2" = "compose exec" ] || exit 9; shift 2
cd "$IMAGE/opt/fedstrata"
while [ "${1#-}" != "$1" ]; do case $1 in -T) shift;; -w) cd "$2"; shift 2;; *) exit 9;; esac; done
[ "$1" = fedstrata ] || exit 9; shift
FEDSTRATA_STATE="$IMAGE/state"; export FEDSTRATA_STATE; exec "$@"
"""
KUBECTL = """
[ "$1" = exec ] || exit 9; shift
while [ "${1#-}" != "$1" ]; do shift; done
[ "$1" = "deployment/fedstrata-$PARTY" ] && [ "$2" = -- ] || exit 9; shift 2
cd "$IMAGE/opt/fedstrata"
FEDSTRATA_STATE="$IMAGE/state"; export FEDSTRATA_STATE; exec "$@"
"""
TELLS = 'echo "$PWD|$FEDSTRATA_STATE|$*"'


def blocks(readme: Path) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", readme.read_text(), re.DOTALL)


def told(packages: Path, party: str, block: str) -> list[list[str]]:
    """Run lines of a README in a package's folder; give where, with which state and how fedstrata was called."""
    image, root = packages / "image", packages / f"fedstrata-{party}"
    for folder in ("bin", "state", "opt/fedstrata", "var/lib/fedstrata", "opt/fedstrata-venv/bin"):
        (image / folder).mkdir(parents=True, exist_ok=True)
    (root / "venv/bin").mkdir(parents=True, exist_ok=True)
    programs = {"sudo": SUDO, "docker": DOCKER, "kubectl": KUBECTL, "fedstrata": TELLS}
    for name, script in programs.items():
        (image / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (image / "bin" / name).chmod(0o755)
    for place in (image / "opt/fedstrata-venv/bin", root / "venv/bin"):
        shutil.copy(image / "bin/fedstrata", place / "fedstrata")
    (root / "experiment.toml").write_text("[train]\n")
    script = re.sub(
        r"(?<![\w$/])(/var/lib/fedstrata|/opt/fedstrata-venv|/state)\b", rf"{shlex.quote(str(image))}\1", block
    )
    around = {"PATH": f"{image / 'bin'}:{os.environ['PATH']}", "IMAGE": str(image), "PARTY": party}
    done = subprocess.run(["sh", "-e"], input=script, cwd=root, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in done.stdout.splitlines()]


def test_the_lines_for_a_run_are_called_where_the_server_may_write(packages):
    hand, *services = blocks(packages / "fedstrata-server/README.md")
    ((where, state, said),) = told(packages, "server", hand)
    assert (where, state) == (str(packages / "fedstrata-server"), f"{packages / 'fedstrata-server'}/state")
    assert said == "deploy run experiment.toml --sites N --server 127.0.0.1:8443"
    assert len(services) == 3
    for block, folder in zip(services, ("var/lib/fedstrata", "state", "state"), strict=True):
        home = packages / "image" / folder
        ((where, state, said),) = told(packages, "server", block)
        assert (where, state) == (str(home), str(home)), block
        words = ["deploy", "run", "experiment.toml", "--sites", "N", "--out", f"{home}/runs/first"]
        assert said.split() == [*words, "--server", "127.0.0.1:8443"]
        assert (home / "experiment.toml").read_text() == "[train]\n"
        (home / "experiment.toml").unlink()
    unit = (packages / "fedstrata-server/fedstrata-server.service").read_text()
    assert "Environment=FEDSTRATA_STATE=/var/lib/fedstrata\n" in unit
    assert "Environment=FEDSTRATA=/opt/fedstrata-venv/bin/fedstrata\n" in unit


def test_the_lines_for_models_and_approvals_are_called_with_the_service_s_state(packages):
    folders = (packages / "fedstrata-a", "var/lib/fedstrata", "state", "state")
    for block, folder in zip(blocks(packages / "fedstrata-a/README.md"), folders, strict=True):
        home = packages / "image" / folder
        lines = told(packages, "a", block)
        assert [said for _, _, said in lines] == ["deploy fetch --site a", "deploy approve --site a"]
        for where, state, _ in lines:
            assert (where, state) == (str(home), f"{home}/state" if folder is folders[0] else str(home)), block


def test_on_the_usual_port_no_server_is_named(made, tmp_path):
    unpacked(tmp_path, for_server(made / "server", "0.0.0.0", 8000))
    readme = (tmp_path / "fedstrata-server/README.md").read_text()
    assert "--server" not in readme
    assert "@" not in readme


# ---- keys that are not there ---------------------------------------------------------------------------------------


def test_no_package_is_made_for_a_server_whose_keys_were_taken_away(made, tmp_path, cli):
    own = shutil.copytree(made, tmp_path / "keys")
    words = ("deploy", "package", str(tmp_path / "out"), "--keys", str(own), "--server", "h:1")
    (own / "server/server.key").unlink()
    code, _, err = cli(*words)
    assert (code, "has no server.key; it should be the folder `server`" in err) == (2, True), err
    shutil.rmtree(own / "server")
    code, _, err = cli(*words)
    assert (code, "there are no keys for the server's package" in err, "--sites A,B,C" in err) == (2, True, True), err
    assert not (tmp_path / "out").exists()
    assert cli(*words, "--sites", "a,b")[0] == 0
