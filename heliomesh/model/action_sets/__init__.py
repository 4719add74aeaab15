"""Catalog of action sets: one file each, with ``acts(energy)``, idle first and those that train last."""
