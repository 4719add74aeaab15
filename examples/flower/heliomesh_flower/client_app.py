"""The devices: local steps on a device's own samples. Device i is the node with partition-id i.

On real devices read the samples from the device's own disk instead of `FlowerGate.samples`.
"""

from functools import cache

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from heliomesh.interop.flower import FlowerGate

from .model import local_steps

app = ClientApp()


@app.query()
def query(message, context):
    """Which device this is."""
    config = ConfigRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"config": config}), reply_to=message)


@app.train()
def train(message, context):
    """The local steps of a round."""
    client, number = int(context.node_config["partition-id"]), int(message.content["config"]["round"])
    gate = opened(str(context.run_config["scenario"]), str(context.run_config["trace"]))
    own, rng = gate.samples(client), np.random.default_rng([client, number])
    inputs, labels = gate.dataset.train_inputs.numpy()[own], gate.dataset.train_labels.numpy()[own]
    weights = message.content["weights"].to_numpy_ndarrays()[0]
    trained = local_steps(weights, inputs, labels, 5, 32, gate.learning_rates[number], rng)
    return Message(RecordDict({"weights": ArrayRecord([trained])}), reply_to=message)


opened = cache(FlowerGate)
