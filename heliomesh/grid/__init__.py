"""Solving on battery grids: dynamic programs and the exact evaluation of plans."""
