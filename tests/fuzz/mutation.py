"""Ways to spoil what is right: bytes, plain data (as in TOML and JSON) and arrays."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 63, 64, 65, 255, 10_000_001, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.0, -0.0, 0.5, 1.0, 1.5, 0.999999999, 1e-320, 1e-300, 1e-150, 1e-12, 1e-6, 1e3, 1e6, 1e12, 1e150, 1e300),
    *(1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), -1e-9, -1.0, -1e300),
)
TEXTS = (
    "",
    " ",
    "tiny",
    "random",
    "uniform",
    "../..",
    "/",
    "a\x00b",
    "\ufeff",
    "é",
    "𝔘" * 40,
    "x" * 3000,
    "1e9",
    "nan",
)
OTHERS: tuple[Any, ...] = (True, False, [], {}, [[]], [0], [{}], {"a": 1}, [1, "a"], [[1.0], [2.0, 3.0]])
BYTES = (b"\x00", b"\xff", b"\n", b"\r", b"\\", b'"', b"[", b"]", b"{", b"}", b"=", b",", b"-", b".", b"e", b"9" * 40)


def value(rng: Rng) -> Any:
    """A value of any kind; most are numbers."""
    pool = (NUMBERS, NUMBERS, TEXTS, OTHERS)[rng.integers(4)]
    return copy.deepcopy(pool[rng.integers(len(pool))])


def spoiled_bytes(rng: Rng, content: bytes) -> bytes:
    """The content after one to four cuts, copies, flips or insertions."""
    spoiled = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        start = int(rng.integers(len(spoiled) + 1))
        stop = min(len(spoiled), start + int(2 ** rng.uniform(0, 7)))
        match rng.integers(6):
            case 0:
                del spoiled[start:]
            case 1:
                del spoiled[start:stop]
            case 2:
                spoiled[start:start] = spoiled[start:stop]
            case 3 if start < len(spoiled):
                spoiled[start] ^= 1 << int(rng.integers(8))
            case 4:
                spoiled[start:start] = BYTES[rng.integers(len(BYTES))]
            case _:
                spoiled[start:stop] = rng.bytes(stop - start)
    return bytes(spoiled)


def spoiled_text(rng: Rng, text: str) -> bytes:
    """Text with one of its words, lines or bytes changed."""
    match rng.integers(3):
        case 0:
            words = text.split(" ")
            words[rng.integers(len(words))] = str(value(rng))
            return " ".join(words).encode("utf-8", "surrogatepass")
        case 1:
            lines = text.splitlines()
            if not lines:
                return b"\n"
            here, there = rng.integers(len(lines), size=2)
            lines[here], lines[there] = lines[there], lines[here] + str(value(rng)) * int(rng.integers(2))
            return "\n".join(lines).encode("utf-8", "surrogatepass")
        case _:
            return spoiled_bytes(rng, text.encode())


def spoiled_tree(rng: Rng, tree: Any, times: int = 1) -> Any:
    """A copy of nested plain data in which some entries were replaced, removed, renamed or added."""
    root = {"": copy.deepcopy(tree)}
    for _ in range(times):
        holder, key = _anywhere(rng, root)
        action = rng.integers(6)
        if action == 0 and holder is not root:
            del holder[key]
        elif action == 1 and isinstance(holder, dict) and holder is not root:
            holder[f"{key}{'_x' * int(rng.integers(2))}"] = holder.pop(key)
        elif action == 2 and isinstance(holder[key], dict):
            holder[key][str(rng.choice(TEXTS))] = value(rng)
        elif action == 3 and isinstance(holder[key], list):
            holder[key].insert(int(rng.integers(len(holder[key]) + 1)), value(rng))
        else:
            holder[key] = value(rng)
    return root[""]


def _anywhere(rng: Rng, root: dict[str, Any]) -> tuple[Any, Any]:
    """A holder and a key of a random entry; deep ones are as likely as shallow ones."""
    places: list[tuple[Any, Any]] = []
    stack: list[tuple[Any, Any]] = [(root, "")]
    while stack:
        holder, key = stack.pop()
        places.append((holder, key))
        inner = holder[key]
        if isinstance(inner, dict):
            stack += [(inner, name) for name in inner]
        elif isinstance(inner, list):
            stack += [(inner, index) for index in range(len(inner))]
    return places[rng.integers(len(places))]


_DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex128",
    "U3",
    "S2",
)
_ENTRIES = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, 1e-320, 2**40, 300.0)


def spoiled_array(rng: Rng, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of another type, shape or content."""
    with np.errstate(all="ignore"):
        return np.asarray(_ARRAY_CHANGES[rng.integers(len(_ARRAY_CHANGES))](rng, array))


def _other_type(rng: Rng, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        return array.astype(_DTYPES[rng.integers(len(_DTYPES))])
    except ValueError:  # text that is no number
        return np.zeros(array.shape)


def _other_entries(rng: Rng, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    changed = array.astype(np.float64) if array.dtype.kind in "biuf" else np.zeros(array.shape)
    if changed.size:
        changed.flat[rng.integers(changed.size, size=int(rng.integers(1, 5)))] = rng.choice(_ENTRIES)
    with np.errstate(all="ignore"):
        return changed if rng.random() < 0.5 or array.dtype.kind not in "biuf" else changed.astype(array.dtype)


def _other_shape(rng: Rng, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    match rng.integers(6):
        case 0:
            return array.reshape(-1)
        case 1:
            return array[..., None]
        case 2 if array.ndim:
            axis = int(rng.integers(array.ndim))
            return np.take(array, range(array.shape[axis] // 2), axis)
        case 3 if array.ndim:
            return np.concatenate([array, array], int(rng.integers(array.ndim)))
        case 4 if array.size:
            return array.reshape(-1)[0]
        case _:
            return array.T


def _foreign(rng: Rng, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array(["text", [], 5, 1.5j, b"raw", [[1], [2]]][rng.integers(6)])


def _objects(rng: Rng, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(object)  # numpy stores it as a pickle, which must not be read


_ARRAY_CHANGES: tuple[Callable[[Rng, np.ndarray[Any, Any]], np.ndarray[Any, Any]], ...] = (
    _other_type,
    _other_entries,
    _other_entries,
    _other_shape,
    _other_shape,
    _foreign,
    _objects,
)


def spoiled_arrays(rng: Rng, arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Named arrays of which some were changed, removed, renamed or added."""
    changed = dict(arrays)
    for _ in range(rng.integers(1, 4)):
        name = list(arrays)[rng.integers(len(arrays))]
        action = rng.integers(8)
        if action == 0:
            changed.pop(name, None)
        elif action == 1 and name in changed:
            changed[f"{name}x"] = changed.pop(name)
        elif action == 2:
            changed["more"] = np.zeros(3)
        elif name in changed:
            changed[name] = spoiled_array(rng, changed[name])
    return changed
