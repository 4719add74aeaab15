"""Devices as processes of their own on real machines: what a folder tells them, how they meet, and their slots."""
