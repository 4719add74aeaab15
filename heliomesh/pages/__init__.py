"""Pages and pictures of results; the only room that draws."""
