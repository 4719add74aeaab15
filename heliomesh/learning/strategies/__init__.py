"""Catalog of ways to execute local SGD: one file each, with ``build(model, precision, compiled)``."""
