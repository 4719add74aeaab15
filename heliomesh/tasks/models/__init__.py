"""Catalog of models: one file each, with ``build(input_shape, num_classes)``."""
