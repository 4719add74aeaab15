"""What no policy can beat."""
