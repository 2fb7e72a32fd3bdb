"""UCI-HAR and MIT-BIH, from small files in the real formats, and from the packs where they are."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packs import PACKS, needs_packs

from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data import store
from fedstrata.data.federation import Federation
from fedstrata.data.files import Files
from fedstrata.data.formats.wfdb import read_212, read_annotations, read_header
from fedstrata.data.sets.mit_bih import TEST_RECORDS, MitBih
from fedstrata.data.sets.uci_har import SIGNALS, UciHar

# ---- uci-har -------------------------------------------------------------------------------------------------------


@pytest.fixture
def har(tmp_path):
    """The zip of UCI: a zip inside a zip, 4 windows to train and 2 to test on, with the publisher's number format."""
    rng = np.random.default_rng(0)
    parts = {"train": ([1, 2, 5, 6], [1, 1, 3, 3]), "test": ([4, 3], [2, 2])}
    inner = tmp_path / "UCI HAR Dataset.zip"
    numbers = {}
    with zipfile.ZipFile(inner, "w") as archive:
        for part, (labels, subjects) in parts.items():
            root = f"UCI HAR Dataset/{part}"
            archive.writestr(f"{root}/y_{part}.txt", "".join(f"{v}\n" for v in labels))
            archive.writestr(f"{root}/subject_{part}.txt", "".join(f"{v}\n" for v in subjects))
            tables = {f"X_{part}.txt": (len(labels), 561)}
            tables |= {f"Inertial Signals/{s}_{part}.txt": (len(labels), 128) for s in SIGNALS}
            for name, shape in tables.items():
                numbers[name] = rng.uniform(-1, 1, shape)
                text = "\n".join(" " + "".join(f" {v: .7e}" for v in row) for row in numbers[name])
                archive.writestr(f"{root}/{name}", text + "\n")
            archive.writestr(f"__MACOSX/{root}/._X_{part}.txt", "junk")
    with zipfile.ZipFile(tmp_path / "har.zip", "w") as outer:
        outer.write(inner, inner.name)
        outer.writestr("UCI HAR Dataset.names", "about")
    inner.unlink()
    return tmp_path / "har.zip", numbers


def test_har_features(har):
    path, numbers = har
    UciHar().fetch(path)
    arrays = UciHar().load()
    assert np.allclose(arrays.x, numbers["X_train.txt"], atol=1e-6)
    assert np.allclose(arrays.test_x, numbers["X_test.txt"], atol=1e-6)
    assert arrays.y.tolist() == [0, 1, 4, 5]
    assert arrays.test_y.tolist() == [3, 2]
    assert arrays.groups.tolist() == [1, 1, 3, 3]
    assert arrays.test_groups.tolist() == [2, 2]


def test_har_signals_are_standardised_by_channel(har):
    path, numbers = har
    UciHar("signals").fetch(path)
    arrays = UciHar("signals").load()
    raw, test = (np.stack([numbers[f"Inertial Signals/{s}_{p}.txt"] for s in SIGNALS], 1) for p in ("train", "test"))
    mean, std = raw.mean((0, 2), keepdims=True), raw.std((0, 2), keepdims=True)
    assert arrays.x.shape == (4, 9, 128)
    assert np.allclose(arrays.x, (raw - mean) / std, atol=1e-5)
    assert np.allclose(arrays.test_x, (test - mean) / std, atol=1e-5)


def har_folder(root: Path, rows: int = 10) -> Path:
    """Four subjects, two of them the publisher's test subjects, who do three things each."""
    rng = np.random.default_rng(0)
    for part, subjects in {"train": (1, 3), "test": (2, 4)}.items():
        (root / part).mkdir(parents=True)
        labels, n = np.tile(np.repeat([1, 2, 6], rows), 2), 6 * rows
        np.savetxt(root / part / f"y_{part}.txt", labels, "%d")
        np.savetxt(root / part / f"subject_{part}.txt", np.repeat(subjects, 3 * rows), "%d")
        np.savetxt(root / part / f"X_{part}.txt", rng.uniform(-1, 1, (n, 561)), "%.5f")
    return root


def test_har_within_tests_every_subject_on_what_it_does(tmp_path):
    har_folder(tmp_path / "har")
    within = registry.build("datasets", "uci-har", {"test": "within"}, "data")
    within.fetch(tmp_path / "har")
    arrays = within.load()
    for groups, labels, count in ((arrays.groups, arrays.y, 8), (arrays.test_groups, arrays.test_y, 2)):
        cells, counts = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
        assert cells.tolist() == [[*[1] * 3, *[2] * 3, *[3] * 3, *[4] * 3], [0, 1, 5] * 4]
        assert set(counts) == {count}
    assert np.array_equal(within.decode(Files(tmp_path / "har")).test_x, arrays.test_x), "the same ones every time"
    with pytest.raises(RequestError, match="`fedstrata data fetch uci-har`"):
        UciHar().load()
    UciHar().fetch(tmp_path / "har")
    assert not set(UciHar().load().groups) & set(UciHar().load().test_groups)
    assert len(within.load().test_y) == 24, "both are kept"


def test_har_within_has_the_published_counts_together(tmp_path):
    har_folder(tmp_path / "har", rows=600)  # 4 x 600 of class 0: more than 1,226 + 496
    with pytest.raises(RequestError, match="2400 samples of class 0, uci-har has 1722"):
        UciHar(test="within").fetch(tmp_path / "har")


def test_har_with_a_file_missing(har, tmp_path):
    with zipfile.ZipFile(har[0]) as outer:
        outer.extract("UCI HAR Dataset.zip", tmp_path)
    with zipfile.ZipFile(tmp_path / "UCI HAR Dataset.zip") as inner:
        inner.extractall(tmp_path / "unpacked")
    next((tmp_path / "unpacked").rglob("total_acc_z_test.txt")).unlink()
    with pytest.raises(RequestError, match=r"lacks test/Inertial Signals/total_acc_z_test.txt"):
        UciHar("signals").fetch(tmp_path / "unpacked")
    UciHar().fetch(tmp_path / "unpacked")


@needs_packs
def test_har_pack():
    UciHar("signals").fetch(PACKS)
    arrays = UciHar("signals").load()
    assert arrays.x.shape == (7352, 6, 128)
    assert arrays.test_x.shape == (2947, 6, 128)
    assert np.bincount(arrays.y).tolist() == [1226, 1073, 986, 1286, 1374, 1407]
    assert np.bincount(arrays.test_y).tolist() == [496, 471, 420, 491, 532, 537]
    assert len(np.unique(arrays.groups)) == 21
    assert not set(arrays.groups) & set(arrays.test_groups)
    assert np.allclose(arrays.x.mean((0, 2)), 0, atol=1e-3)
    assert store.about("uci-har-signals")["complete"] is False, "six of nine channels"
    with pytest.raises(RequestError, match="--set form=signals"):
        UciHar().fetch(PACKS)


@needs_packs
def test_har_pack_within():
    UciHar("signals", "within").fetch(PACKS)
    arrays = UciHar("signals", "within").load()
    assert len(arrays.y) + len(arrays.test_y) == 7352 + 2947
    assert set(arrays.groups) == set(arrays.test_groups) == set(range(1, 31))
    assert np.allclose(np.bincount(arrays.test_groups)[1:] / np.bincount(arrays.groups)[1:], 0.25, atol=0.02)
    assert np.allclose(arrays.x.mean((0, 2)), 0, atol=1e-3)
    federation = Federation.from_arrays(
        arrays.x,
        arrays.y,
        30,
        partition=registry.build("partitions", "natural", {}, "data.partition"),
        test=arrays.test,
        groups=arrays.groups,
    )
    assert len(federation) == 30
    assert min(len(rows) for rows in federation.test_split) > 50


# ---- mit-bih -------------------------------------------------------------------------------------------------------


def as_212(samples: np.ndarray) -> bytes:
    """Two 12-bit numbers in three bytes."""
    pairs = (samples.reshape(-1, 2) & 0xFFF).tolist()
    return b"".join(bytes([a & 0xFF, (a >> 8) | (b >> 8) << 4, b & 0xFF]) for a, b in pairs)


def as_atr(marks: list[tuple[int, int]]) -> bytes:
    """Annotations as PhysioNet writes them: 6 bits of code, 10 of interval, SKIP where that is too short."""
    out, now = struct.pack("<HH2sH", 28 << 10 | 5, 63 << 10 | 2, b"(N", 60 << 10 | 1), 5  # rhythm, its text, a NUM
    for time, code in marks:
        step = time - now
        if step > 1023:
            out += struct.pack("<HHH", 59 << 10, step >> 16, step & 0xFFFF)
            step = 0
        out += struct.pack("<H", code << 10 | step)
        now = time
    return out + b"\0\0"


def write_record(folder: Path, record: int, marks: list[tuple[int, int]], leads=("MLII", "V1"), n=7200) -> np.ndarray:
    """Write a slow wave on the first lead, so that resampling can be worked out by hand, and noise on the second."""
    t = np.arange(n) / 360
    wave = np.round(500 * np.sin(2 * np.pi * 1.5 * t) + 1024)
    samples = np.stack([wave, np.random.default_rng(0).integers(-2048, 2048, n)], 1).astype(int)
    lines = [f"{record} 2 360 {n}"]
    lines += [
        f"{record}.dat 212 200 11 1024 {s[0]} {s.sum() % 65536} 0 {lead}"
        for s, lead in zip(samples.T, leads, strict=True)
    ]
    (folder / f"{record}.hea").write_text("\r\n".join([*lines, "# 69 M 1085 1629 x1", ""]))
    (folder / f"{record}.dat").write_bytes(as_212(samples))
    (folder / f"{record}.atr").write_bytes(as_atr(marks))
    return samples


def test_format_212_by_hand():
    header = read_header(b"r 2 360 2\nr.dat 212 200 12 0 0 0 0 MLII\nr.dat 212 200 12 0 0 0 0 V1\n", "r.hea")
    with pytest.raises(RequestError, match="checksum of lead MLII"):
        read_212(bytes([0xE3, 0x33, 0xF3, 0x01, 0x0F, 0x00]), header, "r.dat")
    header = read_header(b"r 2 360 2\nr.dat 212\nr.dat 212\n", "r.hea")
    # 0x3E3 = 995, 0x3F3 = 1011, 0xF01 = -255, 0x000 = 0
    assert read_212(bytes([0xE3, 0x33, 0xF3, 0x01, 0x0F, 0x00]), header, "r.dat").tolist() == [[995, 1011], [-255, 0]]
    with pytest.raises(RequestError, match=r"r.dat is truncated: 1 of 2 samples"):
        read_212(bytes([0xE3, 0x33, 0xF3]), header, "r.dat")
    with pytest.raises(RequestError, match="has format 16; only 212 is known"):
        read_212(b"", read_header(b"r 1 360 2\nr.dat 16\n", "r.hea"), "r.dat")


def test_annotations_by_hand():
    # rhythm (28) at 18 with text "(N", normal beat (1) 59 later, SKIP of 70000, a PVC (5), end
    data = bytes([18, 28 << 2, 3, 63 << 2]) + b"(N\0\0" + bytes([59, 1 << 2, 0, 59 << 2, 1, 0, 0x70, 0x11])
    times, codes = read_annotations(data + bytes([0, 5 << 2, 0, 0]), "r.atr")
    assert times.tolist() == [18, 77, 77 + 70000]
    assert codes.tolist() == [28, 1, 5]
    with pytest.raises(RequestError, match="no end mark"):
        read_annotations(data, "r.atr")
    with pytest.raises(RequestError, match="truncated"):
        read_annotations(data[:-1], "r.atr")


def test_mit_bih_records(tmp_path):
    marks = [(10, 1), (720, 1), (1440, 8), (1500, 14), (3000, 5), (4320, 6), (5000, 12), (7190, 1)]
    write_record(tmp_path, 101, marks)
    write_record(tmp_path, 100, marks[:3], leads=("V5", "V2"))
    MitBih().fetch(tmp_path)
    arrays = MitBih().load()
    assert arrays.y.tolist() == [0, 1, 2, 3, 4], "the first and last windows leave the record; code 14 is no beat"
    assert arrays.test_y.tolist() == [0, 1]
    assert set(arrays.groups) == {101}
    assert set(arrays.test_groups) == {100}
    assert arrays.x.shape == (5, 1, 187)
    assert arrays.x.dtype == np.float32
    # a sine of 1.5 Hz, cut 93 samples of 8 ms before the beat
    beat = np.sin(2 * np.pi * 1.5 * (720 / 360 + (np.arange(187) - 93) / 125))
    assert np.allclose(arrays.x[0, 0], (beat - beat.min()) / (beat.max() - beat.min()), atol=0.01)
    assert arrays.x[0].min() == 0
    assert arrays.x[0].max() == 1


def test_mit_bih_takes_mlii_wherever_it_is_and_can_leave_paced_records_out(tmp_path):
    marks = [(720, 1), (1440, 12)]
    samples = write_record(tmp_path, 114, marks, leads=("V5", "MLII"))
    write_record(tmp_path, 102, marks)
    arrays = MitBih().decode(Files(tmp_path))
    noisy = arrays.x[arrays.groups == 114][0, 0]
    assert np.abs(np.diff(noisy)).max() > 0.2, f"lead 2 is noise: {samples[:3, 1]}"
    assert set(MitBih(paced=False).decode(Files(tmp_path)).groups) == {114}


def test_mit_bih_within_tests_every_record_on_its_own_beats(tmp_path):
    marks = [(720 + 100 * i, 1 if i % 2 else 5) for i in range(50)]
    for record in (100, 101, 102):
        write_record(tmp_path, record, marks)
    within = registry.build("datasets", "mit-bih", {"test": "within"}, "data")
    within.fetch(tmp_path)
    arrays = within.load()
    for groups, labels, count in ((arrays.groups, arrays.y, 20), (arrays.test_groups, arrays.test_y, 5)):
        cells, counts = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
        assert cells.tolist() == [[100, 100, 101, 101, 102, 102], [0, 2] * 3]
        assert set(counts) == {count}
    assert set(MitBih(paced=False, test="within").decode(Files(tmp_path)).test_groups) == {100, 101}
    assert len({MitBih(p, t).key for p in (True, False) for t in ("official", "within")}) == 4


def test_mit_bih_refuses_damaged_records(tmp_path):
    write_record(tmp_path, 101, [(720, 1)])
    whole = (tmp_path / "101.dat").read_bytes()
    (tmp_path / "101.dat").write_bytes(whole[:-300])
    with pytest.raises(RequestError, match=r"101.dat is truncated: 7100 of 7200 samples"):
        MitBih().fetch(tmp_path)
    (tmp_path / "101.dat").write_bytes(b"\1" + whole[1:])
    with pytest.raises(RequestError, match=r"101.dat is damaged: the checksum of lead MLII"):
        MitBih().fetch(tmp_path)
    (tmp_path / "101.dat").unlink()
    with pytest.raises(RequestError, match=r"lacks 101.dat, which 101.atr needs"):
        MitBih().fetch(tmp_path)
    assert store.names() == []


def test_mit_bih_as_kaggle_has_it(tmp_path):
    rng = np.random.default_rng(0)
    for part, labels in (("train", [0, 0, 1, 2, 3, 4]), ("test", [0, 4])):
        rows = [[f"{v:.18e}" for v in (*rng.random(187), label)] for label in labels]
        (tmp_path / f"mitbih_{part}.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        for part in ("train", "test"):
            archive.write(tmp_path / f"mitbih_{part}.csv", f"mitbih_{part}.csv")
    MitBih().fetch(tmp_path / "archive.zip")
    arrays = MitBih().load()
    assert arrays.x.shape == (6, 1, 187)
    assert arrays.y.tolist() == [0, 0, 1, 2, 3, 4]
    assert arrays.test_y.tolist() == [0, 4]
    assert arrays.groups is None
    with pytest.raises(RequestError, match="paced = false needs the records"):
        MitBih(paced=False).fetch(tmp_path / "archive.zip")
    with pytest.raises(RequestError, match='test = "within" needs the records'):
        MitBih(test="within").fetch(tmp_path / "archive.zip")


def test_mit_bih_holds_out_nobody_who_is_in_training():
    """201 and 202 are one person; the paced records are on both sides."""
    assert not {201, 202} & set(TEST_RECORDS)
    assert len({102, 104, 107, 217} & set(TEST_RECORDS)) == 2
    assert len(set(TEST_RECORDS)) == 23


@needs_packs
def test_mit_bih_pack():
    MitBih().fetch(PACKS)
    arrays = MitBih().load()
    assert (np.bincount(arrays.y) + np.bincount(arrays.test_y)).tolist() == [11506, 1256, 2943, 802, 615]
    assert min(np.bincount(arrays.y).min(), np.bincount(arrays.test_y).min()) > 90, "every class on both sides"
    assert len(np.union1d(arrays.groups, arrays.test_groups)) == 48
    assert not set(arrays.groups) & set(arrays.test_groups)
    assert arrays.x.min() == 0
    assert arrays.x.max() == 1
    federation = Federation.from_arrays(
        arrays.x,
        arrays.y,
        10,
        partition=registry.build("partitions", "iid", {}, "data.partition"),
        test=arrays.test,
        groups=arrays.groups,
    )
    assert len(federation.classes) == 5


@needs_packs
def test_mit_bih_pack_within():
    MitBih(test="within").fetch(PACKS)
    arrays = MitBih(test="within").load()
    assert (np.bincount(arrays.y) + np.bincount(arrays.test_y)).tolist() == [11506, 1256, 2943, 802, 615]
    assert set(arrays.groups) == set(arrays.test_groups)
    assert len(np.unique(arrays.groups)) == 48
