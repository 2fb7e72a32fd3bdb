"""Own data on the command line: what runs, and what is refused with one line and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedstrata
from fedstrata.remote.site.source import source

RUN = ["run", "--set", "data.name=own", "--set", "data.path=own.csv", "--set", "data.clients=3", "--out", "out"]
RUN += ["--set", "data.partition=iid", "--set", "train.rounds=1", "--set", "train.clients_per_round=all"]


def table(target: str = "{0}") -> None:
    rows = [
        f"{i % 7},{'xyz'[i % 3]},p{i},{'' if i == 9 else i % 5},{target.format(i % 2, i + 0.5, i)}" for i in range(120)
    ]
    Path("own.csv").write_text("\n".join(["a,zone,name,b,label", *rows]) + "\n")


def settings(**options: str) -> list[str]:
    return [word for key, value in options.items() for word in ("--set", f"data.{key}={value}")]


def test_a_table_as_people_have_it_runs(cli):
    table()
    code, _, error = cli(*RUN, *settings(drop='["name"]', fill="median"))
    assert code == 0, error
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["bytes_setup"] > 0
    assert "which values of column zone each client has" in " ".join(summary["privacy"]["server"])


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("{0}", {"fill": "median"}, 'data.drop = ["name"]'),
        ("{0}", {"drop": '["name"]'}, "1 values are missing, in column b"),
        ("{0}", {"drop": '["nam"]', "fill": "0"}, 'data.drop = "nam" is not a column'),
        ("{0}", {"drop": '["name"]', "fill": "mean"}, "data.fill"),
        ("{0}", {"drop": '["name"]', "fill": "0", "scale": "pooled"}, "data.scale"),
        ("{0}", {"drop": '["name"]', "fill": "0", "test_path": "none.csv"}, "data.test_path"),
        ("{1}", {"drop": '["name"]', "fill": "0"}, "0.5 is a quantity"),
        ("{2}", {"drop": '["name"]', "fill": "0"}, "120 different numbers for 120 samples"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(cli, target, options, said):
    table(target)
    code, out, error = cli(*RUN, *settings(**options))
    assert code == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not out
    assert not Path("out").exists()


def test_labels_that_are_all_one_are_refused_in_a_run_and_may_be_what_a_site_has(cli):
    Path("own.csv").write_text("\n".join(["a,b,label", *["1,2,y", "3,4,y"] * 9]) + "\n")
    code, _, error = cli(*RUN)
    assert (code, error) == (2, "error: own.csv: all labels are y; at least 2 classes are needed\n")
    assert not Path("out").exists()
    assert source({"name": "own", "path": "own.csv"}, 0).classes == ("y",)


def test_an_import_settles_what_becomes_of_the_columns(cli):
    table()
    code, _, error = cli(
        "data", "import", "mine", "own.csv", "--drop", "name", "--fill", "2.5", "--scale", "per-client"
    )
    assert code == 0, error
    Path("own.csv").unlink()
    code, _, error = cli(*RUN, *settings(path="mine"))
    assert code == 0, error
    assert json.loads(Path("out/summary.json").read_text())["bytes_setup"] == len("xyz") * 3
    code, _, error = cli(*RUN, *settings(path="mine", scale="none"))
    assert code == 2
    assert "data.scale" in error


# ---- what is said of rows, columns and images ------------------------------------------------------------------------


def test_rows_of_a_file_are_told_by_its_lines(cli):
    """Also behind lines without anything, and behind values that go over several lines."""
    rows = ['1,"two\nlines",y', "", "2,u,n"] * 6
    Path("own.csv").write_text("\n".join(["a,b,label", *rows, "3,u,", "4,u,y"]) + "\n")
    _, _, error = cli(*RUN)
    lines = Path("own.csv").read_text().split("\n")
    assert error.strip() == f"error: own.csv: 1 labels are missing, the first at line {lines.index('3,u,') + 1}; " + (
        "drop those rows"
    )
    Path("own.csv").write_text("\n".join(["a,b,label", *["1,2,y", "3,4,n"] * 9]) + "\n")
    assert cli(*RUN)[0] == 0
    Path("new.csv").write_text("b,a\n1,2\n\n1,\n")
    assert cli("predict", "out", "new.csv")[2] == (
        "error: new.csv: column a: 1 values are missing, the first at line 4\n"
    )
    Path("new.csv").write_text("b,a\n1,2\n\n1\n")
    assert "new.csv cannot be read: line 4 has 1 fields instead of 2" in cli("predict", "out", "new.csv")[2]


def test_a_column_that_is_filled_in_all_rows_is_told(cli):
    Path("own.csv").write_text("\n".join(["age,ward,label", *["1,w,y", "3,v,n"] * 20]) + "\n")
    assert cli(*RUN, *settings(fill="2.5"))[0] == 0
    Path("new.csv").write_text("age,ward,label\n,,y\nNA,,n\n")
    notes = [
        "note: column age is empty in all rows; 2.5 stands in for it",
        "note: column ward is empty in all rows; all of its features are 0",
    ]
    for command in ("predict", "evaluate"):
        code, out, error = cli(command, "out", "new.csv")
        assert (code, error.splitlines()) == (0, notes)
        assert "note" not in out
    for ask in (fedstrata.Run("out").predict, fedstrata.Run("out").predict_proba):
        with pytest.warns(UserWarning, match="empty in all rows") as warned:
            ask("new.csv")
        assert [f"note: {each.message}" for each in warned] == notes
        assert {each.filename for each in warned} == {__file__}
    Path("new.csv").write_text("age,ward\n,w\n1,\n")
    assert cli("predict", "out", "new.csv")[2] == ""
    assert len(fedstrata.Run("out").predict("new.csv")) == 2


def test_a_misspelt_column_is_recognised(cli):
    Path("own.csv").write_text("\n".join(["a,hospital,label", *["1,x,y", "3,z,n"] * 20]) + "\n")
    _, _, error = cli(*RUN[:-6], "--set", "data.client=hopital")
    assert (
        'data.client = "hopital" is not a column of own.csv (did you mean "hospital"?); its columns: a, hosp' in error
    )


def test_a_column_that_only_numbers_the_rows_is_told(cli):
    head = "patient_id,PatientID,age,width,ward_id,label"
    rows = [f"{1000 - i},{i},{i % 9},{i * 1.5},{i % 3},{'yn'[i % 2]}" for i in range(60)]
    Path("own.csv").write_text("\n".join([head, *rows]) + "\n")
    _, _, error = cli(*RUN)
    assert 'data.drop = ["patient_id", "PatientID"]' in error
    _, _, error = cli(*RUN[:-6], "--out", "dropped", *settings(drop='["patient_id", "PatientID"]'), *RUN[-6:])
    assert "data.drop" not in error


def test_images_of_any_size_are_predicted_and_that_is_said(cli):
    draws = np.random.default_rng(0)

    def write(path: str, width: int, height: int) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)

    for i in range(24):
        write(f"own.csv/{'ab'[i % 2]}/{i}.png", 24, 20)
    assert cli(*RUN, "--set", "model.name=lenet5")[0] == 0
    write("new/fits.png", 24, 20)
    write("new/large.png", 32, 32)
    write("new/tall.png", 20, 24)
    code, out, error = cli("predict", "out", "new")
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()] == ["input", "fits.png", "large.png", "tall.png"]
    assert error == (
        "note: new: 2 of 3 images were scaled to 24 x 20 pixels, which the model takes; the first, large.png, has "
        "32 x 32\n"
    )
    assert cli("predict", "out", "new/fits.png")[2] == ""
    np.save("new.npy", np.zeros((2, 3, 32, 32), np.uint8))
    assert cli("predict", "out", "new.npy")[2].startswith("error: new.npy: samples have shape (3, 32, 32); the model")
