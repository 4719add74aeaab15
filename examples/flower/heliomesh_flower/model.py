"""The model: softmax regression in NumPy. Put your own in its place; a model is one flat array of weights."""

import numpy as np


def first_weights(num_inputs, num_classes):
    """All zeros; (parameter,)."""
    return np.zeros((num_inputs + 1) * num_classes)


def local_steps(weights, inputs, labels, steps, batch, rate, rng):
    """Steps of SGD on a client's own samples; inputs (sample, …) → (parameter,)."""
    inputs = inputs.reshape(len(inputs), -1)
    matrix = weights.reshape(inputs.shape[1] + 1, -1).copy()
    for _ in range(steps):
        chosen = rng.integers(len(inputs), size=batch)
        x = np.hstack([inputs[chosen], np.ones((batch, 1))])
        score = x @ matrix
        prob = np.exp(score - score.max(1, keepdims=True))
        prob /= prob.sum(1, keepdims=True)
        prob[np.arange(batch), labels[chosen]] -= 1
        matrix -= rate / batch * x.T @ prob
    return matrix.reshape(-1)


def accuracy(weights, inputs, labels):
    """Share of samples classified rightly."""
    inputs = inputs.reshape(len(inputs), -1)
    matrix = weights.reshape(inputs.shape[1] + 1, -1)
    guess = (np.hstack([inputs, np.ones((len(inputs), 1))]) @ matrix).argmax(1)
    return float((guess == labels).mean())
