"""What everybody could learn from a run, in plain words, from how the run is set up. It stands in every summary.

It claims no more than the protocols give: what a trained model tells about its data is always among it.
"""

from __future__ import annotations

from typing import Any

from fedstrata.config.experiment import Experiment
from fedstrata.core.plan import Plan
from fedstrata.data.scaling import FeaturesTold
from fedstrata.methods.schedules.lots import Lots
from fedstrata.privacy.features import describe
from fedstrata.privacy.setup import hides_figures, hides_label_counts

NAMED_BY_MODEL = (
    "Placeholders hide labels only from who has no labelled examples: whoever holds a trained model and one public "
    "example of each class can name every placeholder by looking at the predictions, and whoever knows how common the "
    "classes are can guess."
)
SIMULATED = (
    "This was a simulation: all parties lived on one machine and drew their secrets from the run's seed. The "
    "statement says what they would learn at sites of their own."
)
AT_SITES = (
    "Every site drew its secrets on its own machine. It did what this experiment says, as the server sent it: a server "
    "that sends another one is told what that one says."
)
OWN_LEDGER = (
    "Every site counts on its own disk what it gave, before it leaves: one report for each step, whatever crashed, and "
    "none beyond the budget. It claims nothing for rounds in which others were drawn, because it knows its own."
)
KIND_OF_DATA = (
    "Of every site's data it is told the kind: the shape of samples, or the names of columns and whether they hold "
    "numbers or text; and how many samples there are."
)
LOTS = (
    "Clients draw lots for how many samples of each batch they give: it does not see who gave how many. How long a "
    "client takes to answer may tell something of it."
)
LOTS_IN_THE_OPEN = (
    'Clients draw lots for how many samples of each batch they give; with privacy.aggregate = "open" their gradients '
    "show how many."
)
TOLD_AGAIN = (
    "Data change from round to round: in every round it is told anew who holds which placeholder, and the totals. "
    "Where few clients' data changed, the difference of two totals is what they got or lost."
)
TOLD = {
    "sizes": "how many samples each client holds",
    "speeds": "how fast each client's device is",
    "labels": "which {labels} each client holds",
    "totals": "how many samples of each {label} there are in all; of one that a single client holds, that is its count",
    "counts": "how many samples of each {label} every client holds",
}


def statement(
    experiment: Experiment,
    plan: Plan,
    told: frozenset[str],
    clusters: str | None = None,
    guarantee: str | None = None,
    epsilon: float | None = None,
    simulated: bool = True,
    moving: bool = False,
    features: FeaturesTold | None = None,
    weak: str | None = None,
) -> dict[str, Any]:
    """Say who could learn what; `told` is what the server knows of clients, `guarantee` what epsilon means.

    `moving`: what clients hold changes from round to round. `features`: what clients told of theirs.
    `weak`: why the guarantee means little.
    """
    said: dict[str, Any] = {
        "server": _server(experiment, plan, told, clusters, simulated),
        "other clients": _others(experiment, plan),
        "server with a client": _colluding(experiment),
    }
    if features is not None:
        masked, noised = experiment.privacy.aggregate == "masked", experiment.privacy.dp is not None
        for who, learns in describe(features, masked, noised).items():
            said[who] += learns
    if plan.driver.chained:
        said["next client of a chain"] = [
            "The model as the client before it left it. Where a client trains on one or few samples, the difference to "
            "the model before shows much of them to whoever has both."
        ]
    if guarantee is not None:
        said["differential privacy"] = [
            guarantee,
            "Losses, lengths of updates and what samplers tell in reports are not covered by it.",
        ]
        if experiment.privacy.dp is not None and experiment.privacy.dp.where == "local":
            said["differential privacy"] = [
                guarantee,
                "Beside, reports tell how many samples and steps they are of.",
            ]
        if weak is not None:
            said["differential privacy"].insert(1, f"{weak}.")
        if not simulated:
            said["differential privacy"].append(OWN_LEDGER)
        said["epsilon"] = epsilon
    if moving and experiment.privacy.labels != "none":
        said["server"].append(TOLD_AGAIN)
    said["note"] = SIMULATED if simulated else AT_SITES
    if not simulated:
        said["server"].append(KIND_OF_DATA)
    if not simulated and not hides_label_counts(experiment.privacy):
        said["server"].append("Of every site's test samples it is told how many there are of each label.")
    return said


def _server(
    experiment: Experiment, plan: Plan, told: frozenset[str], clusters: str | None, simulated: bool
) -> list[str]:
    privacy, masked = experiment.privacy, experiment.privacy.labels != "none"
    told |= {"labels", "totals"} if masked else set()  # whatever the method needs, the protocol tells that
    words = {"label": "placeholder", "labels": "placeholders"} if masked else {"label": "label", "labels": "labels"}
    said = [f"It is told {TOLD[fact].format(**words)}." for fact in TOLD if fact in told]
    if masked:
        said.append("Labels are placeholders: it is not told which label is which. " + NAMED_BY_MODEL)
    said += [clusters[:1].upper() + clusters[1:] + "."] if clusters else []
    if privacy.clustering == "enclave":
        said.append(_enclave(experiment, simulated))
    said.append(_updates(experiment, plan))
    noised = privacy.dp is not None and privacy.dp.where == "local"
    also = ", how high its mean loss was and how long its update is"
    if noised:
        also = ""
    elif hides_figures(privacy, plan):
        also = "; losses and lengths of updates only in the sum"
    said.append(f"With every report it reads how many samples and steps it stands for{also}.")
    if isinstance(plan.local.sampler, Lots):
        said.append(LOTS if privacy.aggregate == "masked" else LOTS_IN_THE_OPEN)
    for part in plan.server_side:
        if part.reads is not None:
            said.append(f"{type(part).__name__} reads {part.reads}.")
    return said


def _updates(experiment: Experiment, plan: Plan) -> str:
    privacy = experiment.privacy
    what = "gradient" if plan.driver.steps_at_server else "update"
    if privacy.aggregate == "masked":
        normed = " The sums of batch norm are masked likewise." if plan.space.normed else ""
        return (
            f"Of the clients' {what}s it sees the weighted sum over at least {plan.fewest} of them, exact to the "
            f"encoding, and no single one. Each client gives its {what} for a step once, also after a crash; it checks "
            "who is in the sum, and that no one weighs all of it. With the help of enough clients the server could see "
            f"more.{normed} What sums of several rounds, or runs, over different clients tell together is not hidden: "
            f"where the model hardly changed, their difference is near to the {what} of who was missing."
        )
    if privacy.dp is not None and privacy.dp.where == "local":
        return f"It sees every client's {what}, clipped and with noise."
    if plan.driver.chained:
        return (
            "Models go from client to client. Where they pass through the server it sees each of them; between sites "
            "with keys of their own (deploy keys) they are sealed, and it sees the model that each chain ends with."
        )
    return f"It sees every client's {what}, and could find out much about the samples behind it."


def _enclave(experiment: Experiment, simulated: bool) -> str:
    setting = experiment.privacy.enclave
    what = "and the test set are in an enclave" if simulated else "are in an enclave, which every site verified itself"
    noise = "" if not setting.noise else f", of which a share of {setting.noise:g} is drawn at random"
    hidden = f"Label counts {what}; it sees who is selected{noise}, and figures of models."
    over_time = "Who is selected together shows, over many rounds, who is in the same cluster."
    if setting.attestation == "dev-insecure":
        return (
            f"{hidden} {over_time} The enclave is a plain process (dev-insecure): its host can read everything in it."
        )
    return f"{hidden} {over_time} That rests on the hardware that the report names, and on who signed it."


def _others(experiment: Experiment, plan: Plan) -> list[str]:
    mode = experiment.privacy.labels
    said = ["The models that they receive, and what those tell about everybody's data."]
    if mode == "prf":
        said.append(
            "Their own labels' placeholders, and how many placeholders there are; with the model's file, the name of "
            "every placeholder, and not who holds it."
        )
    if mode == "ckks-paper":
        said.append("Every label that any client holds: the printed protocol shows them differences of labels.")
    if experiment.privacy.clustering == "masked":
        said.append("The centres of all clusters, in every step of finding them.")
    if experiment.privacy.aggregate == "masked":
        said.append("How much each client weighs in the sums that they take part in, to a factor of two.")
    if isinstance(plan.local.sampler, Lots):
        said.append("How many samples of each label, or placeholder, there are in all.")
    if plan.space.normed and (plan.driver.steps_at_server or plan.driver.together):
        said.append("Means and variances of the batches that they take part in.")
    return said


def _colluding(experiment: Experiment) -> list[str]:
    privacy, said = experiment.privacy, []
    if privacy.labels == "prf":
        said.append(
            "All label names, because every client can work out anybody's placeholder; of label counts, what the "
            "server is told, and beyond that only sums over the other clients."
        )
    if privacy.labels == "ckks-paper":
        said.append("All labels and all counts: the clients share one key.")
    if privacy.aggregate == "masked":
        said.append(
            "Of the others' updates their sum. With two thirds of a step's other clients on its side (above 25 "
            "clients, half of a client's neighbours) the server can read single updates."
        )
    return said or ["What each of them learns, and nothing more."]
