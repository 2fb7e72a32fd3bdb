"""Clients and their data, and what the server may know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core import registry
from fedstrata.core.client_info import ClientInfo, GroundTruth, label_facts
from fedstrata.core.client_parts import Client
from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.inputs import Inputs
from fedstrata.core.rng import Streams
from fedstrata.data.assembly import assemble
from fedstrata.data.drift import Drift, Moves, Stream
from fedstrata.data.feature_checks import ARGUMENT, KEY, describe_ids, describe_sizes, warn_of_no_label, warn_of_sizes
from fedstrata.data.federation_html import federation_html
from fedstrata.data.federation_info import check_classes
from fedstrata.data.items import is_data_set, join_samples, name_data_sets, read_train_and_test, refuse_other_columns
from fedstrata.data.noise import Noise, disturb
from fedstrata.data.ownership import read_speeds
from fedstrata.data.partitions.base import Partition
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.reading import Label, Samples
from fedstrata.data.scaling import FeaturesTold, Scale


@dataclass(frozen=True)
class Federation:
    """All clients: data by index into shared arrays, never a copy a client.

    Make one with `from_arrays` (rows per client, or a partition), `from_dataset` or `from_clients` (one data set a
    client); `len(federation)` is the number of clients.

    Attributes
    ----------
    train, test
        Samples of all clients, with class indices as labels.
    train_split, test_split
        Which rows belong to which client: `train_split[3]` are those of client 3.
    classes
        The user's own labels, by class index.
    name
        What to call the data.
    speeds
        Relative device capacity of each client; None: unknown, which counts as 1.
    bandwidths
        Bytes a second of each client; None: without limit.
    left_out
        Training samples that no client holds.
    notes
        What the partition had to do to fulfil the request.
    inputs
        From stored samples to what a network sees.
    moves
        How who holds what changes by round; None: not at all.
    true_labels
        Class indices before label noise; None: there is none.
    proxy
        Training samples that the server holds.
    codes
        Class index of each label, where another order than the labels' own is used.
    preprocessing
        From raw inputs to what a network sees: all that was done to the samples, and what `inputs` does.
    features_told
        What clients told of their features for that; None: nothing.
    unscaled
        How features are still to be scaled, together with those of other owners (a real site's). None: they are.
    names
        Of the clients, where they have any: owners of samples, groups of the partition `natural`.
    alone
        Whether these are the data of one owner among others (a real site's), who may hold one label only.

    Examples
    --------
    >>> import numpy as np
    >>> from fedstrata import Federation
    >>> x, y = np.random.default_rng(0).normal(size=(60, 4)), np.repeat(["cat", "dog", "owl"], 20)
    >>> federation = Federation.from_arrays(x, y, clients=[range(0, 40), range(40, 60)], test=0.25)
    >>> federation
    Federation(given: 2 clients, 45 training samples, 3 classes)
    >>> federation.counts
    array([[15, 15,  0],
           [ 0,  0, 15]])
    """

    train: Samples
    test: Samples
    train_split: Split
    test_split: Split
    classes: tuple[Label, ...]
    name: str = "given"
    speeds: np.ndarray | None = None
    bandwidths: np.ndarray | None = None
    left_out: int = 0
    notes: tuple[str, ...] = ()
    inputs: Inputs = field(default_factory=Inputs)
    moves: Moves | None = None
    true_labels: np.ndarray | None = None
    proxy: Samples | None = None
    codes: np.ndarray | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    features_told: FeaturesTold | None = None
    unscaled: Scale | None = None
    names: tuple[str, ...] | None = None
    alone: bool = False
    _now: tuple[int, Federation] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.train_split) != len(self.test_split):
            raise RequestError("the train and test parts speak of different numbers of clients")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            shapes = f"{tuple(self.train.x.shape[1:])} and {tuple(self.test.x.shape[1:])}"
            raise RequestError(f"training and test samples have different shapes: {shapes}")
        if self.speeds is not None and not (
            self.speeds.shape == (len(self),) and np.isfinite(self.speeds).all() and (self.speeds > 0).all()
        ):
            raise RequestError(f"speeds must hold one number > 0 for each of the {len(self)} clients")
        if not self.alone:
            check_classes(self.classes)
        if self.names is not None and (len(self.names) != len(self) or len(set(self.names)) < len(self)):
            raise RequestError(f"{len(self)} clients need as many different names; got {len(set(self.names))}")

    def __len__(self) -> int:
        return len(self.train_split)

    def __repr__(self) -> str:
        held = len(self.train_split.rows)
        return f"Federation({self.name}: {len(self)} clients, {held} training samples, {len(self.classes)} classes)"

    def _repr_html_(self) -> str:
        return federation_html(self)

    @property
    def samples(self) -> int:
        """Training samples that clients hold."""
        return len(self.train_split.rows)

    @property
    def tests(self) -> int:
        """Test samples."""
        return len(self.test)

    @cached_property
    def labels(self) -> np.ndarray:
        """Class index of every training sample."""
        return self.train.y.numpy()

    @cached_property
    def counts(self) -> np.ndarray:
        """Label counts of every client, [N, C]."""
        return self.train_split.counts(self.labels, len(self.classes))

    @property
    def wrong_labels(self) -> float | None:
        """Share of the labels that noise has changed, where that is known."""
        rows = self.train_split.rows
        return None if self.true_labels is None else float((self.labels[rows] != self.true_labels[rows]).mean())

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the data, of who holds what, and of what is known of them."""
        traits = [None if t is None else t.tolist() for t in (self.speeds, self.bandwidths)]
        digest = sha256(repr((self.classes, traits, self.inputs, self.moves)).encode())
        for samples in (self.train, self.test, *([] if self.proxy is None else [self.proxy])):
            digest.update(samples.x.contiguous().numpy().data)
            digest.update(samples.y.contiguous().numpy().data)
            digest.update(repr(None if samples.groups is None else samples.groups.tolist()).encode())
        for split in (self.train_split, self.test_split):
            digest.update(split.rows.data)
            digest.update(split.starts.data)
        return digest.hexdigest()

    @cached_property
    def uneven_features(self) -> str | None:
        """What is wrong with the sizes of a table's features, or of pixels, where networks learn badly from them."""
        if self.unscaled is None:
            return describe_sizes(self.train.x, self.inputs, self.preprocessing.features, self.scale_remedy)
        if self.unscaled != "none" or self.preprocessing.mean is not None:  # sites will find, or are given, a scale
            return None
        whole = self.train.x.nan_to_num(0.0)
        return describe_sizes(whole, self.inputs, self.preprocessing.features, self.scale_remedy)

    @property
    def scale_remedy(self) -> str:
        """What brings features to one scale: the key of own data, which a file or an option sets, or an argument."""
        return KEY if self.name == "own" else ARGUMENT

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is wrong with the features, as far as their values show it."""
        ids = describe_ids(self.train.x.numpy(), self.train_split, self.preprocessing.columns)
        return tuple(filter(None, (self.uneven_features, ids)))

    @property
    def identity(self) -> str:
        """What a checkpoint belongs to."""
        return self.fingerprint

    def trial(self) -> Tensor:
        """Return two stored samples to try a network with.

        Returns
        -------
        Tensor
        """
        return self.train.x[:2]

    def with_devices(self, speeds: np.ndarray | None, bandwidths: np.ndarray | None) -> Federation:
        """Give clients other devices.

        Parameters
        ----------
        speeds
            Relative capacity of each client; None: unknown.
        bandwidths
            Bytes a second of each client; None: without limit.

        Returns
        -------
        Federation
        """
        return replace(self, speeds=speeds, bandwidths=bandwidths)

    def with_noise(self, noises: Sequence[Noise], seed: int = 0) -> Federation:
        """Disturb what clients train on; the labels as they were stay in `true_labels`.

        Parameters
        ----------
        noises
            Parts such as `make_part("noises", "label-noise", rate=0.3)`, one after another.
        seed
            Of what is drawn.

        Returns
        -------
        Federation
        """
        x, y = self.train.x.numpy(), self.labels
        if not noises:
            return self
        clients = [self.train_split[i] for i in range(len(self))]
        for place, noise in enumerate(noises):
            registry.check_object(noise, f"noises.{place}")
        for place, noise in enumerate(noises):  # two of a kind must not draw the same numbers
            streams = Streams(Streams(seed).torch_seed("noise", step=place))
            x, y = disturb(noise, x, y, clients, len(self.classes), streams)
        train = replace(self.train, x=torch.from_numpy(x), y=torch.from_numpy(y))
        known = self.labels if self.true_labels is None else self.true_labels
        return replace(self, train=train, true_labels=known)

    def relabel(self, codes: np.ndarray, classes: Sequence[Label] | None = None) -> Federation:
        """Use other class indices; all else stays as it is.

        Parameters
        ----------
        codes
            Label i, in the present order, becomes `codes[i]`.
        classes
            Names of the new indices, where they are more than another order of the labels that are here.

        Returns
        -------
        Federation
        """
        to = torch.from_numpy(codes)

        def coded(samples: Samples) -> Samples:
            return replace(samples, y=to[samples.y])

        return replace(
            self,
            train=coded(self.train),
            test=coded(self.test),
            proxy=None if self.proxy is None else coded(self.proxy),
            true_labels=None if self.true_labels is None else codes[self.true_labels],
            classes=tuple(self.classes[i] for i in np.argsort(codes)) if classes is None else tuple(classes),
            codes=codes if self.codes is None else codes[self.codes],
        )

    def moving(self, drift: Drift | None = None, stream: Stream | None = None, seed: int = 0) -> Federation:
        """Let label mixes change and samples arrive over time.

        Parameters
        ----------
        drift
            Clients that pass their samples on in given rounds.
        stream
            Samples that arrive, and may expire.
        seed
            Of what is drawn.

        Returns
        -------
        Federation
        """
        return replace(self, moves=Moves(drift, stream, Streams(seed)) if drift or stream else None)

    def at(self, round: int) -> Federation:
        """Return the federation as it is in a round.

        Parameters
        ----------
        round
            Counted from 0.

        Returns
        -------
        Federation
        """
        if self.moves is None:
            return self
        if self._now is None or self._now[0] != round:
            train, test = self.moves.splits(self.train_split, self.test_split, round)
            now = replace(self, train_split=train, test_split=test, moves=None)
            object.__setattr__(self, "_now", (round, now))  # the round asked for last; no copy takes it along
        assert self._now is not None
        return self._now[1]

    def client(self, id: int) -> Client:
        """Return one client's view of itself.

        Parameters
        ----------
        id
            From 0.

        Returns
        -------
        Client
        """
        starts = self.train_split.starts
        if not 0 <= id < len(starts) - 1:
            raise IndexError(f"there is no client {id} among {len(starts) - 1}")
        start, stop = starts[id : id + 2]
        rows = self.train_split.rows[start:stop]
        speed = 1.0 if self.speeds is None else float(self.speeds[id])
        return Client(id, rows, self.labels[rows], len(self.classes), speed)

    def client_info(self, needs: frozenset[str], streams: Streams) -> ClientInfo:
        """Tell the server what its parts declared they need, and no more.

        Parameters
        ----------
        needs
            What can be read: "sizes", "labels", "totals", "counts", "speeds".
        streams
            Of the run; the order that breaks ties is drawn from them.

        Returns
        -------
        ClientInfo
        """
        sizes = self.train_split.sizes
        facts = {
            "sizes": lambda: sizes,
            **label_facts(lambda: self.counts),
            "speeds": lambda: np.ones(len(self)) if self.speeds is None else self.speeds,
        }
        return replace(
            ClientInfo.of(sizes, len(self.classes), facts, needs, streams),
            ground_truth=GroundTruth(self.train_split, self.labels, len(self.classes), self.speeds, self.bandwidths),
            later=None if self.moves is None else lambda round: self.at(round).client_info(needs, streams),
            features=0 if self.features_told is None else self.features_told.nbytes,
        )

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        clients: int | Sequence[Any] | Mapping[str, Any] | None,
        *,
        partition: Partition | str | Mapping[str, Any] | None = None,
        test: Any = 0.2,
        test_clients: Sequence[Any] | None = None,
        groups: Any = None,
        speeds: Any = None,
        inputs: Inputs | None = None,
        preprocessing: Preprocessing | None = None,
        scale: Scale | None = None,
        proxy: int = 0,
        seed: int = 0,
        name: str = "given",
    ) -> Federation:
        """Build from arrays or tensors.

        Parameters
        ----------
        x
            Samples, one a row: features, or images [n, channels, height, width].
        y
            Their labels: numbers or text; the map is in `classes`.
        clients
            The rows of each client (by name, if you like), one owner a sample, or a number of clients to be dealt out
            by `partition` (None: as many as it finds).
        partition
            How samples are dealt out: a name, a table such as `{"kind": "dirichlet-class", "alpha": 0.3}`, or a part.
        test
            (x, y), (x, y, groups), a torch Dataset, or the fraction to hold out. A partition deals test samples out
            too, and what is held out is tested by those who hold it.
        test_clients
            Each client's rows of `test`, where that is given; without it, clients have no test samples of their own.
        groups
            Each sample's domain, subject or writer.
        speeds
            A device capacity for each client.
        inputs
            How samples are normalised; without it, uint8 is divided by 255.
        preprocessing
            What was done to raw inputs, where samples are not the raw ones: the model's file will hold it. With
            `scale`, what is still to be done to them: gaps to fill, means and deviations that are given.
        scale
            How features, or channels of images, are brought to mean 0 and deviation 1: "federated" by sums over all
            clients, "per-client" each by its own statistics, or "none". Without it samples are taken as they are, with
            a warning where they are rows of features whose sizes are far from 1 or from each other.
        proxy
            Training samples that the server gets and no client holds, evenly over the labels.
        seed
            Of what is held out and dealt out.
        name
            What to call the data.

        Returns
        -------
        Federation

        Raises
        ------
        RequestError
            If sizes, shapes or types do not fit, a row is named twice or is not there, who holds what is said twice,
            the partition cannot fulfil the request, or no training samples are left. `from_dataset` and
            `from_clients` raise the same.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> import fedstrata
        >>> x, y = load_digits(return_X_y=True)
        >>> skewed = {"kind": "dirichlet-class", "alpha": 0.3}
        >>> federation = fedstrata.Federation.from_arrays(x / 16, y, 10, partition=skewed, test=0.2, seed=1)
        >>> federation
        Federation(given: 10 clients, 1438 training samples, 10 classes)
        >>> owners = ["odd" if label % 2 else "even" for label in y]  # one owner a sample: two clients
        >>> len(fedstrata.Federation.from_arrays(x / 16, y, owners))
        2
        """
        parts = assemble(
            x, y, clients, partition, test, test_clients, groups, inputs, preprocessing, scale, proxy, seed
        )
        federation = cls(**parts, name=name, speeds=read_speeds(speeds))
        if scale is None and inputs is None and federation.uneven_features is not None:
            warn_of_sizes(federation.uneven_features)
        warn_of_no_label(federation.classes)
        return federation

    @classmethod
    def from_dataset(
        cls, dataset: Any, clients: int | Sequence[Any] | Mapping[str, Any] | None, **how: Any
    ) -> Federation:
        """Build from a torch Dataset or what is like one.

        Parameters
        ----------
        dataset
            Of (sample, label) pairs or dicts of them, with a length; a `DataLoader` of one; a Hugging Face `Dataset`,
            or a mapping of a "train" and a "test" one.
        clients
            As in `from_arrays`.
        **how
            The rest, as in `from_arrays`.

        Returns
        -------
        Federation

        Examples
        --------
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from fedstrata import Federation
        >>> pairs = TensorDataset(torch.rand(30, 5), torch.arange(30) % 3)
        >>> Federation.from_dataset(pairs, clients=[range(0, 10), range(10, 30)], test=0.2)
        Federation(given: 2 clients, 24 training samples, 3 classes)
        """
        train, test = read_train_and_test(dataset)
        how = how if test is None else {"test": test, **how}
        return cls.from_arrays(*train, clients, **how)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[Any] | Mapping[str, Any],
        *,
        test: Any = 0.2,
        scale: Scale | None = None,
        seed: int = 0,
    ) -> Federation:
        """Build from one data set a client.

        Parameters
        ----------
        clients
            Torch Datasets, or pairs (x, y), with samples of one shape; by name, where clients have names.
        test
            The same, one for each client; one pair (x, y) or torch Dataset for all; or the fraction to hold out of
            each label.
        scale
            As in `from_arrays`.
        seed
            Of what is held out.

        Returns
        -------
        Federation

        Examples
        --------
        >>> import numpy as np
        >>> from fedstrata import Federation
        >>> rng = np.random.default_rng(0)
        >>> hospital = rng.normal(size=(40, 6)), np.arange(40) % 2
        >>> practice = rng.normal(size=(10, 6)), np.arange(10) % 2
        >>> federation = Federation.from_clients({"bonn": hospital, "kiel": practice})
        >>> federation
        Federation(given: 2 clients, 40 training samples, 2 classes)
        >>> federation.names
        ('bonn', 'kiel')
        """
        if is_data_set(clients):  # its items, or a loader's batches, would each become a client
            raise RequestError(
                f"clients is one data set, {type(clients).__name__}: give a list of them, one a client, or deal it out "
                'with Federation.from_dataset(data, 10, partition="iid")'
            )
        x, y, rows = join_samples(clients)
        names = tuple(map(str, clients)) if isinstance(clients, Mapping) else None
        pair = isinstance(test, tuple) and all(hasattr(one, "shape") for one in test)
        if pair:
            refuse_other_columns({**name_data_sets(clients), "test": test})
        if pair or isinstance(test, float | int) or is_data_set(test):
            return replace(cls.from_arrays(x, y, rows, test=test, scale=scale, seed=seed), names=names)
        if isinstance(test, Mapping):
            if not isinstance(clients, Mapping) or set(test) != set(clients):
                raise RequestError("clients that have names must have the same ones in test")
            test = {name: test[name] for name in clients}
        refuse_other_columns({**name_data_sets(clients), **name_data_sets(test, "test of client")})
        test_x, test_y, test_rows = join_samples(test, "test of client")
        federation = cls.from_arrays(x, y, rows, test=(test_x, test_y), test_clients=test_rows, scale=scale)
        return replace(federation, names=names)
