"""What users can mend: one sentence with the field, what was expected and what was found."""


class MistakeError(Exception):
    """Base of all errors that name a user's mistake; the command line prints them and ends with code 2.

    One argument is the whole sentence, two are a field and its problem, three say "field: expected …, actual …".
    """

    def __init__(self, field: object, expected: object = "", actual: object = None) -> None:
        problem = _problem(expected, actual)
        super().__init__(f"{field}: {problem}" if problem else str(field))

    @classmethod
    def when(cls, wrong: object, field: object, expected: object, actual: object = None) -> None:
        """Refuse in one line; the words are built in any case, so that hot loops and narrowing keep their `if`."""
        if wrong:
            raise cls(field, expected, actual)


def _problem(expected: object, actual: object) -> str:
    """What is wrong with a field; ``actual`` starts with what it is, "value 3", or with a colon."""
    gap = "" if str(actual).startswith(":") else " "
    return str(expected) if actual is None else f"expected {expected}, actual{gap}{actual}"


class FieldError(MistakeError):
    """A mistake in one line: a field or an argument, what was expected there and what was found."""

    def __init__(self, field: object, expected: object, actual: object = None) -> None:
        self.field, self._problem = str(field), _problem(expected, actual)
        super().__init__(" ".join(f"{field}: {self._problem}".splitlines()))

    def __reduce__(self) -> tuple[type["FieldError"], tuple[str, str]]:
        """Both arguments, so that an error of another process arrives whole."""
        return type(self), (self.field, self._problem)


class ArgumentError(FieldError, TypeError, ValueError):
    """An argument that a public function does not take: of another kind, or out of its range."""


def in_one_line(error: Exception) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"no {text}" if isinstance(error, KeyError) else text
