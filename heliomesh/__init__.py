"""heliomesh."""
