"""The decision problem: states, actions, costs as factors, policies and plans."""
