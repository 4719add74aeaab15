"""The label distribution of a partition as an SVG picture: one stacked bar per device, one colour per class."""

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from heliomesh.report.colours import class_colours

_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 64, 44, 600, 240  # [px]
_LEGEND_WIDTH, _LEGEND_STEP = 150, 20  # [px]
_MOST_DEVICE_TICKS = 20
_BAR_SHARE = 0.84  # of a device's place on the axis; the rest is a gap


def label_mix_svg(
    counts: npt.NDArray[np.int64], class_names: Sequence[str] | None = None, title: str = "Samples of each device"
) -> str:
    """SVG text of ``counts`` (device, class), as `Partition.label_counts` gives them; bar heights are samples."""
    classes = counts.shape[1]
    names = [str(label) for label in range(classes)] if class_names is None else list(class_names)
    if len(names) != classes:
        raise ValueError(f"class_names: expected {classes}, one per class, actual value {len(names)}")
    height = _TOP + max(_PLOT_HEIGHT + 48, classes * _LEGEND_STEP + 12)
    width = _LEFT + _PLOT_WIDTH + _LEGEND_WIDTH
    colours = class_colours(classes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12" fill="#222222">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(_description(counts, names))}</desc>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *_bars(counts, colours),
        *_axes(counts),
        *_legend(names, colours),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _description(counts: npt.NDArray[np.int64], names: Sequence[str]) -> str:
    """What the picture shows, for those who cannot see it."""
    sizes = counts.sum(1)
    common = counts.argmax(1)
    share = (counts.max(1) / np.maximum(sizes, 1)).mean()
    each = "; ".join(
        f"device {device}: {size} samples, commonest class {names[label]}"
        for device, (size, label) in enumerate(zip(sizes.tolist(), common.tolist(), strict=True))
        if device < _MOST_DEVICE_TICKS
    )
    more = "" if len(sizes) <= _MOST_DEVICE_TICKS else f"; and {len(sizes) - _MOST_DEVICE_TICKS} more devices"
    return (
        f"Stacked bars of {len(sizes)} devices and {len(names)} classes. Devices own {sizes.min()} to {sizes.max()} "
        f"samples; the commonest class of a device is {share:.0%} of its samples on average. {each}{more}."
    )


def _bars(counts: npt.NDArray[np.int64], colours: Sequence[str]) -> list[str]:
    """One path per class, with a rectangle for every device that owns some of it."""
    place = _PLOT_WIDTH / len(counts)
    bottom = _TOP + _PLOT_HEIGHT
    scale = _PLOT_HEIGHT / _top_of_axis(counts)
    above = np.cumsum(counts, axis=1)
    paths = []
    for label, colour in enumerate(colours):
        rectangles = "".join(
            f"M{_LEFT + (device + (1 - _BAR_SHARE) / 2) * place:.2f} {bottom - scale * above[device, label]:.2f}"
            f"h{_BAR_SHARE * place:.2f}v{scale * counts[device, label]:.2f}h{-_BAR_SHARE * place:.2f}z"
            for device in np.flatnonzero(counts[:, label]).tolist()
        )
        paths.append(f'<path fill="{colour}" d="{rectangles}"/>')
    return paths


def _axes(counts: npt.NDArray[np.int64]) -> list[str]:
    devices, most = len(counts), _top_of_axis(counts)
    bottom, place = _TOP + _PLOT_HEIGHT, _PLOT_WIDTH / devices
    every = -(-devices // _MOST_DEVICE_TICKS)
    lines = [f'<path stroke="#222222" fill="none" d="M{_LEFT} {_TOP}V{bottom}H{_LEFT + _PLOT_WIDTH}"/>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _PLOT_HEIGHT
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{share * most:g}</text>')
    for device in range(0, devices, every):
        x = _LEFT + (device + 0.5) * place
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{device}</text>')
    middle = _LEFT + _PLOT_WIDTH / 2
    lines.append(f'<text x="{middle:.0f}" y="{bottom + 36}" text-anchor="middle">device</text>')
    turned = f"rotate(-90 16 {_TOP + _PLOT_HEIGHT // 2})"
    lines.append(
        f'<text x="16" y="{_TOP + _PLOT_HEIGHT // 2}" text-anchor="middle" transform="{turned}">samples</text>'
    )
    return lines


def _top_of_axis(counts: npt.NDArray[np.int64]) -> int:
    return max(int(counts.sum(1).max()), 1)


def _legend(names: Sequence[str], colours: Sequence[str]) -> list[str]:
    x = _LEFT + _PLOT_WIDTH + 16
    lines = []
    for label, (name, colour) in enumerate(zip(names, colours, strict=True)):
        y = _TOP + label * _LEGEND_STEP
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}" stroke="#222222"/>')
        lines.append(f'<text x="{x + 18}" y="{y + 11}">{escape(name)}</text>')
    return lines
