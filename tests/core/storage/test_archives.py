"""Archives: files land in their folder; links, devices and ways out of it are refused, on every Python."""

import io
import tarfile

import pytest

from fedstrata.core.storage.archives import unpack


def packed(name, kind=tarfile.REGTYPE, target=""):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        member.size = 2 if kind == tarfile.REGTYPE else 0
        archive.addfile(member, io.BytesIO(b"hi"))
    return tarfile.open(fileobj=io.BytesIO(whole.getvalue()))


@pytest.fixture(params=["with a filter", "without"])
def any_python(request, monkeypatch):
    if request.param == "without":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def test_files_are_unpacked(any_python, tmp_path):
    unpack(packed("a/b"), tmp_path)
    assert (tmp_path / "a/b").read_text() == "hi"


@pytest.mark.parametrize(
    "member",
    [
        ("/a",),
        ("../a",),
        ("a/../../b",),
        ("a", tarfile.SYMTYPE, "/etc/passwd"),
        ("a", tarfile.LNKTYPE, "b"),
        ("a", tarfile.FIFOTYPE),
    ],
)
def test_what_leads_elsewhere_is_refused(any_python, tmp_path, member):
    with pytest.raises(tarfile.TarError, match="no file or folder"):
        unpack(packed(*member), tmp_path)
    assert list(tmp_path.iterdir()) == []
