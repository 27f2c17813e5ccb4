"""Pixels to PNG, twice as fast as the general way: charts are mostly rows that equal the row above."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_UP = (
    2  # the filter that keeps of every row its difference from the one above (PNG specification, section 9.2)
)
_RGB = 2


def png(pixels: NDArray[np.uint8], dpi: int) -> bytes:
    """The PNG file of an image of shape (height, width, 3 or more), uint8; all but red, green and blue is dropped."""
    height, width = pixels.shape[:2]
    rgb = np.ascontiguousarray(pixels[:, :, :3]).reshape(height, 3 * width)
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = _UP
    rows[0, 1:] = rgb[0]
    np.subtract(rgb[1:], rgb[:-1], out=rows[1:, 1:])
    per_metre = round(dpi / 0.0254)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)),
            _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            _chunk(b"IDAT", zlib.compress(rows.data, 2)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
