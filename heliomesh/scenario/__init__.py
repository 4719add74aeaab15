"""Every input: the schema, checks that need several fields, files, errors, places."""
