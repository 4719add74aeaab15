"""What users can mend: one sentence with the field, what was expected and what was found."""


class MistakeError(Exception):
    """Base of all errors that name a user's mistake; the command line prints them and ends with code 2."""
