"""Pictures and pages of results: text in, text out, no drawing library."""
