"""What users can mend: one sentence with the field, what was expected and what was found."""


class MistakeError(Exception):
    """Base of all errors that name a user's mistake; the command line prints them and ends with code 2."""


class FieldError(MistakeError):
    """A mistake in one line: a field or an argument, what was expected there and what was found."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(" ".join(f"{field}: {problem}".splitlines()))
        self.field, self._problem = field, problem

    def __reduce__(self) -> tuple[type["FieldError"], tuple[str, str]]:
        """Both arguments, so that an error of another process arrives whole."""
        return type(self), (self.field, self._problem)


class ArgumentError(FieldError, TypeError, ValueError):
    """An argument that a public function does not take: of another kind, or out of its range."""


def in_one_line(error: Exception) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"no {text}" if isinstance(error, KeyError) else text
