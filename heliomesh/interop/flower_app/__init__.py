"""A heliomesh schedule as a Flower app; `heliomesh export --format flower-app` writes it. Needs NumPy and Flower."""
