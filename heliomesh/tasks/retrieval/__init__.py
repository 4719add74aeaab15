"""Getting datasets that are too large to ship: verified, resumable, by several ways."""
