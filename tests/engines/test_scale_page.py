"""The files on docs/scale.md are what Ray, Slurm's shell and Kubernetes read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_cluster_file_is_valid_and_the_job_has_a_head_and_workers():
    yaml, ray = pytest.importorskip("yaml"), pytest.importorskip("ray.autoscaler._private.util")
    cluster, job = map(yaml.safe_load, blocks("yaml"))
    ray.validate_config(ray.prepare_config(cluster))
    spec = job["spec"]["rayClusterSpec"]
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert all(pod["template"]["spec"]["containers"][0]["image"] for pod in pods)
    assert "--set engine.address=auto" in job["spec"]["entrypoint"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_scripts_can_be_read():
    (slurm,) = blocks("bash")
    subprocess.run(["bash", "-n"], input=slurm, text=True, check=True)
