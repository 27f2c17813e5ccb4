"""The colours of the charts."""

from collections.abc import Sequence

INK, FAINT, RULE = "#1a1a1a", "#595959", "#d0d0d0"
IDLE = "#e8e8e8"
OTHERS = "#c4c4c4"  # ops of other ranges
MEMORY = "#8a8f99"  # that is live
# A whole, and what makes it less or more: blue and orange, which nobody confuses.
WHOLE, LESS, MORE = "#4d4d4d", "#3b7dc4", "#e08214"
# The two sides of a comparison, where both stand in one picture.
BASE, NEW = "#c44916", "#0127bb"

# One colour per family in all charts, in the order of `FAMILIES`: any two are far enough apart for normal sight and
# for protan, deutan and tritan readers (a test measures it), and adjacent parts of a bar have a white edge between
# them.
COLOURS = {
    "gemm": "#203c78",
    "attention": "#57b2f7",
    "softmax": "#8055c1",
    "elementwise": "#e99622",
    "reduction": "#ca65b7",
    "copy": "#f7e617",
    "fill": "#b9aa74",
    "mask": "#c44916",
    "norm": "#179c83",
    "rng": "#b9f7bb",
    "communication": "#6c0819",
    "memcpy": "#3d3947",
    "memset": "#b9caf2",
    "migration": "#a80cf0",
    "graph": "#0a6a80",
    "other": "#7d6747",
}
# What a GPU waits for, by cause, or where that is the host by what it did: some of the same colours, and greys.
WAITS = {
    "compute": WHOLE,
    "communication": COLOURS["communication"],
    "copy": COLOURS["graph"],
    "kernel": COLOURS["norm"],
    "OS calls": COLOURS["attention"],
    "code": COLOURS["elementwise"],
    "launch calls": COLOURS["softmax"],
    "synchronizing calls": COLOURS["mask"],
    "other CUDA calls": COLOURS["reduction"],
    "latency": COLOURS["fill"],
    "profiler": COLOURS["rng"],
    "unknown": OTHERS,
}
# Ranges are pale, with their names in them: colour proper is for families.
TINTS = ("#a9cbe8", "#f2c393", "#b2d8aa", "#cdb6e0", "#eeb1be", "#e3d88a", "#a3d6d6", "#cbc0b0")


def _channels(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def _luminance(channels: Sequence[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def readable(colour: str) -> str:
    """Return the colour, darkened until text in this colour is readable on white (WCAG contrast of 4.5)."""
    channels = _channels(colour)
    while _luminance(channels) > 1.05 / 4.5 - 0.05:
        channels = [channel * 0.95 for channel in channels]
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


def text_on(colour: str) -> str:
    """Return the text colour that is more readable on this colour (WCAG contrast)."""
    return "black" if _luminance(_channels(colour)) > 0.179 else "white"
