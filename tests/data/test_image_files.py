import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fake_images import make_image
from polycov.data.image_files import FORMATS, UnreadableImageError, image_extensions, read_image
from polycov.data.images import Files, Samples
from polycov.errors import PolycovError

WRITABLE = [name for name in FORMATS if name != "QOI"]


def encoded(kind: str, side: int = 24) -> bytes:
    """The bytes of an image file, with EXIF data where the format has it."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    file = io.BytesIO()
    options = {"exif": exif.tobytes()} if kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF") else {}
    make_image(0, 0, side).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", WRITABLE)
def test_every_format_is_read_alike_from_a_path_and_from_bytes(kind: str, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(encoded(kind))
    image = read_image(tmp_path / "image")
    assert (image.mode, image.size) == ("RGB", (24, 24))
    np.testing.assert_array_equal(np.asarray(read_image(encoded(kind))), np.asarray(image))


@pytest.mark.parametrize("kind", WRITABLE)
def test_a_damaged_file_is_read_or_unreadable_and_nothing_else(kind: str) -> None:
    good, rng = encoded(kind), np.random.default_rng(0)
    for _ in range(150):
        content = bytearray(good)
        for position in rng.integers(0, min(len(content), 400), rng.integers(1, 8)):  # most decisions are made early
            content[position] = rng.integers(256)
        damaged = bytes(content[: rng.integers(len(content))] if rng.random() < 0.3 else content)
        try:
            checked = read_image(damaged, check=True, max_pixels=10**6).mode
        except UnreadableImageError:
            checked = ""
        try:
            decoded = read_image(damaged, max_pixels=10**6).mode
        except UnreadableImageError:
            decoded = ""
        assert checked == decoded


def test_no_program_is_started_for_postscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", pytest.fail)
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    (tmp_path / "drawing.jpg").write_bytes(content)
    with pytest.raises(UnreadableImageError, match=r"'.*drawing.jpg': it is not an image"):
        read_image(tmp_path / "drawing.jpg")
    assert not {".eps", ".ps", ".wmf", ".pdf"} & set(image_extensions())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    reasons: list[str] = []

    def read() -> None:
        try:
            read_image(tmp_path / "pipe.jpg")
        except UnreadableImageError as error:
            reasons.append(error.reason)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert reasons == ["it is not a regular file"]


def test_what_may_become_readable_is_marked(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImageError) as missing:
        read_image(tmp_path / "absent.jpg")
    assert missing.value.repairable
    with pytest.raises(UnreadableImageError, match=r"^Cannot read the image 'upload': ") as broken:
        read_image(b"text", "upload")
    assert not broken.value.repairable


def test_large_images_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(UnreadableImageError, match=r"it has 24 × 24 pixels; at most 0 million are read"):
        read_image(encoded("PNG"), max_pixels=500)
    assert read_image(encoded("PNG"), max_pixels=576).size == (24, 24)


def test_images_are_upright_rgb_on_white(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: rotated by 90 degrees
    make_image(0, 0).resize((30, 20)).save(tmp_path / "rotated.jpg", exif=exif)
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("P", (4, 4)).save(tmp_path / "palette.gif")
    assert read_image(tmp_path / "rotated.jpg").size == (20, 30)
    assert read_image(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)
    assert read_image(tmp_path / "palette.gif").mode == "RGB"


def test_images_of_16_and_32_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).reshape(16, 16)
    Image.fromarray(ramp.astype(np.uint16)).save(tmp_path / "16.png")
    Image.fromarray((ramp / 65535).astype(np.float32)).save(tmp_path / "unit.tiff")
    for name in ("16.png", "unit.tiff"):
        red = np.asarray(read_image(tmp_path / name))[..., 0].astype(float)
        np.testing.assert_allclose(red, ramp / 257, atol=1)
    Image.fromarray((ramp * 10).astype(np.float32)).save(tmp_path / "large.tiff")
    samples = Samples(Files(tmp_path), ["large.tiff"], [0])
    with pytest.raises(UnreadableImageError, match=r"'large.tiff': expected values from 0 to 255, got 0 to 655350"):
        samples.image(0)


def test_unreadable_images_are_named_with_a_short_reason(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    samples = Samples(Files(tmp_path), ["text.jpg", "absent.jpg"], [0, 0])
    with pytest.raises(PolycovError, match=r"^Cannot read the image 'text.jpg': it is not an image\.$"):
        samples.image(0)
    with pytest.raises(PolycovError, match=r"^Cannot read the image 'absent.jpg': it is missing\.$"):
        samples.image(1)


@pytest.mark.parametrize(("least", "side"), [(None, 400), (64, 100), (100, 100), (101, 200), (201, 400), (900, 400)])
def test_a_jpeg_is_decoded_no_smaller_than_asked(tmp_path: Path, least: int | None, side: int) -> None:
    Image.new("RGB", (400, 800), "red").save(tmp_path / "a.jpg")
    assert read_image(tmp_path / "a.jpg", least=least).size == (side, 2 * side)
    Image.new("RGB", (400, 800), "red").save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", least=least).size == (400, 800)
