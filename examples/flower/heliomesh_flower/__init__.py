"""A Flower app whose rounds follow a trace of heliomesh."""
