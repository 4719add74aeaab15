"""Catalog of further rules of averaging: one file each, with ``mix(arrived)``; three faster ones are built in."""
