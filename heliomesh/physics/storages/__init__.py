"""Catalog of storage laws: one file each, with ``Settings`` and ``build(settings, scenario, drain_joule)``."""
