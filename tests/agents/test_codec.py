"""What travels has the counted size, and what comes out of it is bit for bit what the simulator's receivers get."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heliomesh.field.fleet.messages import Message, Packet
from heliomesh.learning.packets import first_feedback, int8_scale, packet
from heliomesh.scenario.on_air import update_bits
from heliomesh.scenario.schema import Learning
from tests.agents.network import planned, small
from tests.agents.test_agents import agents_equal_the_simulator

from heliomesh.field.agents.codec import Codec  # isort: skip
from heliomesh.field.agents.wire import Sender

FORMATS = [("float32", 0.1), ("float16", 0.1), ("int8", 0.1), ("top-k", 0.1), ("top-k", 0.01), ("top-k", 1.0)]


@pytest.mark.parametrize("size", [1, 255, 256, 1000, 5000])
@pytest.mark.parametrize(("on_air", "share"), FORMATS)
def test_a_packet_is_read_as_it_was_written(on_air: Any, share: float, size: int) -> None:
    learning = Learning(on_air=on_air, top_k_share=share)
    row = torch.from_numpy(np.random.default_rng(size).standard_normal(size).astype(np.float32))
    row[: size // 3] = 0.0  # whole blocks of them, where there is room
    feedback = first_feedback(learning, torch.zeros(size)).clone()
    sent = packet(learning, row, feedback, 0, 1, 2)
    codec = Codec(size, on_air, share)
    content = codec.encoded(Packet(1.0, sent, int8_scale(row) if on_air == "int8" else None))
    assert len(content) == codec.num_bytes == -(-update_bits(size, on_air, share) // 8)
    assert torch.equal(codec.decoded(content).nan_to_num(7.0), sent.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("codec", "content", "said"),
    [
        (Codec(4), b"\0" * 15, "15 bytes where a model takes 16"),
        (Codec(4, "float16"), b"\0" * 6 + b"\x00\x7c", "NaN or infinity"),
        (Codec(4, "int8"), b"\0" * 4 + b"\x00\x00\xc0\x7f", "NaN or infinity"),
        (Codec(16, "top-k", 0.125), b"\0" * 8 + b"\x11", "entries that are not 2 different ones of 16"),
        (Codec(16, "top-k", 0.125), b"\x00\x00\xc0\x7f" + b"\0" * 4 + b"\x12", "NaN or infinity"),
        (Codec(16, "top-k", 1.0), b"\0" * 64 + b"\xff\xfe", "entries that are not 16 different ones of 16"),
    ],
)
def test_what_no_healthy_device_sends_is_refused(codec: Codec, content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        codec.decoded(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"learning.on_air": "float16"},
        {"learning.on_air": "int8"},
        {"learning.on_air": "top-k", "learning.top_k_share": 0.02},
        {"learning.on_air": "top-k", "learning.aggregation": "update", "network.mixing": "lazy-metropolis"},
    ],
)
def test_agents_average_what_the_simulator_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    problem = small(**{"network.devices": 3, "slots": 8}, **changes)
    agents_equal_the_simulator(tmp_path / "net", problem, planned(problem))


def test_compressed_frames_are_shorter() -> None:
    row = torch.zeros(50_000)

    class Unsigned:
        def sign(self, text: bytes) -> bytes:
            return b"\0" * 64

    sender = Sender(Unsigned(), "net", "plan", 0, 1)  # type: ignore[arg-type]

    def size(codec: Codec, **more: Any) -> int:
        frames = sender.frames(Message(0, 1, "model", 0, Packet(1.0, row, **more), 1), 0.0, codec)
        return sum(map(len, frames))

    assert size(Codec(50_000, "int8"), scale=int8_scale(row)) < 0.27 * size(Codec(50_000))
