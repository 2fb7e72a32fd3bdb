"""Own data on the command line: what runs, and what is refused with one line and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
