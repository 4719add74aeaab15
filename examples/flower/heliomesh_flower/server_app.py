"""The radio: it asks those who train in a round for their local steps, and delivers what arrives."""

import numpy as np
from flwr.serverapp import ServerApp

from heliomesh.interop.flower import FlowerGate

from .model import accuracy, first_weights

app = ServerApp()


@app.main()
def main(grid, context):
    """Play all rounds; prints a line per tenth of them."""
    gate = FlowerGate(str(context.run_config["scenario"]), str(context.run_config["trace"]))
    inputs, labels = gate.dataset.test_inputs.numpy(), gate.dataset.test_labels.numpy()
    first = first_weights(inputs[0].size, gate.dataset.num_classes)
    for number, models in enumerate(gate.play(grid, np.stack([first] * gate.num_clients)), 1):
        if number % max(gate.num_rounds // 10, 1) == 0:
            mean = np.mean([accuracy(model, inputs, labels) for model in models])
            print(f"round {number}: accuracy {mean:.4f}", flush=True)
