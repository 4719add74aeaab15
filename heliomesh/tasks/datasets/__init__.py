"""Catalog of datasets: one file each, with ORIGIN and load(settings), and SOURCE where files are fetched."""
