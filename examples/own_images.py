"""From a folder of your own images to ONNX: CLASS/image.png in, a file for other programs out.

Run it with `python examples/own_images.py`; ONNX needs `pip install 'fedstrata[onnx]'`, without it the same model is
written for `torch.export`. The same from a terminal:

    fedstrata run --set data.name=own --set data.path=photos --set model.name=lenet5
    fedstrata export runs/fedavg-1 --onnx -o photos.onnx
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

import fedstrata


def draw(folder: Path, each: int = 60, size: int = 28) -> None:
    """Draw stripes that go across, up and aslant, in noise."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:size, :size]
    for name, wave in {"across": rows, "up": columns, "aslant": rows + columns}.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            stripes = 127 + 90 * np.sin(wave + rng.uniform(0, 6)) + rng.normal(0, 20, (size, size))
            Image.fromarray(stripes.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:03}.png")


if __name__ == "__main__":
    draw(Path("photos"))
    run = fedstrata.train(
        overrides={
            "data.name": "own",
            "data.path": "photos",
            "data.clients": 4,
            "model.name": "lenet5",
            "train.rounds": 8,
            "train.clients_per_round": "all",
        }
    )
    print(f"accuracy {run.summary['accuracy']:.4f}, classes {', '.join(map(str, run.classes))}")
    print("one photo:", run.predict("photos/up/000.png")[0])
    onnx = find_spec("onnx") is not None and find_spec("onnxscript") is not None
    form = ["--onnx", "-o", "photos.onnx"] if onnx else ["--torch-export", "-o", "photos.pt2"]
    subprocess.run([sys.executable, "-m", "fedstrata", "export", str(run.path), *form], check=True)
