"""Variants for heliomesh; pyproject.toml says their names."""
