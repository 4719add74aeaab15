"""Catalog of further rules of averaging: one file each, with ``mix(arrived)``; four faster ones are built in."""
