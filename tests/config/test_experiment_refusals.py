"""What an experiment refuses, with the key, the value and what is allowed."""

import sys
from dataclasses import dataclass

import pytest
from asking import PROX

from fedstrata.config.experiment import Experiment
from fedstrata.core import origin
from fedstrata.core.errors import RequestError
from fedstrata.core.server_parts import Selector
from fedstrata.methods.recipes import Recipe

LAST = Recipe("A method, which is no part.", "nobody", {})


class Loose(Selector):
    """Not a dataclass."""


@dataclass
class Melted(Selector):
    """Not frozen."""

    def select(self, state, view):
        return [0]


@dataclass(frozen=True)
class Empty(Selector):
    """Chooses nobody."""


@dataclass(frozen=True)
class Selects(Selector):
    """Has the hook under another name."""

    def selects(self, state, view):
        return [0]


@dataclass(frozen=True)
class Stateless(Selector):
    """Takes no state."""

    def select(self, view):
        return [0]


@dataclass(frozen=True)
class AnyArguments(Selector):
    """Takes whatever comes."""

    def select(self, *given):
        return [0]


def refused(said, source=None, **overrides):
    """Check that a request is refused and that the message contains every one of the given texts."""
    with pytest.raises(RequestError) as caught:
        Experiment.of(source, **overrides)
    missing = [text for text in said if text not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("trian", "train"),
        ("data.clientz", "clients"),
        ("data.tset", "test"),
        ("data.partition.alhpa", "alpha"),
        ("model.hiden", "hidden"),
        ("method.selct", "selector"),
        ("method.combiner.servr", None),
        ("method.server_step.lrr", "lr"),
        ("train.rouns", "rounds"),
        ("train.stop.targett", "target"),
        ("train.evaluate.evry", "every"),
        ("train.optimizer.momentun", "momentum"),
        ("train.lr_schedule.by", None),
        ("system.straglers", "stragglers"),
        ("system.stragglers.rat", "rate"),
        ("privacy.label", "labels"),
        ("engine.worker", "workers"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key, meant):
    refused([key, *([f'did you mean "{meant}"', "allowed: "] if meant else ["not an option"])], **{key: 1})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("rounds", "train.rounds"),
        ("round", "train.rounds"),
        ("batchsize", "train.batch_size"),
        ("seed", "train.seed"),
        ("lr", "train.lr"),
        ("clients", "data.clients"),
        ("alpha", "data.partition.alpha"),
        ("selector", "method.selector"),
        ("target", "train.stop.target"),
        ("momentum", "method.server_step.momentum or train.optimizer.momentum"),
    ],
)
def test_a_key_without_its_table_is_told_in_full(name, key):
    refused([f"{name} is not an option (did you mean {key}?); tables: data, "], **{name: 3})
    refused([f"did you mean {key}?"], {name: 3})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train.selector", "method.selector"),
        ("train.momentum", "method.server_step.momentum or train.optimizer.momentum"),
        ("method.lr", "train.lr"),
        ("method.rounds", "train.rounds"),
    ],
)
def test_a_key_in_the_wrong_table_is_told_with_its_own(key, meant):
    refused([f"{key} is not an option (did you mean {meant}?); allowed: "], **{key: 3})


def test_a_key_of_the_wrong_table_that_begins_like_one_there_is_told_with_that():
    refused(['train.clients is not an option (did you mean "clients_per_round"?)'], **{"train.clients": 3})


@pytest.mark.parametrize("partition", [{}, {"data.partition": "dirichlet-client"}])
def test_an_option_of_the_partition_is_told_in_full(partition):
    refused(["data.alpha is not an option", "; did you mean data.partition.alpha?"], **partition, **{"data.alpha": 1})


def test_an_option_that_this_partition_does_not_have_is_only_refused():
    with pytest.raises(RequestError, match=r"data\.alpha is not an option; allowed: [\w, ]+$"):
        Experiment.of(**{"data.partition": "iid", "data.alpha": 1})


def test_an_option_of_another_engine_is_refused_with_the_engine_that_has_it():
    refused(["engine.replicas", 'engine.kind = "ray"', "--set 'engine="], **{"engine.replicas": 2})


@pytest.mark.parametrize(("section", "key"), [("data", "clientz"), ("model", "hiden")])
def test_an_unknown_key_beside_given_data_or_model_is_refused(section, key):
    refused([f"{section}.{key}"], {section: {"name": "given", key: 3}})


def test_an_unknown_key_of_a_correction_is_refused():
    refused(
        ["method.corrections.0.muu", 'did you mean "mu"'], **{"method.name": "fedprox", "method.corrections.0.muu": 1}
    )
    refused(
        ["method.corrections.1.muu", 'did you mean "mu"'], {"method": {"corrections": ["scaffold", PROX | {"muu": 1}]}}
    )


@pytest.mark.parametrize(
    ("key", "name", "meant"),
    [
        ("method.name", "fedporx", "fedprox"),
        ("method.name", "zzzzzz", None),
        ("data.name", "digit", "digits"),
        ("model.name", "lenet", "lenet5"),
        ("engine.kind", "locl", "local"),
        ("method.selector", "randm", "random"),
        ("method.sampler", "shufle", "shuffle"),
        ("method.driver", "round", "rounds"),
        ("method.combiner", "sise", "size"),
        ("method.server_step", "yogy", "yogi"),
        ("method.corrections", ["proxy"], "prox"),
        ("train.optimizer", "sdg", "sgd"),
        ("train.lr_schedule", "cosin", "cosine"),
        ("data.partition", "dirichlet", "dirichlet-class"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(key, name, meant):
    written = name[0] if isinstance(name, list) else name
    refused([key, f'"{written}"', "allowed: ", *([f'did you mean "{meant}"'] if meant else [])], **{key: name})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("train.rounds", "ten", "a whole number"),
        ("train.rounds", 2.5, "a whole number"),
        ("train.rounds", True, "a whole number"),
        ("train.rounds", 0, ">= 1"),
        ("train.rounds", [3], "a whole number"),
        ("train.lr", "0.1", "a number"),
        ("train.lr", 0, "> 0"),
        ("train.lr", -1.5, "> 0"),
        ("train.lr", float("nan"), "a finite number"),
        ("train.lr", float("inf"), "a finite number"),
        ("train.seed", -1, ">= 0"),
        ("train.clients_per_round", 0, '"all"'),
        ("train.clients_per_round", 0.0, '"all"'),
        ("train.clients_per_round", 1.5, '"all"'),
        ("train.clients_per_round", -3, '"all"'),
        ("train.clients_per_round", "half", '"all"'),
        ("train.clients_per_round", True, '"all"'),
        ("train.stop.target", 80, "<= 1"),
        ("train.stop.patience", 0, ">= 1"),
        ("train.optimizer.momentum", 1.0, "< 1"),
        ("train.optimizer", 5, "a table"),
        ("data.clients", 0, ">= 1"),
        ("data.clients", "many", "a whole number"),
        ("data.name", 3, "text"),
        ("data.test", 1.0, "< 1"),
        ("data.partition.alpha", 0, "> 0"),
        ("data.partition.alpha", -0.1, "> 0"),
        ("data.partition.alpha", "small", "a number"),
        ("data.partition.balance", "yes", "true or false"),
        ("data.partition.min_size", -1, ">= 0"),
        ("data.partition", 5, "a table"),
        ("model.hidden", "wide", "a list"),
        ("model.hidden", 64, "a list, such as [64]"),
        ("train.targets", 0.5, "a list, such as [0.5]"),
        ("method.name", 3, "text"),
        ("method.corrections", 3, 'a list, such as [{ kind = "prox" }]'),
        ("data.noise", 0.3, "{ labels = 0.3 }"),
        ("method.server_step", 5, "a table"),
        ("method.server_step.lr", 0, "> 0"),
        ("system.stragglers.rate", 1.1, "<= 1"),
        ("system.stragglers.mode", "never", '"uniform"'),
        ("engine.workers", 0, '"auto"'),
        ("engine.workers", "many", '"auto"'),
        ("engine.precision", "fp12", '"fp32", "tf32", "bf16" or "fp64"'),
        ("engine.device", "tpu", '"cpu"'),
        ("privacy.enclave.minimum_tcb", [1], "a list of 4"),
    ],
)
def test_a_wrong_value_is_refused_with_the_key_the_value_and_what_is_allowed(key, value, allowed):
    written = {True: "true", "nan": "NaN", "inf": "Infinity"}.get(value if value is True else str(value))
    if written is None:
        written = f'"{value}"' if isinstance(value, str) else str(value)
    refused([f"{key} = {written} ", "allowed: ", allowed], **{key: value})


@pytest.mark.parametrize("table", ["train", "train.stop", "method", "data", "system.stragglers"])
@pytest.mark.parametrize("value", [3, "x", None, [1]])
def test_a_value_where_a_table_belongs_is_refused(table, value):
    refused([table, "must be a table"], **{table: value})


def test_a_name_where_its_table_belongs_is_understood():
    refused(['data = "digits" must be a table; did you mean data.name?'], data="digits")
    refused(['engine = "ray" must be a table; did you mean engine.kind?'], engine="ray")


@pytest.mark.parametrize("source", ["fedavg", "fedavg,scaffold", ["fedavg", "scaffold"]])
def test_methods_are_no_experiment(source):
    with pytest.raises(RequestError, match=r"a method goes into method\.name \(--set .* into methods \(--methods fed"):
        Experiment.of(source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"method": {"corrections": [5]}}, ["method.corrections", "5", "a table"]),
        ({"method": {"corrections": {"kind": "prox"}}}, ["method.corrections", "a list"]),
        ({"method": {"name": "fedprox", "corrections": {"0": 5}}}, ["method.corrections.0", "5"]),
        (
            {"method": {"name": "fedprox", "corrections": {"1": {"mu": 1}}}},
            ["method.corrections.1", "it has one place, 0"],
        ),
        (
            {"method": {"name": "fedavg", "corrections": {"0": {"mu": 1}}}},
            ["method.corrections.0: there is no such place", "the list is empty"],
        ),
        ({"method": {"corrections": [{"mu": 1}]}}, ["method.corrections.0.kind is required", "prox"]),
        ({"method": {"selector": {"kind": "random", "server": {}}}}, ["method.selector.server is not an option"]),
        ({"model": {"hidden": [8, 0]}}, ["model.hidden.1 = 0", ">= 1"]),
        ({"train": {"stop": {"vote": 0.5}}}, ["train.stop.vote", "target"]),  # satisfied at what?
    ],
)
def test_tables_that_make_no_sense_are_refused(source, said):
    refused(said, source)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module:Part", "No module named 'no_such_module'"),
        (f"{__name__}:Absent", "Absent"),
        ("test_experiment:Loose", "Selector expected, as a frozen dataclass"),
        ("test_experiment:LAST", "Selector expected"),
        ("fedstrata.methods.corrections.prox:Prox", "Selector expected"),
        (":Newest", ":Newest"),
        (".relative:Newest", ".relative:Newest"),
        (f"{__name__}:", __name__),
        (f"{__name__}:Melted", "Melted must be frozen; write @dataclass(frozen=True) above it"),
        (f"{__name__}:Empty", "Empty has no `select`; write: def select(self, state, view)"),
        (f"{__name__}:Selects", "Selects has no `select`, which is not spelt `selects`; write: def select(self, state"),
        (
            f"{__name__}:Stateless",
            "`select` takes (self, view), and is called with (self, state, view); write: def",
        ),
    ],
)
def test_a_path_that_leads_to_no_part_is_refused(path, said):
    refused(["method.selector", said], **{"method.selector": path})


def test_a_hook_may_take_more_than_it_is_given():
    assert Experiment.of(None, **{"method.selector": f"{__name__}:AnyArguments"}).method.selector["kind"]


@pytest.mark.parametrize(
    "file", ["./good.py", "good.py", "own/good.py", "/home/me/good.py", "C:\\own\\good.py", "./good"]
)
def test_a_part_that_is_named_by_its_file_is_told_its_module(file):
    refused(['write "good:Biggest"', "not its file", "PYTHONPATH"], **{"method.selector": f"{file}:Biggest"})


def test_a_module_that_is_not_found_is_told_where_it_would_be(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(origin, "_own_folder", [])
    refused(["No module named 'good'", "sys.path", "PYTHONPATH"], **{"method.selector": "good:Biggest"})
    origin.find_own_parts_in(tmp_path)
    refused([f"in {tmp_path}, where the command was called"], **{"method.selector": "good:Biggest"})
    (tmp_path / "wanting.py").write_text("import not_here")
    with pytest.raises(RequestError, match=r"No module named 'not_here'\Z"):
        Experiment.of(None, **{"method.selector": "wanting:Biggest"})
    with origin.from_elsewhere(["good:Biggest"]), pytest.raises(RequestError) as caught:
        Experiment.of(None, **{"method.selector": "good:Biggest"})
    assert str(tmp_path) not in str(caught.value)  # a server learns no folder of a site


@pytest.mark.parametrize(
    ("text", "line"),
    [("[train]\nrounds = \n", 2), ("[data]\n\nclients = 3 4\n", 3), ("[train\n", 1), ("a = 1\na = 2", 2)],
)
def test_a_toml_syntax_error_names_the_file_and_the_line(text, line, tmp_path):
    (tmp_path / "bad.toml").write_text(text)
    refused([str(tmp_path / "bad.toml"), "not valid TOML", f"line {line}"], tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "[" * 100_000 + "]" * 100_000, "deep"),
        ("[" + ".".join("a" * 100) + "]", "deep"),
        ("x = " + "9" * 5_000, "64 bits|digits"),
        ("x = 9223372036854775808", "64 bits"),
        ("#" * ((16 << 20) + 1), "more than 16,777,216 characters"),
    ],
    ids=["lists", "tables", "digits", "a bit too large", "long"],
)
def test_toml_that_no_table_of_ours_can_be_is_refused_in_words(text, said, tmp_path):
    (tmp_path / "bomb.toml").write_text(text)
    with pytest.raises(RequestError, match=rf"bomb\.toml is not valid TOML: .*({said})"):
        Experiment.of(tmp_path / "bomb.toml")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    refused([f"{tmp_path}/none.toml cannot be read: there is no such file"], tmp_path / "none.toml")
    refused([str(tmp_path), "cannot be read: it is a folder; name an experiment file"], tmp_path)
    (tmp_path / "pyproject.toml").touch()  # of a project in which somebody works: no experiment
    with pytest.raises(RequestError, match=r"name an experiment file$"):
        Experiment.of(tmp_path)
    (tmp_path / "fedavg" / "seed0").mkdir(parents=True)
    (tmp_path / "fedavg" / "seed0" / "experiment.toml").write_text("")
    refused([f"name an experiment file, such as {tmp_path}/fedavg/seed0/experiment.toml"], tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    refused(["binary.toml", "cannot be read"], tmp_path / "binary.toml")


def test_an_experiment_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        Experiment.of().train.rounds = 3


def test_what_a_method_suggests_counts_where_the_user_set_nothing():
    def training(source, **asked):
        train = Experiment.of(source, **{key.replace("__", "."): value for key, value in asked.items()}).train
        return train.lr, train.batch_size, train.optimizer["momentum"]

    plain, single = Experiment.of(None), Experiment.of(None, **{"method.name": "stratify-single"})
    for source in (None, plain, single, single.dump()):  # a file that was written out is read like none
        assert training(source, method__name="stratify-batch") == (0.05, 64, 0.9)
        assert training(source, method__name="fedavg") == (0.1, 16, 0.0)
    assert training(None, method__name="stratify-batch", train__lr=0.3) == (0.3, 64, 0.9)
    assert training(None, method__name="stratify-batch", train__optimizer__weight_decay=1e-3) == (0.05, 64, 0.9)


def test_an_option_of_another_data_set_says_whose_it_is():
    with pytest.raises(RequestError, match=r'data.path is not an option.*; data.name = "hf" or "own" has it$'):
        Experiment.of({"data": {"path": "mine.csv"}})
