"""Where an image enters: one decoding, one conversion, one size, and nothing that an untrusted file could do."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import numpy as np
from image_support import proof_pictures
from PIL import Image
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from strands_sglang.exceptions import MediaError
from strands_sglang.trajectory.images import ProcessorExpander, open_image
from strands_sglang.trajectory.media import ImageEncoding

PLACEHOLDER = 7


def expander_of(patch: int, fewest: int = 56 * 56, most: int = 256 * 28 * 28) -> ProcessorExpander:
    size = {"shortest_edge": fewest, "longest_edge": most}
    images = Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=size)
    return ProcessorExpander(images, family="qwen2_5_vl", placeholder_id=PLACEHOLDER, other_media_ids=[])


@pytest.fixture(scope="module")
def expander() -> ProcessorExpander:
    return expander_of(14)


def encoded(picture: Any, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def noise(size: tuple[int, int], seed: int = 0) -> Any:
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(size[0] * size[1] * 3))


def decoded(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


# ---- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [14, 16])
@pytest.mark.parametrize("name", proof_pictures())
def test_what_is_sent_is_rgb_in_a_size_that_the_processor_leaves_alone(name: str, patch: int) -> None:
    expander = expander_of(patch)
    entered = expander.prepare(proof_pictures()[name])
    sent = decoded(expander.prepare(proof_pictures()[name]).image)
    assert (sent.format, sent.mode, sent.info) == ("PNG", "RGB", {})
    assert entered.grid == (1, sent.height // patch, sent.width // patch)
    assert entered.span.tolist() == [PLACEHOLDER] * (sent.height * sent.width // (2 * patch) ** 2)
    # The arrays for the model are those pixels, scaled: undone, they give the picture.
    values = expander.pixels(entered.image)["pixel_values"]
    high, wide = sent.height // patch // 2, sent.width // patch // 2
    rows = values.reshape(high, wide, 2, 2, 3, 2, patch, patch)[:, :, :, :, :, 0]
    rows = rows.transpose(0, 2, 5, 1, 3, 6, 4).reshape(sent.height, sent.width, 3)
    back = (rows * np.array(OPENAI_CLIP_STD) + np.array(OPENAI_CLIP_MEAN)) * 255
    assert np.array_equal(np.rint(back).astype(int), np.asarray(sent).astype(int))


@pytest.mark.parametrize("encoding", ImageEncoding)
@pytest.mark.parametrize("name", ["photo", "palette"])
def test_what_has_entered_once_enters_again_unchanged(expander, name, encoding):
    once = expander.prepare(proof_pictures()[name], encoding=encoding)
    assert once.data.startswith(f"data:image/{encoding};base64,")
    again = expander.prepare(once.image, encoding=encoding)
    assert (again.data, again.digest, again.grid) == (once.data, once.digest, once.grid)


def test_sizes_are_those_of_the_processor_and_settle() -> None:
    seeded = random.Random(1)
    for fewest, most in ((56 * 56, 1 << 20), (100 * 28 * 28, 140 * 28 * 28), (4 * 28 * 28, 16 * 28 * 28)):
        expander = expander_of(14, fewest, most)
        for _ in range(8):
            size = seeded.randint(1, 900), seeded.randint(1, 900)
            if max(size) > 200 * min(size):
                continue
            entered = expander.prepare(encoded(Image.new("RGB", size)))
            own = expander.pixels(encoded(Image.new("RGB", decoded(entered.image).size)))["image_grid_thw"][0]
            assert tuple(own.tolist()) == entered.grid
            first = tuple(expander.pixels(encoded(Image.new("RGB", size)))["image_grid_thw"][0].tolist())
            if most == 1 << 20:
                assert entered.grid == first


def test_a_processor_that_leaves_no_size_alone_is_refused() -> None:
    with pytest.raises(MediaError, match="min_pixels and max_pixels"):
        expander_of(14, 100 * 28 * 28, 101 * 28 * 28).prepare(encoded(Image.new("RGB", (449, 508))))


# ---- conversions -----------------------------------------------------------------------------------------------------


def seen(picture: Any, form: str = "PNG", **options: Any) -> Any:
    return np.asarray(open_image(encoded(picture, form, **options)).picture)


def test_transparent_parts_are_white() -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    assert seen(clear)[0, 0].tolist() == [255, 255, 255] and seen(clear)[0, 1].tolist() == [10, 20, 30]
    half = Image.new("LA", (4, 4), (0, 51))
    assert seen(half)[0, 0].tolist() == [204, 204, 204]
    keyed = Image.new("RGB", (4, 4), (1, 2, 3))
    assert (seen(keyed, transparency=(1, 2, 3)) == 255).all()
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    assert (seen(palette, transparency=1) == 255).all()
    assert seen(palette)[0, 0].tolist() == [200, 100, 50]


@pytest.mark.parametrize("orientation", range(2, 9))
def test_pictures_stand_upright(orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = encoded(noise((6, 4)), exif=exif)
    assert np.array_equal(np.asarray(open_image(stored).picture), np.asarray(ImageOps.exif_transpose(decoded(stored))))


def test_sixteen_bits_are_scaled_and_not_cut_off() -> None:
    values = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    assert np.array_equal(seen(Image.fromarray(values))[:, :, 0], np.arange(256).reshape(16, 16))


def test_cmyk_becomes_rgb() -> None:
    assert seen(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF")[0, 0].tolist() == [255, 0, 0]


def test_of_an_animation_the_first_frame_is_seen() -> None:
    frames = [Image.new("RGB", (5, 5), color) for color in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.asarray(open_image(data).picture)[0, 0].tolist() == [255, 0, 0]


# ---- files from outside ----------------------------------------------------------------------------------------------


def huge_png(width: int, height: int) -> bytes:
    """A file of a few bytes that says to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (huge_png(9000, 9000), "cannot be processed"),
        (huge_png(100_000, 100_000), "cannot be processed"),
        (b"no picture", "cannot be processed"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be processed"),
        (encoded(Image.new("F", (5, 5), 0.5), "TIFF"), "floating-point"),
        (encoded(Image.new("I", (5, 5), 1 << 20), "TIFF"), "more than 16 bits"),
    ],
    ids=["large", "bomb", "text", "eps", "floats", "wide integers"],
)
def test_what_is_huge_or_no_picture_of_a_known_range_is_a_typed_error(data: bytes, words: str) -> None:
    with pytest.raises(MediaError, match=words):
        open_image(data)


@pytest.mark.filterwarnings("ignore")  # those of decoders
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_cut_off_and_damaged_files_are_typed_errors(form: str) -> None:
    whole = encoded(noise((40, 30)), form)
    seeded = random.Random(form)
    for cut in {*range(0, 60), *(seeded.randrange(len(whole)) for _ in range(25))}:
        with pytest.raises(MediaError):
            open_image(whole[:cut])
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(seeded.randint(1, 6)):
            damaged[seeded.randrange(min(len(damaged), 300))] = seeded.randrange(256)
        try:
            opened = open_image(bytes(damaged))
        except MediaError:
            continue
        assert opened.picture.mode == "RGB"
