"""An experiment: TOML in and out, overrides, recipes, parts as objects and by path."""

import re
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
from asking import PROX, asked, of

from fedstrata.cli.options import overrides
from fedstrata.config.experiment import Experiment
from fedstrata.config.tables import assignment, look_up, put
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.core.server_parts import Selector
from fedstrata.data.partitions.iid import Iid
from fedstrata.methods.combiners.size import SizeWeighted as BySize
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.recipes import PARTS as METHODS
from fedstrata.methods.recipes import Recipe
from fedstrata.methods.selectors.power_of_choice import PowerOfChoice
from fedstrata.methods.server_steps.adaptive import ServerAdam, ServerYogi
from fedstrata.models.mlp import Mlp
from fedstrata.runs.compare.settings import read_settings
from fedstrata.testing.tiny import run_rounds, session_of

SGD = {"kind": "sgd", "lr": 1.0, "momentum": 0.0}
YOGI = {"kind": "yogi", "lr": "auto", "beta1": 0.9, "beta2": 0.99, "tau": 0.001}


@dataclass(frozen=True)
class Newest(Selector):
    """The clients with the highest numbers train."""

    skip: Count = 1

    def select(self, state, view):
        return sorted(view.eligible.tolist())[: -self.skip][-view.k :]


class Loose(Selector):
    """Not a dataclass."""


LAST = Recipe("Newest clients.", "nobody", {"selector": {"kind": "newest", "skip": 2}, "combiner": {"kind": "uniform"}})
PLAIN = Recipe(
    "The same, by plain names.", "nobody", {"selector": "newest", "corrections": ["prox"], "combiner": "uniform"}
)


# ---- in and out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        *({"method.name": name} for name in METHODS),
        {"model.name": "lenet5", "model.padding": 1},
        {"model.hidden": [8, 8], "model.head": "head", "model.init": "a.safetensors"},
        {"data.partition": {"kind": "labels-per-client", "labels": 3}, "data.test": 0.5, "data.clients": 7},
        {"train.stop": {"target": 0.5, "patience": 3, "vote": 0.5}, "train.evaluate.every": 5},
        {"train.lr_schedule": {"kind": "one-cycle", "peak": 0.5}, "train.optimizer": {"kind": "adam", "beta1": 0.5}},
        {"train.clients_per_round": "all", "engine.workers": 2, "system.stragglers.rate": 0.1},
        {"train.lr": 1, "train.clients_per_round": 3},
    ],
    ids=str,
)
def test_a_resolved_experiment_reads_back_as_itself(overrides, tmp_path):
    first = Experiment.of(None, **overrides)
    (tmp_path / "experiment.toml").write_text(first.to_toml())
    for again in (
        Experiment.of(tmp_path / "experiment.toml"),
        Experiment.of(str(tmp_path / "experiment.toml")),
        Experiment.of(first.dump()),
        Experiment.of(first),
    ):
        assert again == first
        assert again.to_toml() == first.to_toml()


def test_a_file_is_read_with_defaults_written_out(tmp_path):
    (tmp_path / "e.toml").write_text(
        """
        [data]
        clients = 7
        partition = { kind = "dirichlet-class", alpha = 0.3 }
        [method]
        name = "fedprox"
        selector = { kind = "power-of-choice", candidates = 5 }
        server_step = { kind = "yogi", lr = 0.02 }
        [train]
        rounds = 3
        """
    )
    read = Experiment.of(tmp_path / "e.toml", **{"train.seed": 4})
    assert read.data.partition == {
        "kind": "dirichlet-class",
        "alpha": 0.3,
        "balance": True,
        "min_size": 10,
        "max_tries": 1000,
    }
    assert read.method.selector == {"kind": "power-of-choice", "candidates": 5, "loss": "all"}
    assert read.method.corrections == [PROX]
    assert (read.method.combiner, read.method.server_step) == ({"kind": "size"}, YOGI | {"lr": 0.02})
    assert (read.data.clients, read.train.rounds, read.train.seed, read.train.batch_size) == (7, 3, 4, 16)
    assert read.train.optimizer == {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.0, "state": "fresh"}
    assert read.train.lr_schedule == {"kind": "constant"}
    assert read.data.model_extra == {"test": 0.2}
    assert read.model.model_extra == {"hidden": (64,), "norm": "none"}


def test_the_default_is_the_one_of_the_contract():
    plain = Experiment.of()
    assert (plain.data.name, plain.data.clients, plain.data.partition["alpha"]) == ("digits", 20, 0.1)
    assert plain.method.model_dump() == {
        "name": "fedavg",
        "schedule": {"kind": "none"},
        "driver": {"kind": "rounds", "norms": "own"},
        "selector": {"kind": "random"},
        "sampler": {"kind": "shuffle", "batch": "fixed", "least": 8, "steps": None},
        "corrections": [],
        "combiner": {"kind": "size"},
        "server_step": SGD,
        "chosen": None,
    }


# ---- overrides ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.rounds=10", "train.rounds", 10),
        (" train.lr = 0.5 ", "train.lr", 0.5),
        ("data.name=digits", "data.name", "digits"),
        ('data.name="digits"', "data.name", "digits"),
        ("data.partition.balance=false", "data.partition.balance", False),
        ("model.hidden=[8, 4]", "model.hidden", [8, 4]),
        ("method.selector={kind='size'}", "method.selector", {"kind": "size"}),
        ("model.init=a=b.safetensors", "model.init", "a=b.safetensors"),
        ("method.selector=my.module:Newest", "method.selector", "my.module:Newest"),
        ("data.name=", "data.name", ""),
    ],
)
def test_an_assignment_is_toml_or_plain_text(text, key, value):
    assert assignment(text) == (key, value)


@pytest.mark.parametrize("text", ["train.rounds", "=10", " = 10", ""])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(RequestError, match=rf'--set "{text}" must look like train\.rounds=10'):
        assignment(text)


@pytest.mark.parametrize(
    ("table", "key", "value", "after"),
    [
        ({}, "a", 1, {"a": 1}),
        ({}, "a.b.c", 1, {"a": {"b": {"c": 1}}}),
        ({"a": {"b": 1, "d": 2}}, "a.b", 3, {"a": {"b": 3, "d": 2}}),
        ({"a": "sgd"}, "a.momentum", 0.9, {"a": {"kind": "sgd", "momentum": 0.9}}),
        ({"a": [{"mu": 1}, {"mu": 2}]}, "a.1.mu", 5, {"a": [{"mu": 1}, {"mu": 5}]}),
        ({"a": ["prox", "x"]}, "a.1", "y", {"a": ["prox", "y"]}),
        ({"a": ["prox"]}, "a.0.mu", 5, {"a": [{"kind": "prox", "mu": 5}]}),
    ],
)
def test_dotted_keys_reach_into_tables_and_lists(table, key, value, after):
    put(table, key, value)
    assert table == after


@pytest.mark.parametrize(
    ("table", "key"),
    [({"a": 3}, "a.b"), ({"a": {"b": 3}}, "a.b.c"), ({"a": [1]}, "a.7"), ({"a": [1]}, "a.mu"), ({"a": [{}]}, "a.7.b")],
)
def test_a_key_that_leads_nowhere_is_refused(table, key):
    with pytest.raises(RequestError, match=re.escape(key)):
        put(table, key, 1)


def test_overrides_win_over_the_source_and_later_ones_over_earlier():
    source = {"train": {"rounds": 3, "lr": 0.5}}
    got = Experiment.of(source, **{"train.rounds": 4, "train": {"rounds": 5}, "train.seed": 6})
    assert (got.train.rounds, got.train.seed, got.train.lr) == (5, 6, 0.5)


FILE = {
    "data": {"clients": 30, "test": 0.3, "partition": {"kind": "dirichlet-class", "alpha": 0.5, "min_size": 5}},
    "model": {"name": "lenet5", "padding": 2},
    "method": {"name": "fedprox", "selector": {"kind": "flips", "clusters": 7}, "combiner": "uniform"},
    "train": {"rounds": 6, "lr": 0.05, "stop": {"target": 0.9, "patience": 3}, "optimizer": {"kind": "sgd"}},
    "engine": {"kind": "local", "precision": "fp64", "vmap": "never"},
    "system": {"stragglers": {"rate": 0.1, "mode": "slowest"}},
}
LABEL_NOISE = [{"kind": "label-noise", "rate": 0.1}]


@pytest.mark.parametrize(
    ("change", "override", "key", "value"),
    [
        # a table without a kind changes the keys that it has
        ({}, {"train": {"lr": 0.2}}, "train", {"lr": 0.2, "rounds": 6}),
        ({}, {"train": {"stop": {"target": 0.5}}}, "train.stop", {"target": 0.5, "patience": 3}),
        ({}, {"train.stop": {"target": 0.5}}, "train.stop", {"target": 0.5, "patience": 3}),
        ({}, {"train.rounds": 2, "train": {"lr": 0.2}}, "train", {"lr": 0.2, "rounds": 2}),
        ({}, {"train": {"lr": 0.2}, "train.rounds": 2}, "train", {"lr": 0.2, "rounds": 2}),
        ({}, {"train": {"stop.target": 0.5}}, "train.stop", {"target": 0.5, "patience": 3}),
        ({}, {"data": {"clients": 10}}, "data.partition", {"alpha": 0.5, "min_size": 5}),
        ({}, {"data.partition": {"balance": False}}, "data.partition", {"alpha": 0.5, "balance": False}),
        ({}, {"system": {"stragglers": {"rate": 0.2}}}, "system.stragglers", {"rate": 0.2, "mode": "slowest"}),
        ({}, {"engine": {"vmap": "auto"}}, "engine", {"vmap": "auto", "precision": "fp64"}),
        # stages, and the options of a recipe
        ({}, {"method": {"sampler": {"least": 4}}}, "method", {"name": "fedprox"}),
        ({}, {"method": {"selector": "size"}}, "method.corrections.0", PROX),
        ({}, {"method": {"selector": {"clusters": 3}}}, "method.selector", {"kind": "flips", "clusters": 3}),
        ({}, {"method": {"corrections": {"0": {"mu": 0.5}}}}, "method.corrections.0", {"kind": "prox", "mu": 0.5}),
        ({}, {"method.corrections": {0: {"mu": 0.5}}}, "method.corrections.0", {"kind": "prox", "mu": 0.5}),
        ({"train.optimizer": "adam"}, {"train": {"optimizer": {"beta1": 0.5}}}, "train.optimizer", {"kind": "adam"}),
        ({}, {"method": {"name": "fedyogi"}}, "method.selector", {"kind": "flips", "clusters": 7}),
        ({}, {"method": {"name": "fedyogi", "server_step": {"lr": 0.5}}}, "method.server_step", YOGI | {"lr": 0.5}),
        # a table with a kind describes the whole part, but for what its recipe says of this kind
        ({}, {"data.partition": {"kind": "dirichlet-class"}}, "data.partition", {"alpha": 0.1, "min_size": 10}),
        ({}, {"data": {"partition": {"kind": "iid"}}}, "data", {"clients": 30, "partition": {"kind": "iid"}}),
        ({}, {"engine": {"kind": "local"}}, "engine", {"vmap": "auto", "precision": "fp32"}),
        ({}, {"method": {"selector": PowerOfChoice(candidates=4)}}, "method.selector", {"candidates": 4}),
        # another data set or model brings its own options
        ({}, {"model": {"name": "mlp", "hidden": [8]}}, "model", {"name": "mlp", "hidden": [8]}),
        ({}, {"model": {"name": "lenet5"}}, "model", {"name": "lenet5", "padding": 2}),
        ({}, {"data": {"name": "mnist"}}, "data", {"name": "mnist", "clients": 30}),
        ({}, {"data": {"name": "digits"}}, "data", {"clients": 30, "test": 0.3}),
        # empty tables change nothing, and turn on what was off
        ({}, {"train": {}}, "train", {"rounds": 6, "lr": 0.05}),
        ({}, {"method": {"selector": {}}}, "method.selector", {"kind": "flips", "clusters": 7}),
        ({}, {"privacy": {"dp": {}}}, "privacy.dp", {"clip": 1.0}),
        ({"privacy.dp": {"clip": 2.0}}, {"privacy.dp": {}}, "privacy.dp", {"clip": 2.0}),
        ({"data.drift": None}, {"data": {"drift": {"at": [2]}}}, "data.drift", {"at": [2]}),
        # null takes a value back, and leaves its neighbours
        ({}, {"train": {"stop": {"target": None}}}, "train.stop", {"patience": 3}),
        ({}, {"data.partition": None}, "data.partition", {"alpha": 0.1}),
        # lists are whole values; the short form of noise takes the place of one
        ({"model.name": "mlp", "model": {"hidden": [8, 8]}}, {"model": {"hidden": [4]}}, "model", {"hidden": [4]}),
        ({"data.noise": LABEL_NOISE}, {"data": {"noise": []}}, "data", {"noise": []}),
        ({"data.noise": LABEL_NOISE}, {"data.noise": {"features": 0.1}}, "data.noise.0", {"kind": "feature-noise"}),
        ({"data.noise": {"labels": 0.1}}, {"data.noise": {"features": 0.2}}, "data.noise.0", {"rate": 0.1}),
        ({"data.noise": {"labels": 0.1}}, {"data.noise": {"features": 0.2}}, "data.noise.1", {"sigma": 0.2}),
    ],
)
def test_a_table_put_over_a_file_leaves_what_it_does_not_name(change, override, key, value):
    source = deepcopy(FILE)
    if "model" in change:
        source["model"] = {}
    for name, changed in change.items():
        put(source, name, changed)
    found = look_up(Experiment.of(source, **override).dump(), key)
    assert {name: found.get(name) for name in value} == value


def test_an_experiment_takes_tables_as_a_file_does():
    whole = Experiment.of(FILE)
    got = Experiment.of(whole, train={"lr": 0.2}, method={"selector": "size"}, data={"clients": 10}).dump()
    expected = Experiment.of(whole, **{"train.lr": 0.2, "method.selector": "size", "data.clients": 10}).dump()
    assert got == expected
    assert "padding" not in Experiment.of(whole, model={"name": "mlp"}).dump()["model"]


def test_two_tables_of_the_command_line_count_together():
    assert overrides(["train={lr=0.2}", "train={rounds=2}"]) == {"train": {"lr": 0.2, "rounds": 2}}
    assert overrides(["train.lr=0.2", "train={rounds=2}", "train.lr=0.3"]) == {"train": {"rounds": 2}, "train.lr": 0.3}
    assert overrides(["train.optimizer=adam", "train.optimizer={beta1=0.5}"]) == {
        "train.optimizer": {"kind": "adam", "beta1": 0.5}
    }
    assert overrides(["a=5", "a={b=1}", "c=[1]", "c=[2]"]) == {"a": {"b": 1}, "c": [2]}


def test_rows_and_conditions_keep_what_they_do_not_set():
    conditions = read_settings(
        {"hard": {"data": {"partition": {"min_size": 5}}}, "dp": {"privacy.dp": {}}}, "condition"
    )
    hard, private = (Experiment.of(FILE, **condition.overrides).dump() for condition in conditions)
    assert (hard["data"]["partition"]["alpha"], hard["data"]["clients"]) == (0.5, 30)
    assert private["privacy"]["dp"]["clip"] == 1.0
    text = read_settings(["mixed: train={lr=0.2}, method.selector={clusters=3}"], "variant")[0]
    mixed = Experiment.of(FILE, **text.overrides)
    assert (mixed.train.rounds, mixed.method.name, mixed.method.selector["kind"]) == (6, "fedprox", "flips")


@pytest.mark.parametrize(
    ("source", "key", "value"),
    [
        ({"train": {"rounds": 3}}, "train.rounds", 4),
        ({"train": {"stop": {"target": 0.9}}}, "train.stop.target", 0.5),
        ({"method": {"corrections": [{"kind": "prox", "mu": 1.0}]}}, "method.corrections.0.mu", 0.5),
    ],
)
def test_the_source_is_left_as_it_was(source, key, value):
    before = deepcopy(source)
    Experiment.of(source, **{key: value})
    assert source == before


# ---- recipes and their parts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "stage", "result"),
    [
        ("method.name=fedprox", "corrections", [PROX]),
        ("method.name=fedprox method.corrections.0.mu=0.5", "corrections", [PROX | {"mu": 0.5}]),
        ("method.name=fedprox method.corrections.0=scaffold", "corrections", ["scaffold"]),
        ("method.name=fedprox method.corrections=[]", "corrections", []),
        ("method.corrections=['prox','scaffold']", "corrections", ["prox", "scaffold"]),
        ("method.corrections=prox,scaffold", "corrections", ["prox", "scaffold"]),
        ("method.corrections=prox method.corrections.0.mu=0.5", "corrections", [PROX | {"mu": 0.5}]),
        ("method.corrections=['prox'] method.corrections.0.mu=0.5", "corrections", [PROX | {"mu": 0.5}]),
        ("method.name=fedyogi", "server_step", YOGI),
        ("method.name=fedyogi method.server_step.lr=0.5", "server_step", YOGI | {"lr": 0.5}),
        ("method.name=fedyogi method.combiner=uniform", "combiner", {"kind": "uniform"}),
        ("method.name=fedyogi method.combiner=uniform", "server_step", YOGI),
        ("method.name=fedyogi method.server_step=sgd", "server_step", SGD),
        ("method.combiner=uniform method.server_step=yogi", "combiner", {"kind": "uniform"}),
        ("method.server_step={kind='yogi'}", "server_step", YOGI),
        ("method.name=fedsgd", "selector", {"kind": "everyone"}),
        ("method.name=fedsgd method.selector=size", "selector", {"kind": "size"}),
        ("method.selector.kind=size", "selector", {"kind": "size"}),
        ("method.name=power-of-choice method.selector.candidates=9", "selector", {"candidates": 9}),
        ("method.name=sfl", "driver", {"kind": "chain"}),
        ("method.driver=chain", "driver", {"kind": "chain"}),
    ],
)
def test_stages_override_the_parts_of_a_recipe(words, stage, result):
    got = getattr(asked(words).method, stage)
    if stage == "corrections":
        assert len(got) == len(result)
        assert all(g["kind"] == r if isinstance(r, str) else g == r for g, r in zip(got, result, strict=True))
    else:
        assert {key: got[key] for key in result} == result


def test_other_stages_keep_the_recipe_s_parts():
    got = asked("method.name=scaffold method.selector=size").method
    assert [c["kind"] for c in got.corrections] == ["scaffold"]
    assert (got.combiner["kind"], got.selector["kind"], got.sampler["kind"]) == ("uniform", "size", "shuffle")


def test_optimizer_partition_and_schedule_merge_with_their_defaults():
    got = asked("train.optimizer.momentum=0.9 data.partition.alpha=0.5 train.lr_schedule=cosine")
    assert got.train.optimizer == {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.0, "state": "fresh"}
    assert (got.data.partition["kind"], got.data.partition["alpha"]) == ("dirichlet-class", 0.5)
    assert got.train.lr_schedule == {"kind": "cosine", "floor": 0.0, "warmup": 0}
    assert asked("data.partition=iid").data.partition == {"kind": "iid"}


def test_another_method_on_a_resolved_experiment_brings_its_own_parts():
    assert Experiment.of(Experiment.of(), **{"method.name": "fedprox"}).method.corrections == [PROX]


# ---- parts as objects, by path, from other packages --------------------------------------------------------------


def test_objects_stand_for_their_tables():
    got = Experiment.of(
        {
            "method": {"selector": PowerOfChoice(candidates=4), "corrections": [Prox(mu=0.5)]},
            "data": {"partition": Iid()},
        },
        **{"method.server_step": ServerYogi()},
    )
    assert got.method.selector == {"kind": "power-of-choice", "candidates": 4, "loss": "all"}
    assert got.method.corrections == [PROX | {"mu": 0.5}]
    assert got.method.server_step == YOGI
    assert got.data.partition == {"kind": "iid"}


@pytest.mark.parametrize("part", [Newest(skip=3), {"kind": f"{__name__}:Newest", "skip": 3}], ids=["object", "path"])
def test_any_importable_class_is_a_part(part):
    got = of(method__selector=part)
    assert got.method.selector == {"kind": f"{__name__}:Newest", "skip": 3}
    assert Experiment.of(got.dump()) == got


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("method.selector", BySize()),  # there is a selector of the same name
        ("method.selector", Mlp()),
        ("train.optimizer", ServerAdam()),
        ("method.server_step", Newest()),
        ("method.corrections", [Newest()]),
    ],
)
def test_a_part_of_another_stage_is_refused(key, part):
    with pytest.raises(RequestError, match=re.escape(key)):
        Experiment.of(None, **{key: part})


@pytest.fixture
def third_party(monkeypatch):
    """Install a package that brings a selector and a recipe."""
    entries = [
        EntryPoint("selectors.newest", f"{__name__}:Newest", "fedstrata.parts"),
        EntryPoint("selectors.broken", "no_such_package:Gone", "fedstrata.parts"),
        EntryPoint("selectors.loose", f"{__name__}:Loose", "fedstrata.parts"),
        EntryPoint("methods.last", f"{__name__}:LAST", "fedstrata.parts"),
        EntryPoint("methods.plain", f"{__name__}:PLAIN", "fedstrata.parts"),
        EntryPoint("selectors.elsewhere", f"{__name__}:Newest", "another.group"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [e for e in entries if e.group == group])
    registry.forget_parts()
    yield
    registry.forget_parts()


@pytest.mark.usefixtures("third_party")
def test_entry_points_add_parts_and_methods():
    assert of(method__selector="newest").method.selector == {"kind": "newest", "skip": 1}
    assert of(method__selector=Newest(skip=2)).method.selector == {"kind": "newest", "skip": 2}
    last = of(method__name="last")
    assert last.method.selector == {"kind": "newest", "skip": 2}
    assert (last.method.combiner, last.method.server_step) == ({"kind": "uniform"}, SGD)
    assert registry.describe("selectors", "newest")["summary"] == "The clients with the highest numbers train."
    assert "random" in registry.names("selectors")
    assert "elsewhere" not in registry.names("selectors")


@pytest.mark.usefixtures("third_party")
def test_a_recipe_may_name_its_parts_plainly_as_a_file_may():
    got = of(method__name="plain").method
    assert got.selector == {"kind": "newest", "skip": 1}
    assert got.corrections == [PROX]
    assert (got.combiner, got.server_step) == ({"kind": "uniform"}, SGD)


@pytest.mark.usefixtures("third_party")
def test_a_part_from_another_package_trains():
    state, _ = run_rounds(
        session_of({"method.selector": {"kind": "newest", "skip": 2}, "train.clients_per_round": 2}), rounds=2
    )
    assert state.participation.tolist() == [0, 0, 2, 2, 0, 0]


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("newst", 'did you mean "newest".*allowed:.*newest'),
        ("broken", "no_such_package"),
        ("loose", "Selector expected, as a frozen dataclass"),
    ],
)
def test_a_part_from_another_package_that_does_not_fit_is_refused(kind, said):
    with pytest.raises(RequestError, match=rf"method\.selector\.kind = .*{said}"):
        of(method__selector=kind)


@pytest.mark.parametrize("key", ["source", "cls"])
def test_an_override_may_be_named_as_anything_and_is_refused_as_unknown(key):
    with pytest.raises(RequestError, match=f"{key} is not an option"):
        Experiment.of(None, **{key: 1})


def test_options_of_a_method_s_own_part_go_with_it():
    file = {"method": {"name": "flips", "selector": {"clusters": 5}}}
    assert Experiment.of(file).method.selector["clusters"] == 5
    assert Experiment.of(file, **{"method.name": "flips"}).method.selector["clusters"] == 5
    assert Experiment.of(file, **{"method.name": "fedavg"}).method.selector == {"kind": "random"}
    with pytest.raises(RequestError, match=r"method\.selector\.clusters is not an option"):
        Experiment.of(file, **{"method.name": "fedavg", "method.selector.clusters": 5})
    named = {"method": {"name": "flips", "selector": {"kind": "power-of-choice", "candidates": 12}}}
    assert Experiment.of(named, **{"method.name": "fedavg"}).method.selector["candidates"] == 12, "it was asked for"
    same = {"method": {"name": "fedadam", "server_step": {"lr": 0.5}}}
    assert Experiment.of(same, **{"method.name": "fedyogi"}).method.server_step["kind"] == "yogi"
