"""Integrations with other software. Each module needs the package that it is named after."""


def missing(package: str, extra: str) -> ImportError:
    """Return the error for an optional package that is not installed.

    >>> print(missing("river", "river"))
    this needs river; install it, or perdure with the extra river
    """
    return ImportError(f"this needs {package}; install it, or perdure with the extra {extra}")
