"""Reading images: as they are, scaled, damaged, mixed, and too large for memory."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from image_files import encoded, pixels, write
from PIL import Image

from fedstrata.core.errors import RequestError
from fedstrata.data.files import Files
from fedstrata.data.formats import images
from fedstrata.data.formats.images import Picture, pictures, read_image, read_images, scale_images


def test_an_image_is_read_as_it_is():
    image = pixels(3, 5, 7)
    assert np.array_equal(read_image(encoded(image), None, 3), image)
    grey = pixels(4, 6)
    assert np.array_equal(read_image(encoded(grey), None, 1), grey[None])
    assert np.array_equal(read_image(encoded(grey), None, 3), np.repeat(grey[None], 3, 0))
    assert read_image(encoded(image), 4, 3).shape == (3, 4, 4)
    assert read_image(encoded(image), 4, 1).shape == (1, 4, 4)


def test_a_flat_colour_stays_when_scaled():
    flat = np.broadcast_to(np.array([10, 100, 200], np.uint8)[:, None, None], (3, 9, 6)).copy()
    assert (read_image(encoded(flat), 4, 3) == flat[:, :4, :4]).all()
    assert (scale_images(flat[None], 4)[0] == flat[:, :4, :4]).all()
    assert scale_images(pixels(2, 16, 16), 32).shape == (2, 3, 32, 32)


def test_a_palette_with_transparency_is_read():
    out = io.BytesIO()
    image = Image.fromarray(np.zeros((4, 4), np.uint8), "L").convert("P")
    image.putpalette([200, 100, 50] + [0] * 765)
    image.save(out, "PNG", transparency=bytes([0, 255]))
    assert read_image(out.getvalue(), None, 3)[:, 0, 0].tolist() == [200, 100, 50]


def test_sixteen_bits_are_refused():
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(out, "PNG")
    with pytest.raises(RequestError, match="8 bits"):
        read_image(out.getvalue(), None, 1)


@pytest.mark.parametrize("content", [b"", b"not an image", encoded(pixels(3, 30, 30))[:-900]])
def test_a_damaged_image_is_named(src, content):
    write(src / "a" / "bad.png", content)
    named = re.escape(str(src / "a" / "bad.png"))
    with pytest.raises(RequestError, match=rf"^{named}: (this is not an image|the image is damaged)"):
        read_images(pictures(Files(src)))


def test_a_damaged_image_is_named_as_it_was_given(src, monkeypatch):
    """`fedstrata predict RUN bad.png` began with ".: bad.png"."""
    write(src / "bad.png", b"not an image")
    monkeypatch.chdir(src)
    with pytest.raises(RequestError, match=r"^bad\.png: this is not an image"):
        read_images(pictures(Files(Path())))


def test_pictures_leave_out_what_is_hidden(src):
    for name in ("a/1.png", "a/2.JPEG", "a/.3.png", "__MACOSX/a/._1.png", "a/notes.txt", ".git/4.png"):
        write(src / name, "")
    found = pictures(Files(src))
    assert [p.name for p in found] == ["a/1.png", "a/2.JPEG"]
    assert (found[0].folder(), found[0].folder(2)) == ("a", "")


def test_mixed_sizes_need_a_size(src):
    write(src / "a" / "1.png", encoded(pixels(3, 8, 8)))
    write(src / "b" / "2.png", encoded(pixels(3, 8, 6)))
    one, two = pictures(Files(src))
    for parts in ([[one, two]], [[one], [two]]):
        with pytest.raises(RequestError, match=r"a/1\.png is 8 x 8, b/2\.png is 6 x 8; give a size"):
            read_images(*parts)
    assert [a.shape for a in read_images([one], [two], [], size=4)] == [(1, 3, 4, 4), (1, 3, 4, 4), (0, 3, 4, 4)]


def test_a_large_array_lies_in_a_file_without_a_name(src, data_folder, monkeypatch):
    all_pixels = pixels(5, 3, 8, 8)
    for i, image in enumerate(all_pixels):
        write(src / f"{i}.png", encoded(image))
    monkeypatch.setattr(images, "IN_MEMORY", 100)
    (array,) = read_images(pictures(Files(src)))
    assert isinstance(array, np.memmap)
    assert np.array_equal(array, all_pixels)
    assert list(data_folder.iterdir()) == []


def test_progress_is_told(src):
    write(src / "1.png", encoded(pixels(1, 1)))
    files, said = Files(src), []
    files.say = said.append
    read_images([Picture(files, "1.png")] * 2500, channels=1)
    assert said == ["1,000 of 2,500 images", "2,000 of 2,500 images"]
