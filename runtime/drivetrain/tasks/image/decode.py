"""Decodes an image file to a square of 8-bit pixels, in the same way for training, validation and prediction.

Rules: the first frame of an animation; upright by EXIF; transparency over white, or over another ground if nothing
would be visible on white; 16 bits scaled to 8, by the range of the training files; CMYK and palettes as Pillow converts
them; square by `data.fit` (center crop, padding with black, or squashing), resized with antialiasing. A JPEG much
larger than needed is decoded at 1/2, 1/4 or 1/8 scale, but never below twice the target size.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin, UnidentifiedImageError, features

from drivetrain.hardware import cgroup
from drivetrain.tasks.image.resize import DEFAULT_RESIZE, GROUNDS, Resize, pad_sides

_AVIF = features.check("avif")  # a Pillow that was built without it
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", *(("AVIF",) if _AVIF else ()))
# Some programs store whole documents in the metadata; Pillow's limits, 1 and 64 MB, are for readers that keep the text.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 64 << 20

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_GREY = ("1", "L", "LA", "I;16", "I;16B", "I;16L", "I;16N")
_BITS, _PHOTOMETRIC, _COMPRESSION, _PLANES = 258, 262, 259, 284
"""Tags of TIFF: bits of a sample, meaning of 0, compression, and storage of channels together or separately."""
MAX_UNSEEN_DIFFERENCE = 8
"""Largest difference of pixels, of 255, that count as one color."""
_MEASURED_PIXELS = 100_000
"""Largest number of pixels of a file used to compute percentiles."""
_CHECKED_SIDE = 64
"""Smallest side for decoding a JPEG that is only checked; all of its data is read anyway."""
_CHUNK = 256
"""Number of images that a thread takes at a time, and of image lines that are hashed at a time."""
_END = b"\xff\xd9"
"""Last two bytes of a JPEG."""
_MEMORY_DIVISOR = 4
"""Divisor of the memory limit that gives the largest decoded image, with 4 bytes per pixel."""
_LARGE_IMAGE_LOCK = threading.Lock()
"""Lock held while an unusually large image is decoded, so that threads never hold several in memory at once."""

Source = str | bytes
"""Path, or the content of an image file."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class UnreadableImage(Exception):
    """Error for an image that cannot be used; the text is the reason."""


class ImageHeader(NamedTuple):
    """Properties of an image file, without its pixels; the default values are for opaque 8-bit files."""

    short_side: int
    """Shorter side, in pixels of the file."""
    grey: bool
    """Whether the file is stored without color."""
    oblong: bool
    """Whether the image is not square."""
    range_16_bit: tuple[float, float, float, float] | None = None
    """Smallest value, 1st and 99th percentile and largest value of a gray file with 16 bits; else None."""
    color_16_bit: int | None = None
    """Largest value of the upper 8 bits, which Pillow keeps, of a color file with 16 bits per channel; else None."""
    invisible_over: tuple[str, ...] | None = None
    """Grounds on which the pixels of a file with transparent pixels have one color; None without transparency."""
    colors_without_alpha: bool = False
    """Whether no pixel is visible but colors differ: the fourth channel is no transparency."""
    content: int = 0
    """Digest of the pixels; equal for copies with another name, other metadata or another lossless format."""

    def is_usual(self) -> bool:
        """Return whether the file has opaque pixels of 8 bits."""
        return self[3:7] == (None, None, None, False)


def pixels(source: Source, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> npt.NDArray[np.uint8]:
    """Decode an image to a square; shape (channels, size, size), with 1 channel for gray, 3 for red, green, blue.

    Raises:
        UnreadableImage: with the reason.
    """
    return _complete_jpeg(source, lambda content: _decode_square(content, size, channels, resize))


def _decode_square(source: Source, size: int, channels: int, resize: Resize) -> npt.NDArray[np.uint8]:
    mode = "L" if channels == 1 else "RGB"
    with _open(source) as image:
        # A JPEG stores luma separately, so decoding to gray needs no conversion.
        needed_side = math.ceil(2 * size / resize.share)
        drafted = image.draft("L" if channels == 1 else None, (needed_side, needed_side))
        flat = _flatten(image, mode, resize)
        # At 1/8 scale 601 pixels become 76 columns, and the last column covers less than 8 pixels.
        width, height = drafted[1][2:] if drafted else flat.size
        resized = _resize_to_square(flat, width, height, size, resize)
        rotation = _UPRIGHT.get(_orientation(image))
        array = np.asarray(resized if rotation is None else resized.transpose(rotation))
    return array.reshape(size, size, channels).transpose(2, 0, 1)


def _resize_to_square(flat: Image.Image, width: float, height: float, size: int, resize: Resize) -> Image.Image:
    """Resize the top left part of an image, `width` x `height` pixels, to a square."""
    filter_ = Image.Resampling[resize.interpolation.upper()]
    if resize.fit != "pad":
        part_width, part_height = resize.kept(width, height)
        first_x, top = (width - part_width) / 2, (height - part_height) / 2
        return flat.resize((size, size), filter_, (first_x, top, first_x + part_width, top + part_height))
    inner = pad_sides((width, height), size)
    resized = flat.resize(inner, filter_, (0, 0, width, height))
    square = Image.new(flat.mode, (size, size))
    square.paste(resized, ((size - inner[0]) // 2, (size - inner[1]) // 2))
    return square


def look(source: Source) -> ImageHeader:
    """Decode the image once, and discard the pixels.

    Raises:
        UnreadableImage: with the reason.
    """
    return _complete_jpeg(source, _read_header)


def _read_header(source: Source) -> ImageHeader:
    with _open(source) as image:
        header = ImageHeader(min(image.size), grey=False, oblong=image.width != image.height)
        # Only before it is loaded does a file show whether Pillow keeps only the upper 8 bits.
        tiles = getattr(image, "tile", [])
        has_color_of_16_bits = bool(tiles) and ";16" in str(tiles[0][3]) and not image.mode.startswith("I;16")
        image.draft(None, (_CHECKED_SIDE, _CHECKED_SIDE))
        if image.mode.startswith("I;16"):
            values = _read_16_bit(image)
            low, high = (
                float(value) for value in np.percentile(values.ravel()[:: -(-values.size // _MEASURED_PIXELS)], (1, 99))
            )
            header = header._replace(range_16_bit=(float(values.min()), low, high, float(values.max())))
        elif image.has_transparency_data:
            header = _add_visibility(header, image.convert("RGBA"))
        flat = _flatten(image, "RGB")
        if has_color_of_16_bits:
            header = header._replace(color_16_bit=max(high for _, high in _extremes(flat)))
        return header._replace(grey=image.mode in _GREY, content=_digest(_to_comparable(image, flat)))


def _complete_jpeg(source: Source, decode: Callable[[Source], Result]) -> Result:
    """Decode an image; a JPEG that lacks nothing but its last two bytes, as some cameras leave them out, gets them."""
    try:
        return decode(source)
    except UnreadableImage as error:
        with suppress(OSError, UnreadableImage):
            # Reading a pipe would block forever.
            content = Path(source).read_bytes() if isinstance(source, str) and os.path.isfile(source) else source
            if isinstance(content, bytes) and content[:2] == b"\xff\xd8" and not content.endswith(_END):
                content = content.removesuffix(_END[:1])
                # If more bytes before the end change the pixels, some pixels are missing, not only the end.
                if _decode_fully(content + _END) == _decode_fully(content + b"\x55" * 64 + _END):
                    return decode(content + _END)
        raise error


def _decode_fully(content: bytes) -> bytes:
    with _open(content) as image:
        image.load()
        return image.tobytes()


def _to_comparable(image: Image.Image, flat: Image.Image) -> Image.Image:
    """Return a loaded image upright, in a form equal for copies: RGB, as `flat`, unless that drops content."""
    # Two images may differ only in the part that flattening drops.
    if image.mode.startswith("I;16"):
        values = _read_16_bit(image)
        unit = 1 if values.max() <= 255 else 257
        has_8_bits = not (values % unit).any()
        flat = Image.fromarray((values / unit).astype(np.uint8)).convert("RGB") if has_8_bits else image
    elif image.has_transparency_data:
        layers = image.convert("RGBA")
        flat = flat if layers.getchannel("A").getextrema() == (255, 255) else layers
    rotation = _UPRIGHT.get(_orientation(image))
    return flat if rotation is None else flat.transpose(rotation)


def _digest(image: Image.Image) -> int:
    """Return a digest of the pixels in strips, since a copy of a large image would take as much memory again."""
    digest = hashlib.sha256(repr((image.size, image.mode)).encode())
    for top in range(0, image.height, _CHUNK):
        digest.update(image.crop((0, top, image.width, min(top + _CHUNK, image.height))).tobytes())
    return int.from_bytes(digest.digest()[:8], signed=True)


def map_on_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Apply `function` to every item, in order, on as many threads as torch may use; decoding releases the GIL."""
    # Imported here, since `drivetrain init`, which reads a few image headers, needs no torch.
    import torch

    threads = torch.get_num_threads()
    if threads == 1 or len(items) < 2:
        return [function(item) for item in items]
    size = min(_CHUNK, -(-len(items) // threads))
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(threads) as pool:
        parts = pool.map(lambda chunk: [function(item) for item in chunk], chunks)
        return [result for part in parts for result in part]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Pillow's warnings about odd metadata, which do not affect pixels, and about size, which is checked.

    Enter it once around many files and their threads, because all threads share Python's warning filters.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _open(source: Source) -> Iterator[Image.Image]:
    """Open an image; its pixels are not decoded yet."""
    try:
        # Opening a pipe would block forever.
        if isinstance(source, str) and not stat.S_ISREG(os.stat(source).st_mode):
            raise UnreadableImage("not a file")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            tags = getattr(image, "tag_v2", {})
            if tags.get(_PLANES) == 2 and tags.get(_COMPRESSION, 1) == 1 and max(tags.get(_BITS, (1,))) > 8:
                raise UnreadableImage(
                    "16 bits a channel in separate planes without compression, which Pillow reads as noise; "
                    "save it with interleaved channels, or compressed"
                )
            large = image.width * image.height > _usual_pixel_limit()
            with _LARGE_IMAGE_LOCK if large else nullcontext():
                yield image
    except (UnreadableImage, MemoryError):
        raise
    # Pillow raises nearly anything for a damaged file: OSError, SyntaxError, IndexError, struct.error, ...
    except Exception as error:
        raise UnreadableImage(_describe_error(source, error)) from None


def _describe_error(source: Source, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        size = len(source) if isinstance(source, bytes) else os.path.getsize(source)
        return "empty file" if size == 0 else f"none of {', '.join(FORMATS)}"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {2 * _usual_pixel_limit():,} pixels"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error) or type(error).__name__


def _flatten(image: Image.Image, mode: str, resize: Resize = DEFAULT_RESIZE) -> Image.Image:
    """Return the whole image in 8 bits without transparency."""
    pixels = image.width * image.height
    if pixels > _usual_pixel_limit() and 4 * _MEMORY_DIVISOR * pixels > cgroup.read_memory_limit():
        raise UnreadableImage(f"{image.width:,} x {image.height:,} pixels, too many for the memory limit")
    image.load()
    if image.mode.startswith("I;16"):
        low, high = resize.range_16_bit or (0, 65535)
        levels = (_read_16_bit(image) - np.float32(low)) / np.float32((high - low) / 255)
        image = Image.fromarray(np.rint(levels.clip(0, 255)).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise UnreadableImage("32-bit pixels with an unknown range; save it with 8 or 16 bits")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        if not _is_without_alpha(image):
            image = Image.alpha_composite(Image.new("RGBA", image.size, resize.ground), image)
    return image if image.mode == mode else image.convert(mode)


def _read_16_bit(image: Image.Image) -> npt.NDArray[np.float32]:
    """Read a gray image with 16 bits as float32, and invert a TIFF whose 0 is white, which Pillow does not."""
    values = np.asarray(image, np.float32)
    tags = getattr(image, "tag_v2", {})
    if tags.get(_PHOTOMETRIC) == 0:
        return np.float32(2 ** tags.get(_BITS, (16,))[0] - 1) - values
    return values


def _add_visibility(header: ImageHeader, image: Image.Image) -> ImageHeader:
    """Add to the header of an RGBA image the grounds on which nothing of it is visible."""
    if image.getchannel("A").getextrema() == (255, 255):
        return header
    if _is_without_alpha(image):
        return header._replace(colors_without_alpha=True)
    on_grounds = {name: Image.alpha_composite(Image.new("RGBA", image.size, name), image) for name in GROUNDS}
    invisible = tuple(name for name, over in on_grounds.items() if _is_of_one_color(over.convert("RGB")))
    return header._replace(invisible_over=invisible)


def _is_without_alpha(image: Image.Image) -> bool:
    """Return whether an RGBA image has no visible pixel but several colors: a BMP of 32 bits whose fourth byte is 0."""
    return image.getchannel("A").getextrema() == (0, 0) and not _is_of_one_color(image.convert("RGB"))


def _is_of_one_color(image: Image.Image) -> bool:
    """Return whether all pixels of an RGB image have nearly the same color."""
    return all(high - low <= MAX_UNSEEN_DIFFERENCE for low, high in _extremes(image))


def _extremes(image: Image.Image) -> tuple[tuple[int, int], ...]:
    """Return the smallest and largest value of each channel of an RGB image."""
    return image.getextrema()  # type: ignore[return-value]


def _usual_pixel_limit() -> int:
    """Return the number of pixels above which Pillow calls an image unusually large; it refuses twice as many."""
    return Image.MAX_IMAGE_PIXELS or 1 << 62


def _orientation(image: Image.Image) -> int:
    """Read the EXIF orientation, 1 to 8; 1 if the metadata cannot be read, since the pixels still can."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1
