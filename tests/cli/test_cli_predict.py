"""`fedstrata predict`, `evaluate` and `export`: answers in words, wrong requests in one line, nothing half written."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process_sites import SITES, SMALL, with_keys
from PIL import Image

import fedstrata
from fedstrata import Arrays, DataSet, train
from fedstrata.config.experiment import Experiment
from fedstrata.deploy.keys import make
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.server.session import run_at_sites


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on own arrays with names for labels, and the file they came from."""
    place = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = (rng.normal(size=(200, 3)) + 2 * y[:, None]).astype(np.float32)
    names = np.array(["ham", "spam"])[y]
    np.savez(place / "mail.npz", x=x[:150], y=names[:150], test_x=x[150:], test_y=names[150:])
    asked = {"data.name": "own", "data.path": str(place / "mail.npz"), "data.clients": 3, "train.rounds": 5}
    return train(overrides=asked | {"engine.workers": 1}, out=place / "run"), place / "mail.npz"


def test_predictions_as_json_and_as_a_table(cli, run, tmp_path):
    done, data = run
    code, out, _ = cli("predict", str(done.path), str(data), "--json")
    told = json.loads(out)
    truth = np.load(data)["test_y"]
    assert code == 0
    assert np.mean(np.array(told["predictions"]) == truth) == done.summary["accuracy"]
    assert told["classes"] == ["ham", "spam"]
    assert len(told["probabilities"]) == len(told["inputs"]) == 50
    code, out, _ = cli("predict", str(done.path), str(data), "-o", str(tmp_path / "out.csv"))
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert (code, out) == (0, f"50 predictions: {tmp_path / 'out.csv'}\n")
    assert [row["prediction"] for row in rows] == told["predictions"]
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)
    assert cli("predict", str(done.path / "best.safetensors"), str(data))[1].startswith("input,prediction,probability")


def test_the_probability_of_every_class_is_told_on_request(cli, run):
    done, data = run
    shares = fedstrata.Run(done.path).predict_proba(data).tolist()
    told = json.loads(cli("predict", str(done.path), str(data), "--all-classes", "--json")[1])
    assert told["by_class"] == shares
    rows = list(csv.DictReader(cli("predict", str(done.path), str(data), "--all-classes")[1].splitlines()))
    assert list(rows[0]) == ["input", "prediction", "probability", "probability of ham", "probability of spam"]
    assert [float(row["probability of spam"]) for row in rows] == pytest.approx([spam for _, spam in shares], abs=1e-6)


def test_predictions_do_not_take_the_place_of_their_input(cli, run, tmp_path):
    (tmp_path / "new.npz").write_bytes(run[1].read_bytes())
    (tmp_path / "other.npz").symlink_to("new.npz")
    for out in ("new.npz", "./new.npz", "other.npz"):
        code, said, err = cli("predict", str(run[0].path), "new.npz", "-o", out)
        assert (code, said) == (2, "")
        assert f"-o {Path(out)} is the input itself" in err
    assert (tmp_path / "new.npz").read_bytes() == run[1].read_bytes()


def test_evaluation_gives_the_figures_of_the_summary(cli, run):
    done, data = run
    told = json.loads(cli("evaluate", str(done.path), str(data), "--json")[1])
    for key in ("accuracy", "balanced_accuracy"):
        assert told[key] == done.summary[key]
    assert told["loss"] == pytest.approx(done.summary["loss_test"], rel=1e-5)
    assert (told["samples"], set(told["recall"])) == (50, {"ham", "spam"})
    assert "recall of spam" in cli("evaluate", str(done.path), str(data))[1]


def test_an_export_says_where_it_is(cli, run, tmp_path):
    done, _ = run
    code, out, _ = cli("export", str(done.path), "--torch-export", "-o", str(tmp_path / "model.pt2"), "--json")
    assert code == 0
    assert json.loads(out)["kind"] == "torch-export"
    assert torch.export.load(tmp_path / "model.pt2").module()(torch.zeros(5, 3)).shape == (5, 2)
    assert cli("export", str(done.path), "--state-dict")[0] == 0
    assert (tmp_path / "model.pt").is_file()
    assert json.loads(cli("export", str(done.path), "-o", "by-ending.pt", "--json")[1])["kind"] == "state-dict"


def test_labels_may_stand_in_another_column_than_in_training(cli, tmp_path):
    rows = "".join(f"{i % 2 + i / 1000},{'yes' if i % 2 else 'no'}\n" for i in range(60))
    (tmp_path / "theirs.csv").write_text("size,label\n" + rows)
    (tmp_path / "ours.csv").write_text("size,diagnosis\n" + rows)
    asked = {"data.name": "own", "data.path": "theirs.csv", "data.clients": 1, "train.rounds": 1, "engine.workers": 1}
    train(overrides=asked | {"data.partition": "iid"}, out=tmp_path / "run")
    theirs = cli("evaluate", "run", "theirs.csv", "--json")
    assert cli("evaluate", "run", "ours.csv", "--label", "diagnosis", "--json") == theirs
    assert theirs[0] == 0
    for words, column in ((), "label"), (("--label", "kind"), "kind"):
        code, _, err = cli("evaluate", "run", "ours.csv", *words)
        assert code == 2
        assert f"has no labels to compare with; give a column {column}, or name another with --label COLUMN" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["predict", "RUN", "nowhere.npz"], "nowhere.npz does not exist"),
        (["predict", "nowhere", "DATA"], "holds no model"),
        (["predict", "RUN", "notes.md"], "not of a known kind"),
        (["predict", "RUN", "wide.npy"], r"shape (7,); the model was trained on (3,)"),
        (["predict", "RUN", "photo.png"], "not images"),
        (["predict", "RUN", "broken.npz"], "cannot be read"),
        (["predict", "RUN", "DATA", "-o", "no/such/out.csv"], "name a file"),
        (["evaluate", "RUN", "narrow.npy"], "has no labels"),
        (["evaluate", "RUN", "DATA", "--label", "y"], "--label = y names a column of a table; the model is of none"),
        (["evaluate", "RUN", "other.npz"], '"eggs" is no class of the model; it knows ham, spam'),
        (["export", "RUN"], "name one form, or a file with its ending: --onnx (.onnx), "),
        (["export", "RUN", "-o", "model.zip"], "name one form"),
        (["predict", "RUNS", "DATA"], "holds no model: name one of the runs below it, such as "),
        (["export", "RUN", "--onnx", "--state-dict"], "name one form"),
        (["export", "RUN", "--state-dict", "-o", "no/such.pt"], "there is no folder"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(cli, run, tmp_path, args, said):
    done, data = run
    np.save("wide.npy", np.zeros((2, 7)))
    np.save("narrow.npy", np.zeros((2, 3)))
    np.savez("other.npz", x=np.zeros((1, 3)), y=np.array(["eggs"]))
    for name in ("notes.md", "photo.png", "broken.npz"):
        (tmp_path / name).write_text("words")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = cli(
        *[{"RUN": str(done.path), "RUNS": str(done.path.parent), "DATA": str(data)}.get(arg, arg) for arg in args]
    )
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err
    assert sorted(tmp_path.rglob("*")) == before


def test_several_inputs_are_predicted_together(cli, run, lamps):
    done, data = run
    x = np.load(data)["test_x"]
    np.save("first.npy", x[:2])
    np.save("second.npy", x[2:5])
    told = json.loads(cli("predict", str(done.path), "first.npy", "second.npy", "--json")[1])
    assert told["inputs"] == ["first.npy:0", "first.npy:1", "second.npy:0", "second.npy:1", "second.npy:2"]
    assert told["predictions"] == done.predict(x[:5]).tolist()
    (Path("more") / "deep").mkdir(parents=True)
    for place, pixels in zip(("a.png", "more/a.png", "more/deep/b.png"), lamps[1], strict=False):
        Image.fromarray(pixels).save(place)
    told = json.loads(cli("predict", str(lamps[0].path), "a.png", "more", "--json")[1])
    assert told["inputs"] == ["a.png", "more/a.png", "more/deep/b.png"]
    assert told["predictions"] == lamps[2][:3].tolist()
    code, out, err = cli("predict", str(done.path), "first.npy", "second.npy", "-o", "second.npy")
    assert (code, out) == (2, "")
    assert "is the input itself" in err


def test_a_run_that_was_interrupted_is_gone_on_with_first(cli, tmp_path):
    def interrupt(event):
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides={"train.rounds": 3, "engine.workers": 1}, out="cut", watch=interrupt)
    np.save("x.npy", np.zeros((1, 1, 8, 8)))
    code, _, err = cli("predict", "cut", "x.npy")
    assert code == 2
    assert "its run is not finished; if it was interrupted, `fedstrata run --resume cut` goes on with it" in err


@dataclass(frozen=True)
class Coded(DataSet):
    """A data set whose publisher numbers its classes."""

    @property
    def label_names(self):
        return {3: "ham and eggs", 7: "spam"}

    def load(self):
        y = np.arange(60) % 2
        x = np.stack([y, 1 - y], 1).astype(np.float32)
        return Arrays(x, 3 + 4 * y, x[:10], 3 + 4 * y[:10])


def test_numbers_of_a_named_set_are_told_with_their_names(cli, tmp_path):
    asked = {"data.name": f"{__name__}:Coded", "data.clients": 2, "data.partition": "iid", "train.rounds": 3}
    done = train(overrides=asked | {"engine.workers": 1}, out="run")
    assert (done.classes, done.class_names) == ((3, 7), ("ham and eggs", "spam"))
    x = np.array([[0, 1], [1, 0]], np.float32)
    np.savez("new.npz", x=x, y=np.array(["ham and eggs", "spam"]))
    np.savez("numbers.npz", x=x, y=[3, 7])
    assert done.predict(x).tolist() == [3, 7]
    header, *rows = csv.reader(cli("predict", "run", "new.npz")[1].splitlines())
    assert header == ["input", "prediction", "probability", "name"]
    assert [(row[1], row[3]) for row in rows] == [("3", "ham and eggs"), ("7", "spam")]
    told = json.loads(cli("predict", "run", "new.npz", "--json")[1])
    assert (told["predictions"], told["names"]) == ([3, 7], ["ham and eggs", "spam"])
    code, out, _ = cli("evaluate", "run", "new.npz")
    assert code == 0
    assert "  recall of 3, ham and eggs 100.0 %" in out
    scores = json.loads(cli("evaluate", "run", "numbers.npz", "--json")[1])
    assert (scores["accuracy"], scores["class_names"]) == (1.0, {"3": "ham and eggs", "7": "spam"})
    assert cli("export", "run", "--torch-export", "-o", "model.pt2")[0] == 0
    extra = {"classes.json": "", "class_names.json": ""}
    torch.export.load("model.pt2", extra_files=extra)
    assert [json.loads(names) for names in extra.values()] == [[3, 7], ["ham and eggs", "spam"]]


def test_an_exported_table_says_that_it_takes_encoded_rows(cli, tmp_path):
    rows = "".join(f"{i % 7},{'ab'[i % 2]},{'yes' if i % 2 else 'no'}\n" for i in range(60))
    (tmp_path / "own.csv").write_text("size,kind,label\n" + rows)
    asked = {"data.name": "own", "data.path": "own.csv", "data.clients": 1, "train.rounds": 1, "engine.workers": 1}
    done = train(overrides=asked | {"data.partition": "iid"}, out=tmp_path / "run")
    code, out, _ = cli("export", "run", "--torch-export", "-o", "own.pt2")
    assert code == 0
    said = 'fedstrata.Run("run").saved.info.preprocessing.encode(table)'
    assert "it takes encoded rows of 3 numbers" in out
    assert said in out
    encoded = eval(said, {"fedstrata": fedstrata, "table": {"size": [1, 2], "kind": ["a", "b"]}})
    logits = torch.export.load("own.pt2").module()(torch.tensor(encoded, dtype=torch.float32))
    table = done.predict({"size": [1, 2], "kind": ["a", "b"]}).tolist()
    assert [done.classes[i] for i in logits.argmax(1)] == table
    assert "takes" in json.loads(cli("export", "run", "--torchscript", "--json")[1])


@pytest.fixture(scope="module")
def lamps(tmp_path_factory):
    """A run on grey images, and raw ones as people have them: [n, height, width], with labels."""
    place = tmp_path_factory.mktemp("lamps")
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    grey = rng.integers(0, 60, (120, 8, 10), dtype=np.uint8)
    grey[y == 0, :, :5] += 150  # light on the left, or on the right
    grey[y == 1, :, 5:] += 150
    names = np.array(["left", "right"])[y]
    np.savez(place / "lamps.npz", x=grey[:80], y=names[:80], test_x=grey[80:], test_y=names[80:])
    asked = {"data.name": "own", "data.path": str(place / "lamps.npz"), "data.clients": 2, "model.name": "mlp"}
    run = train(overrides=asked | {"train.rounds": 5, "engine.workers": 1}, out=place / "run")
    return run, grey[80:], names[80:]


@pytest.mark.parametrize(
    "raw",
    [
        lambda grey: grey,
        lambda grey: grey[:, None],
        lambda grey: grey[..., None],
        lambda grey: grey.reshape(len(grey), -1),
        lambda grey: grey.astype(np.int64),
        lambda grey: grey.astype(np.float32),
    ],
    ids=["no channel", "channel first", "channel last", "flat", "whole numbers", "floats"],
)
def test_grey_images_are_taken_in_every_shape_that_says_what_they_are(cli, lamps, raw):
    run, grey, truth = lamps
    np.save("raw.npy", raw(grey))
    np.savez("raw.npz", x_test=raw(grey), y_test=truth)
    code, out, err = cli("predict", str(run.path), "raw.npy", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["predictions"] == truth.tolist() == run.predict(raw(grey)).tolist()
    assert json.loads(cli("evaluate", str(run.path), "raw.npz", "--json")[1])["accuracy"] == 1.0
    assert run.predict(raw(grey).tolist()).tolist() == truth.tolist()


def test_one_image_alone_is_predicted(cli, lamps):
    run, grey, truth = lamps
    for one in (grey[0], grey[0][None], grey[0][..., None]):
        np.save("one.npy", one)
        assert json.loads(cli("predict", str(run.path), "one.npy", "--json")[1])["predictions"] == [truth[0]]
        assert run.predict(one).tolist() == [truth[0]]
    Image.fromarray(grey[0]).save("one.png")
    assert json.loads(cli("predict", str(run.path), "one.png", "--json")[1])["predictions"] == [truth[0]]
    assert run.predict(Image.open("one.png")).tolist() == [truth[0]]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (np.zeros((2, 8, 10, 3)), "(8, 10, 3); the model was trained on (1, 8, 10), and takes (8, 10, 1) or (8, 10)"),
        (np.zeros((2, 10, 8)), "samples have shape (10, 8)"),
        (np.linspace(0, 1, 80).reshape(1, 8, 10), "pixels from 0 to 255 and scales them itself; these go from 0 to 1,"),
        (np.linspace(-2, 2, 80).reshape(1, 8, 10), "from -2 to 2, as if they were scaled already"),
    ],
)
def test_images_that_are_none_of_the_model_s_are_refused(cli, lamps, raw, said):
    np.save("raw.npy", raw)
    code, out, err = cli("predict", str(lamps[0].path), "raw.npy")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


def test_a_dark_image_is_an_image(lamps):
    assert len(lamps[0].predict(np.zeros((1, 8, 10), np.float32))) == 1
    assert len(lamps[0].predict(np.eye(8, 10)[None])) == 1  # 0 and 1, in whole numbers


def test_where_labels_were_masked_at_sites_keys_give_the_names_back(cli, tmp_path):
    make(tmp_path / "keys", SITES)
    wish = SMALL | {"privacy.labels": "prf", "train.rounds": 1}
    transport = with_keys(tmp_path / "keys", wish)
    credentials = Credentials.load(tmp_path / "keys" / "server")
    run_at_sites(transport, Experiment.of(None, **wish), tmp_path / "run", 3, credentials=credentials)
    np.save("x.npy", next(iter(transport.hosts.values())).load().test.x[:4].numpy())
    code, out, err = cli("predict", "run", "x.npy", "--json")
    assert code == 0
    assert all(label.startswith("placeholder ") for label in json.loads(out)["predictions"])
    assert "--keys" in err
    _, out, err = cli("predict", "run", "x.npy", "--json", "--keys", f"keys/sites/{SITES[0]}")
    assert (sorted(json.loads(out)["classes"]), err) == (list(range(10)), "")
    code, _, err = cli("predict", "run", "x.npy", "--keys", "keys/server")
    assert (code, len(err.splitlines())) == (2, 1)
