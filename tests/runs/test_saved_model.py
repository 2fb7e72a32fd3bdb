"""A model file is complete: it is built, fed with raw inputs, exported and started from without its run."""

from __future__ import annotations

import ast
import csv
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedstrata import Federation, Inputs, RequestError, Run, Streams, compare, resume, train
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.data.partitions.base import hold_out
from fedstrata.runs.export import KINDS, export
from fedstrata.runs.saved_model import SavedModel

QUICK = {"train.rounds": 3, "data.clients": 4, "train.clients_per_round": "all", "data.partition": "iid"}
ALONE = {"engine.workers": 1}


def images(path, each=30, size=12):
    """Write images that are easy to tell apart: bright above, below, or left."""
    rng = np.random.default_rng(0)
    for label in ("above", "below", "left"):
        (path / label).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 90, (size, size, 3))
            half = size // 2
            pixels[{"above": np.s_[:half], "below": np.s_[half:], "left": np.s_[:, :half]}[label]] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(path / label / f"{i:02}.png")
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return images(tmp_path_factory.mktemp("own") / "pictures")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pictures):
    """A network of convolutions, trained on a folder of images."""
    asked = QUICK | ALONE | {"data.name": "own", "data.path": str(pictures), "train.rounds": 6, "model.name": "lenet5"}
    asked |= {"data.size": 28, "train.lr": 0.05, "train.batch_size": 8}
    return train(overrides=asked, out=tmp_path_factory.mktemp("runs") / "images")


def test_what_a_file_says_of_its_model(trained):
    with safe_open(trained.path / "best.safetensors", "pt") as file:
        said = json.loads(file.metadata()["about"])
    assert said["model"]["name"] == "lenet5"
    assert said["classes"] == ["above", "below", "left"]
    assert said["sample"] == {"shape": [3, 28, 28], "dtype": "uint8"}
    assert said["preprocessing"]["scale"] == 255.0
    assert len(said["preprocessing"]["mean"]) == len(said["preprocessing"]["std"]) == 3
    assert said["method"] == "fedavg"
    assert said["data"]["fingerprint"] == trained.events()[0]["fingerprint"]
    assert set(said["versions"]) == {"fedstrata", "torch"}


def test_a_folder_of_images_is_predicted_as_the_summary_says(trained, pictures):
    federation = build_federation(Experiment.of(trained.path / "experiment.toml"))
    truth = np.array(federation.classes)[federation.test.y.numpy()]
    held = trained.predict(federation.test.x)
    assert (held == truth).mean() == trained.summary["accuracy"]
    said = dict(
        zip(
            sorted(p.relative_to(pictures).as_posix() for p in pictures.rglob("*.png")),
            trained.predict(pictures),
            strict=True,
        )
    )
    some = [pictures / "below" / "03.png", str(pictures / "left" / "07.png")]
    assert trained.predict(some).tolist() == [said["below/03.png"], said["left/07.png"]]
    assert np.mean([name.split("/")[0] == label for name, label in said.items()]) > 0.8
    assert trained.saved.evaluate(pictures)["accuracy"] == np.mean([n.split("/")[0] == w for n, w in said.items()])


def test_the_module_takes_raw_inputs_and_orders_logits_as_the_classes(trained, pictures):
    module, held = trained.module(), trained.saved.inputs(pictures)
    with torch.no_grad():
        logits = module(held.x)
        scaled = trained.saved.info.preprocessing.apply(held.x)
        assert torch.allclose(module.network(scaled), logits, atol=1e-5)
    assert trained.classes == module.classes == ("above", "below", "left")
    assert np.array(module.classes)[logits.argmax(1)].tolist() == trained.predict(pictures).tolist()
    assert np.allclose(trained.predict_proba(pictures), logits.double().softmax(1))
    assert trained.best.predict(pictures).shape == (90,)


def test_a_state_dict_is_the_network_s_own(trained, tmp_path):
    export(trained.saved, "state-dict", tmp_path / "model.pt")
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert weights.keys() == trained.model().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.model().items())


@pytest.mark.parametrize(
    "kind",
    [  # of torch-export, the five lines of the document are run by default
        pytest.param(kind, marks=pytest.mark.extended if kind == "torch-export" else ())
        for kind in KINDS
        if kind != "state-dict"
    ],
)
def test_an_exported_model_gives_the_same_logits_without_fedstrata(trained, pictures, tmp_path, kind):
    if kind == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    export(trained.saved, kind, tmp_path / "model")
    x = trained.saved.inputs(pictures).x[:7]  # another number of samples than it was traced with
    with torch.no_grad():
        expected = trained.module()(x).numpy()
    np.savez(tmp_path / "x.npz", x=x.numpy(), expected=expected)
    read = {
        "onnx": """
            import onnxruntime
            session = onnxruntime.InferenceSession("model")
            classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
            logits = session.run(None, {"x": x})[0]""",
        "torchscript": """
            extra = {"classes.json": ""}
            module = torch.jit.load("model", _extra_files=extra)
            classes = json.loads(extra["classes.json"])
            logits = module(torch.from_numpy(x)).detach().numpy()""",
        "torch-export": """
            extra = {"classes.json": ""}
            module = torch.export.load("model", extra_files=extra).module()
            classes = json.loads(extra["classes.json"])
            logits = module(torch.from_numpy(x)).detach().numpy()""",
    }[kind]
    script = "import json, sys, numpy as np, torch\nx = np.load('x.npz')['x']\n" + textwrap.dedent(read)
    script += "\nassert abs(logits - np.load('x.npz')['expected']).max() < 1e-4"
    script += "\nassert classes == ['above', 'below', 'left'] and 'fedstrata' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.extended
def test_the_five_lines_of_the_document_need_no_fedstrata(trained, pictures, tmp_path):
    export(trained.saved, "torch-export", tmp_path / "photos.pt2")
    x = trained.saved.inputs(pictures).x[::10]
    np.save(tmp_path / "x.npy", x.numpy())
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text()
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "torch.export.load" in c]
    assert len([line for line in code.splitlines() if line]) == 5
    ready = "import numpy, sys, torch\nsys.modules['fedstrata'] = None\nx = torch.from_numpy(numpy.load('x.npy'))\n"
    command = [sys.executable, "-c", ready + code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == trained.predict(x).tolist()


def test_onnx_that_is_not_installed_is_one_line(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("fedstrata.runs.export.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'fedstrata\[onnx\]'"):
        export(trained.saved, "onnx", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def wine(path):
    """Write scikit-learn's wine as people keep it: columns on their own scales, and one of text."""
    data = load_wine()
    names = data.target_names[data.target]
    colour = np.where(data.data[:, 9] > 5, "dark", "bright")
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*data.feature_names, "colour", "kind"])
        table.writerows([*row, word, name] for row, word, name in zip(data.data, colour, names, strict=True))
    return path, names


@pytest.mark.parametrize("scale", ["federated", "per-client", "none"])
def test_a_raw_table_is_predicted_as_the_summary_says(tmp_path, scale):
    path, names = wine(tmp_path / "wine.csv")
    asked = QUICK | ALONE | {"data.name": "own", "data.path": str(path), "data.label": "kind", "data.scale": scale}
    run = train(overrides=asked | {"train.rounds": 10, "train.lr": 0.3}, out=tmp_path / "run")
    held = hold_out(np.arange(len(names)), names, 0.2, Streams(0)("own"))[1]  # the rows that training held out
    said = run.predict(path)
    if scale == "federated":
        assert run.summary["accuracy"] > 0.9
        assert (said[held] == names[held]).mean() == run.summary["accuracy"]
        steps = run.saved.info.preprocessing
        with torch.no_grad():
            assert torch.allclose(
                run.module()(torch.from_numpy(steps.encode(_columns(path)))),
                run.module().network(steps.apply(_columns(path))),
                atol=1e-5,
            )
    elif scale == "none":
        assert (said[held] == names[held]).mean() == run.summary["accuracy"]
    assert set(said) <= {"class_0", "class_1", "class_2"}
    assert run.saved.evaluate(path)["accuracy"] == pytest.approx((said == names).mean())
    columns = _columns(path)
    del columns["kind"]
    shuffled = dict(sorted(columns.items()))  # by name, in whatever order
    assert run.predict(shuffled).tolist() == said.tolist()


def test_tables_that_do_not_fit_are_refused_by_column(tmp_path):
    path, _ = wine(tmp_path / "wine.csv")
    asked = QUICK | ALONE | {"data.name": "own", "data.path": str(path), "data.label": "kind", "train.rounds": 1}
    run = train(overrides=asked, out=tmp_path / "run")
    columns = _columns(path)
    for change, said in (
        ({"colour": ["green"] * 178}, '"green" did not occur in training'),
        ({"alcohol": ["much"] * 178}, "column alcohol holds numbers"),
        ({"alcohol": [""] * 178}, "column alcohol: 178 values are missing"),
    ):
        with pytest.raises(RequestError, match=said):
            run.predict(columns | change)
    columns.pop("hue")
    with pytest.raises(RequestError, match="column hue is missing"):
        run.predict(columns)


def test_data_frames_are_tables(tmp_path):
    pandas = pytest.importorskip("pandas")
    path, _ = wine(tmp_path / "wine.csv")
    asked = QUICK | ALONE | {"data.name": "own", "data.path": str(path), "data.label": "kind"}
    run = train(overrides=asked, out=tmp_path / "run")
    frame = pandas.read_csv(path)
    assert run.predict(frame).tolist() == run.predict(path).tolist()
    assert run.evaluate(frame) == run.evaluate(path) == run.evaluate(frame.drop(columns="kind"), frame["kind"])


def _columns(path):
    header, *rows = csv.reader(path.read_text().splitlines())
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def test_masked_labels_give_a_model_that_speaks_labels(tmp_path):
    run = train(overrides=QUICK | ALONE | {"privacy.labels": "prf"}, out=tmp_path / "masked")
    assert run.classes != tuple(range(10))
    assert sorted(run.classes) == list(range(10))
    federation = build_federation(Experiment.of(run.path / "experiment.toml"))
    assert (run.predict(federation.test.x * 16) == federation.test.y.numpy()).mean() == run.summary["accuracy"]


def test_model_init_finds_classes_by_name_across_open_and_masked_runs(tmp_path):
    still = QUICK | ALONE | {"train.rounds": 1, "train.lr": 1e-9}
    masked = train(overrides=QUICK | ALONE | {"privacy.labels": "prf"}, out=tmp_path / "masked")
    start = {"model.init": str(masked.path / "model.safetensors")}
    opened = train(overrides=still | start, out=tmp_path / "open")
    again = train(overrides=still | start | {"privacy.labels": "prf"}, out=tmp_path / "again")
    assert masked.summary["accuracy"] > 0.5
    assert opened.summary["accuracy"] == again.summary["accuracy"] == masked.summary["accuracy"]
    assert opened.classes == tuple(range(10))
    with pytest.raises(RequestError, match=r"model\.init.*does not fit privacy\.labels"):
        train(
            overrides=still | {"privacy.labels": "prf", "model.init": str(opened.path / "model.safetensors")},
            out=tmp_path / "refused",
        )
    assert not (tmp_path / "refused").exists()


def test_model_init_takes_some_of_the_classes_and_refuses_others(tmp_path):
    x, y = load_digits(return_X_y=True)
    names = np.array([f"digit {label}" for label in y])
    shape = Inputs(scale=16.0)
    few = np.flatnonzero(y >= 6)
    all_of_them, some, strange = (
        Federation.from_arrays(x[rows], labels[rows], np.arange(len(rows)) % 3, inputs=shape)
        for rows, labels in ((np.arange(len(y)), names), (few, names), (few, np.array([f"number {n}" for n in y])))
    )
    asked = {"train.rounds": 3, "train.clients_per_round": "all", **ALONE}
    first = train(overrides=asked, federation=all_of_them, out=tmp_path / "first")
    start = {"model.init": str(first.path / "model.safetensors"), "train.rounds": 1, "train.lr": 1e-9}
    second = train(overrides=asked | start, federation=some, out=tmp_path / "second")
    assert second.classes == ("digit 6", "digit 7", "digit 8", "digit 9")
    assert second.summary["accuracy"] > 0.85
    with pytest.raises(RequestError, match="does not know the class 'number 6'"):
        train(overrides=asked | start, federation=strange, out=tmp_path / "third")


def test_a_module_of_one_s_own_is_known_to_its_run_and_given_again_later(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4))
    federation = Federation.from_arrays(x, np.where(x[:, 0] > 0, "plus", "minus"), np.arange(90) % 3)
    own = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    before = own[0].weight.detach().clone()
    run = train(overrides={"train.rounds": 3, **ALONE}, federation=federation, model=own, out=tmp_path / "run")
    said = run.predict(x)
    assert set(said) <= {"plus", "minus"}
    assert run.best.module()(torch.tensor(x, dtype=torch.float32)).shape == (90, 2)
    run.export(tmp_path / "mine.ts")
    assert torch.equal(own[0].weight, before)
    with pytest.raises(RequestError, match=r"does not fit that model: Missing .*; Unexpected ") as error:
        run.module(nn.Linear(4, 2))
    assert "\n" not in str(error.value)
    later = Run(run.path)
    with pytest.raises(RequestError, match=r"came from Python.*fedstrata\.Run\(folder, model\)"):
        later.predict(x)
    assert (later.predict(x, own) == said).all()
    assert (Run(run.path, own).predict(x) == said).all()
    assert (resume(run.path, federation=federation, model=own).predict(x) == said).all()


def test_runs_of_a_comparison_know_a_module_of_one_s_own(tmp_path):
    x = np.random.default_rng(0).normal(size=(90, 4))
    federation = Federation.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(90) % 3)
    own = nn.Linear(4, 2)
    asked = {"train.rounds": 1, "train.clients_per_round": "all", **ALONE}
    compared = compare(
        methods=["fedavg", "fedprox"], overrides=asked, seeds=1, federation=federation, model=own, out=tmp_path / "two"
    )
    assert compared.runs["fedprox"][0].predict(x).shape == (90,)


class Answers(nn.Module):
    """A module as transformers have them: lazy, and its logits are one of several answers."""

    def __init__(self):
        super().__init__()
        self.head = nn.LazyLinear(2)

    def forward(self, x):
        return {"features": x, "logits": self.head(x)}


def test_logits_are_found_in_what_a_module_of_one_s_own_answers(tmp_path):
    x = np.random.default_rng(0).normal(size=(90, 4))
    federation = Federation.from_arrays(x, np.where(x[:, 0] > 0, "plus", "minus"), np.arange(90) % 3)
    asked = {"train.rounds": 3, "train.lr": 1.0, **ALONE}
    run = train(overrides=asked, federation=federation, model=Answers(), out=tmp_path / "run")
    assert run.module(Answers())(torch.from_numpy(x)).shape == (90, 2)
    run.export("mine.pt2", model=Answers())
    alone = torch.export.load("mine.pt2").module()
    assert torch.allclose(alone(torch.from_numpy(x)), run.module(Answers())(torch.from_numpy(x)), atol=1e-5)
    with pytest.raises(RequestError, match="does not say a kind; allowed: kind = onnx"):
        run.export("mine.tar", model=Answers())
    assert (np.array(run.predict(x, Answers())) == np.where(x[:, 0] > 0, "plus", "minus")).mean() > 0.9


def test_raw_samples_of_a_named_set_are_predicted_as_the_summary_says(tmp_path):
    raw = load_digits()
    run = train(overrides=QUICK | ALONE | {"train.rounds": 10, "train.lr": 0.1}, out=tmp_path / "run")
    shares = (np.array(run.predict(raw.images[:, None])) == raw.target).mean()
    assert shares == pytest.approx(run.summary["accuracy"], abs=0.05)
    assert shares > 0.85


def test_one_sample_alone_is_predicted(tmp_path):
    """As docs/model.md has it; a row of numbers, and a flat image, were refused."""
    x, y = load_digits(return_X_y=True)
    table = Federation.from_arrays(x, y, 4, partition="iid", inputs=Inputs(scale=16))
    square = Federation.from_arrays(x.reshape(-1, 1, 8, 8), y, 4, partition="iid", inputs=Inputs(scale=16))
    for federation in (table, square):
        overrides = {"train.rounds": 2, "train.clients_per_round": "all"}
        run = train(overrides=overrides, federation=federation, out=tmp_path / f"{federation.train.x.ndim}")
        found = run.predict_proba(x[:1])
        for alone in (x[0], torch.from_numpy(x[0]), x[0].tolist()):
            assert np.array_equal(run.predict_proba(alone), found)
        with pytest.raises(RequestError, match=r"samples have shape \(63,\); the model was trained on"):
            run.predict(x[0, :63])


def test_a_torch_data_set_is_predicted_and_scored(trained, pictures):
    labels = ("above", "below", "left")
    files = [file for label in labels for file in sorted((pictures / label).glob("*.png"))]
    pixels = np.stack([np.asarray(Image.open(file).resize((28, 28), Image.Resampling.BILINEAR)) for file in files])
    x, y = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), torch.arange(90) // 30
    for data in (TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True)):
        assert trained.predict(data).tolist() == trained.predict(x).tolist(), "in order, whatever a loader does"
    named = [(image, labels[int(label)]) for image, label in zip(x, y, strict=True)]
    hits = np.mean(trained.predict(x) == [label for _, label in named])
    scores = trained.evaluate(Named(named))
    assert scores["accuracy"] == pytest.approx(hits)
    assert scores == trained.evaluate(x, [label for _, label in named])
    with pytest.raises(RequestError, match="have no labels to compare with; give them as y"):
        trained.evaluate(x)
    with pytest.raises(RequestError, match="90 samples but 3 labels"):
        trained.evaluate(x, labels)
    with pytest.raises(RequestError, match='"right" is no class of the model'):
        trained.evaluate(x, ["right"] * 90)


class Named(Dataset):
    """Pairs, as a torch data set."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def test_an_image_file_has_the_shades_of_training(tmp_path):
    images = load_digits().images[:20]
    run = train(overrides=QUICK | ALONE | {"train.rounds": 10, "train.lr": 0.1}, out=tmp_path / "run")
    for i, image in enumerate(images):  # white is 16 in this set, and 255 in a file
        Image.fromarray(np.rint(image * 255 / 16).astype(np.uint8)).save(tmp_path / f"{i:02d}.png")
    files = [tmp_path / f"{i:02d}.png" for i in range(20)]
    assert np.allclose(run.predict_proba(files), run.predict_proba(images), atol=0.01)


def test_image_files_are_refused_where_their_shades_say_nothing(tmp_path):
    x, y = load_digits(return_X_y=True)
    federation = Federation.from_arrays(x.reshape(-1, 1, 8, 8) / 16, y, np.arange(len(y)) % 3)
    run = train(overrides=ALONE | {"train.rounds": 1}, federation=federation, out=tmp_path / "run")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "one.png")
    with pytest.raises(RequestError, match="no pixels from 0 to 255"):
        run.predict(tmp_path / "one.png")
    assert len(run.predict(x[:3] / 16)) == 3


def test_channels_may_come_last(trained):
    x = np.random.default_rng(0).integers(0, 256, (5, 3, 28, 28), dtype=np.uint8)
    last = np.moveaxis(x, 1, -1)
    assert np.allclose(trained.predict_proba(last), trained.predict_proba(x))
    assert np.allclose(trained.predict_proba(last[0]), trained.predict_proba(x)[:1], atol=1e-6)
    with pytest.raises(RequestError, match=r"shape \(2352,\); the model was trained on \(3, 28, 28\)"):
        trained.predict(x.reshape(5, -1))  # colours side by side, or mixed: nobody can tell


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (np.zeros((3, 1, 28, 28), np.uint8), r"shape \(1, 28, 28\).*trained on \(3, 28, 28\)"),
        ({"age": [1, 2]}, "not on a table"),
        ("nowhere.csv", "does not exist"),
        (np.zeros((0, 3, 28, 28), np.uint8), "no samples"),
        (np.full((2, 3, 28, 28), np.nan), "missing or infinite"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_the_reason(trained, raw, said):
    with pytest.raises(RequestError, match=said):
        trained.predict(raw)


def test_a_file_that_says_nothing_of_itself_can_be_started_from_and_not_used(tmp_path):
    first = train(overrides=QUICK | ALONE, out=tmp_path / "first")
    bare = tmp_path / "bare.safetensors"
    save_file(first.model(), bare)
    with pytest.raises(RequestError, match="does not say what its model is"):
        SavedModel.find(bare).module()
    train(overrides=QUICK | ALONE | {"model.init": str(bare), "train.rounds": 1}, out=tmp_path / "second")
    with pytest.raises(RequestError, match="holds no model"):
        Run(tmp_path / "nothing").predict(np.zeros((1, 64)))
