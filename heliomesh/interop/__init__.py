"""Doors to other people's tools: multi-agent environments, microcontrollers, federated-learning frameworks."""
