"""The label distribution of a partition as an SVG picture: one stacked bar per device, one colour per class."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from heliomesh.pages.colours import class_colours
from heliomesh.pages.drawing import drawing, svg_text

_MOST_DEVICES_TOLD = 20
_CLASSES_A_COLUMN = 14  # of the legend
_MOST_VECTORS = 2000  # pieces of bars; more are drawn as pixels, which keeps the file small
_BAR_WIDTH = 0.84  # of a device's place on the axis; the rest is a gap


def label_mix_svg(
    counts: npt.NDArray[np.int64], class_names: Sequence[str] | None = None, title: str = "Samples of each device"
) -> str:
    """SVG text of ``counts`` (device, class), as `Partition.label_counts` gives them; bar heights are samples."""
    names = list(map(str, range(counts.shape[1]))) if class_names is None else list(class_names)
    if len(names) != counts.shape[1]:
        raise ValueError(f"class_names: expected {counts.shape[1]}, one per class, actual value {len(names)}")
    with drawing():
        return svg_text(label_mix(counts, names, title), title, _description(counts, names))


def label_mix(counts: npt.NDArray[np.int64], names: Sequence[str], title: str) -> Figure:
    """The picture; every class is one path."""
    devices, classes = counts.shape
    columns = -(-classes // _CLASSES_A_COLUMN)
    figure = Figure(figsize=(9 + columns, 3.8), layout="constrained")
    panel = figure.subplots()
    edges = (np.arange(devices)[:, None] + [-_BAR_WIDTH / 2, _BAR_WIDTH / 2]).ravel()
    tops = np.cumsum(counts, axis=1)
    for name, colour, top, count in zip(names, class_colours(classes), tops.T, counts.T, strict=True):
        bars = panel.stairs(_spaced(top), edges, baseline=_spaced(top - count), fill=True, color=colour, label=name)
        bars.set_rasterized(counts.size > _MOST_VECTORS)
    panel.set(title=title, xlabel="device", ylabel="samples", xlim=(-0.6, devices - 0.4), ylim=(0, None))
    panel.locator_params(axis="x", nbins=20, integer=True)
    figure.legend(loc="outside right upper", ncols=columns, title="class")
    return figure


def _spaced(heights: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The heights of bars with nothing between them."""
    spaced = np.full(2 * len(heights) - 1, np.nan)
    spaced[::2] = heights
    return spaced


def _description(counts: npt.NDArray[np.int64], names: Sequence[str]) -> str:
    """What the picture shows, for those who cannot see it."""
    sizes = counts.sum(1)
    common = counts.argmax(1)
    share = (counts.max(1) / np.maximum(sizes, 1)).mean()
    each = "; ".join(
        f"device {device}: {size} samples, commonest class {names[label]}"
        for device, (size, label) in enumerate(zip(sizes.tolist(), common.tolist(), strict=True))
        if device < _MOST_DEVICES_TOLD
    )
    more = "" if len(sizes) <= _MOST_DEVICES_TOLD else f"; and {len(sizes) - _MOST_DEVICES_TOLD} more devices"
    return (
        f"Stacked bars of {len(sizes)} devices and {len(names)} classes. Devices own {sizes.min()} to {sizes.max()} "
        f"samples; the commonest class of a device is {share:.0%} of its samples on average. {each}{more}."
    )
