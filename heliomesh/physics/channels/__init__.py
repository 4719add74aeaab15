"""Catalog of channel sources: one file each, with ``Settings`` and ``build(settings, scenario)``."""
