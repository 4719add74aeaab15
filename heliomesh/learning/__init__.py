"""From traces to accuracy: data, models and training."""
