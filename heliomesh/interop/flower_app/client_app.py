"""The devices: local steps on a device's own samples, which are all that it reads.

Device ``partition-id`` of the node's configuration reads ``client_<partition-id>.npz`` in the folder ``data``, which
the node's configuration may name, else the run's.
"""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .replay import ReplayedSchedule, load_data, local_steps

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which device this is."""
    return Message(RecordDict({"config": ConfigRecord({"client": _device(context)})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """The local steps of a round."""
    schedule, device = ReplayedSchedule.load(Path(__file__).with_name("schedule.json")), _device(context)
    folder = Path(str(context.node_config.get("data", context.run_config["data"])))
    inputs, labels = load_data(folder / f"client_{device}.npz")
    number, settings = int(message.content["config"]["round"]), schedule.content
    trained = local_steps(
        message.content["weights"].to_numpy_ndarrays()[0],
        inputs,
        labels,
        settings["local_steps"],
        settings["batch"],
        schedule.learning_rate(number),
        np.random.default_rng([device, number]),
    )
    return Message(RecordDict({"weights": ArrayRecord([trained])}), reply_to=message)


def _device(context: Context) -> int:
    return int(context.node_config["partition-id"])
