"""Catalog of optimisers: one file each, with ``build(parameters, learning_rate)``; plain SGD is built in."""
