"""Where the names of points go in a crowded picture: beside their points, over no other name and no other point.

Every name tries places on rings around its point, the nearest first, and takes the one with the least overlap. Names
in crowds choose first; then all choose again, knowing the others, until none moves.
"""

import numpy as np
import numpy.typing as npt

_ANGLES = np.deg2rad([0, 180, 90, 270, 30, 330, 150, 210, 60, 300, 120, 240])  # to the right is read most easily
_RINGS = 0.75 * np.arange(1.0, 10.0)  # times a name's height, from the point to the name's nearer side
_ROUNDS = 6
_CROSSED = 4.0  # points of distance that a name goes rather than be a tenth of its way to its point over another
_OVERLAP = 1e3  # how many points of distance a name goes to avoid an overlap of one square point

Vectors = npt.NDArray[np.float64]  # (n, 2)
Boxes = npt.NDArray[np.float64]  # (n, 4): left, bottom, right, top


def label_centres(points: Vectors, sizes: Vectors, marks: Boxes, frame: Boxes) -> Vectors:
    """Centres of names (name, 2) of these ``sizes``, in one unit of length such as printer's points.

    ``marks`` (name, 4) are the points as they are drawn, which names must not cover; ``frame`` (1, 4) holds all.
    """
    near = np.linalg.norm(points[:, None] - points[None], axis=2)
    crowded_first = np.argsort(np.sort(near, axis=1)[:, : min(4, len(points))].sum(1), kind="stable")
    centres = np.full_like(points, np.nan)
    for _ in range(_ROUNDS):
        before = centres.copy()
        for index in crowded_first:
            others = np.delete(_boxes(centres, sizes), index, axis=0)
            taken = np.vstack([marks, others[np.isfinite(others).all(axis=1)]])
            foreign = np.delete(marks, index, axis=0)
            centres[index] = _best(points[index], sizes[index], taken, foreign, frame[0])
        if np.array_equal(before, centres):
            break
    return centres


def overlap(boxes: Boxes, others: Boxes) -> npt.NDArray[np.float64]:
    """Common areas (box, other)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    area: npt.NDArray[np.float64] = np.clip(high - low, 0, None).prod(axis=2)
    return area


def _boxes(centres: Vectors, sizes: Vectors) -> Boxes:
    return np.hstack([centres - sizes / 2, centres + sizes / 2])


def _best(
    point: npt.NDArray[np.float64], size: npt.NDArray[np.float64], taken: Boxes, foreign: Boxes, frame: Boxes
) -> Vectors:
    """The place of one name: least overlap, then a short way that crosses no foreign mark, then the first angle."""
    directions = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
    reach = directions * size / 2  # the nearer side of the name, not its centre, is what a ring holds
    candidates = np.vstack([point + directions * ring * size[1] + reach for ring in _RINGS])
    boxes = _boxes(candidates, np.broadcast_to(size, candidates.shape))
    outside = size.prod() - overlap(boxes, frame[None])[:, 0]
    covered = overlap(boxes, taken).sum(axis=1) + outside
    way = np.repeat(_RINGS * size[1], len(_ANGLES)) + _CROSSED * _crossings(point, candidates, foreign)
    best: Vectors = candidates[np.argmin(_OVERLAP * covered + way)]
    return best


def _crossings(point: npt.NDArray[np.float64], candidates: Vectors, foreign: Boxes) -> npt.NDArray[np.int64]:
    """How many tenths of the way to each candidate are within foreign marks; (candidate,)."""
    steps = point + np.linspace(0, 1, 11)[:, None, None] * (candidates - point)  # (step, candidate, 2)
    inside = (steps[:, :, None] >= foreign[:, :2]) & (steps[:, :, None] <= foreign[:, 2:])
    crossed: npt.NDArray[np.int64] = inside.all(axis=3).sum(axis=(0, 2))
    return crossed
