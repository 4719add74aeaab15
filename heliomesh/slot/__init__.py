"""The joint choice of one slot."""
