"""Image files to one array of bytes, all of one size; a file that cannot be read is an error with its name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedquilt.core.memory import check_bytes
from fedquilt.core.plain import Array
from fedquilt.data.sizes import checked_image
from fedquilt.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def decoded(paths: Sequence[Path], size: int) -> Array:
    """RGB images, uint8 [n, 3, size, size]: the shorter side scaled to ``size``, the middle of the longer one kept.

    Threads decode at the same time (Pillow lets go of the interpreter meanwhile); the order is that of the paths.
    """
    check_size(size)
    check_bytes(3 * size * size * len(paths), f"{len(paths)} images of size {size}")
    try:
        images = np.empty((len(paths), 3, size, size), np.uint8)
    except MemoryError as error:
        raise InputError(f"{len(paths)} images of size {size} need more memory than there is. Try 64.") from error

    def one(place: int) -> None:
        images[place] = decoded_one(paths[place], size)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(one, range(len(paths))):
            pass
    return images


def fitted(image: Image.Image, size: int) -> Array:
    """One image as RGB bytes [3, size, size], scaled and cut in the middle."""
    from PIL import Image, ImageOps

    fit = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
    return np.asarray(fit).transpose(2, 0, 1)


def check_size(size: object) -> None:
    """Raise unless images can be brought to this size."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"size must be a whole number of pixels, got {size!r}. Try 64.")


def decoded_one(path: Path, size: int) -> Array:
    """One of these images."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            checked_image(image, path)
            image.draft("RGB", (2 * size, 2 * size))  # JPEG only: much larger ones are decoded at a fraction
            return fitted(image, size)
    except FileNotFoundError as error:
        raise InputError(f"There is no image {path}. Unpack the images of the data set there.") from error
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # the second, where warnings raise
        raise InputError(f"{path} has too many pixels: {error}. Make it smaller, or take it out.") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an image: {error}. Replace it, or take it out.") from error
