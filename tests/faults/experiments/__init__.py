"""Experiments so small that they can be disturbed often."""
