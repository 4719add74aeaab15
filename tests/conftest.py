"""Import the package first: it sets how OpenMP threads wait before torch is loaded."""

import heliomesh  # noqa: F401
