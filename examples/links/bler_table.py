"""Simulate a table for ``link.error = "table"``: packet error rates of QPSK with the 5G LDPC code over AWGN.

    pip install "heliomesh[sionna]"
    python examples/links/bler_table.py --out my_link.csv

Interference counts as noise, as everywhere in heliomesh, so the SINR takes the place of Es/N0. An update longer than
a code block arrives when all its blocks do: with ``--blocks B`` the table has 1 − (1 − BLER)^B.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sionna.phy import config
from sionna.phy.channel import AWGN
from sionna.phy.fec.ldpc import LDPC5GDecoder, LDPC5GEncoder
from sionna.phy.mapping import BinarySource, Demapper, Mapper

QPSK_BITS = 2  # per symbol


class CodedLink:
    """Random code blocks of ``information_bits`` in ``coded_bits``: how many are decoded wrongly."""

    def __init__(self, information_bits: int, coded_bits: int) -> None:
        self._information_bits = information_bits
        self._source, self._channel = BinarySource(), AWGN()
        self._encoder = LDPC5GEncoder(information_bits, coded_bits)
        self._decoder = LDPC5GDecoder(self._encoder, hard_out=True)
        self._mapper = Mapper("qam", QPSK_BITS)
        self._demapper = Demapper("app", "qam", QPSK_BITS)

    def wrong_blocks(self, sinr_db: float, num_blocks: int) -> int:
        """Of so many blocks at a SINR per symbol [dB]."""
        noise = 10 ** (-sinr_db / 10)  # symbols have unit energy
        sent = self._source([num_blocks, self._information_bits])
        received = self._channel(self._mapper(self._encoder(sent)), noise)
        decoded = self._decoder(self._demapper(received, noise))
        return int((decoded != sent).any(-1).sum())


def block_error_rates(
    link: CodedLink, first_db: float, step_db: float, num_blocks: int, least_rate: float
) -> Iterator[tuple[float, float]]:
    """Rows of SINR [dB] and block error rate, up to the first rate of at most ``least_rate``."""
    sinr_db, rate = first_db, 1.0
    while rate > least_rate:
        # a sampled rate may rise by chance; a table's must not
        rate = min(rate, link.wrong_blocks(sinr_db, num_blocks) / num_blocks)
        yield sinr_db, rate
        sinr_db = round(sinr_db + step_db, 6)


def table_text(rows: list[tuple[float, float]], blocks_per_update: int) -> str:
    """The CSV file, with the error rates of updates of so many blocks."""
    errors = -np.expm1(blocks_per_update * np.log1p(-np.array([rate for _, rate in rows]).clip(max=1 - 1e-15)))
    lines = [f"{sinr_db:g},{error:.6g}" for (sinr_db, _), error in zip(rows, errors, strict=True)]
    return "\n".join(["sinr_db,error", *lines, ""])


def main() -> None:
    """Read the command line, simulate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--information-bits", type=int, default=512, help="k of a code block")
    parser.add_argument("--coded-bits", type=int, default=1024, help="n of a code block")
    parser.add_argument("--first-db", type=float, default=-3.0, help="SINR of the first row [dB]")
    parser.add_argument("--step-db", type=float, default=0.25, help="between rows [dB]")
    parser.add_argument("--samples", type=int, default=10_000, help="blocks simulated per row")
    parser.add_argument(
        "--least-rate", type=float, default=1e-3, help="the first block error rate below it is the last"
    )
    parser.add_argument("--blocks", type=int, default=1, help="blocks of an update, all of which must arrive")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    config.seed = asked.seed
    link = CodedLink(asked.information_bits, asked.coded_bits)
    rows = list(block_error_rates(link, asked.first_db, asked.step_db, asked.samples, asked.least_rate))
    asked.out.write_text(table_text(rows, asked.blocks), encoding="utf-8")
    for sinr_db, rate in (rows[0], rows[-1]):
        print(f"block error rate {rate:g} at {sinr_db:g} dB")


if __name__ == "__main__":
    main()
