"""How many bits an update takes on the air, by the format in which a model's numbers travel.

With P parameters, k = max(1, round(share · P)) and blocks of 256 parameters,

    float32   32 P
    float16   16 P
    int8      8 P + 32 ⌈P / 256⌉            a scale for each block
    top-k     32 k + min(k ⌈log2 P⌉, P)     the k values, and where they belong: indices, or one bit a parameter

Headers, codes and preambles are the radio's and not counted here.
"""

from typing import Literal

Format = Literal["float32", "float16", "int8", "top-k"]

BLOCK = 256  # parameters of an int8 model that share a scale
_NUMBER_BITS = 32  # of a scale, and of a value that is not compressed


def update_bits(num_parameters: int, on_air: Format = "float32", top_k_share: float = 0.1) -> int:
    """Bits of one update of a model with ``num_parameters``; ``top_k_share`` counts for top-k only."""
    if num_parameters < 1:
        raise ValueError(f"num_parameters: expected at least 1, actual value {num_parameters}")
    match on_air:
        case "float32":
            return _NUMBER_BITS * num_parameters
        case "float16":
            return 16 * num_parameters
        case "int8":
            return 8 * num_parameters + _NUMBER_BITS * -(-num_parameters // BLOCK)
        case "top-k":
            sent = num_sent(num_parameters, top_k_share)
            index_bits = (num_parameters - 1).bit_length()
            return _NUMBER_BITS * sent + min(sent * index_bits, num_parameters)


def num_sent(num_parameters: int, top_k_share: float) -> int:
    """Entries that one top-k update carries, k."""
    return max(1, round(top_k_share * num_parameters))
