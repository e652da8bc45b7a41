"""Integrations with other software. Each module needs the package that it is named after."""


def missing(package: str, extra: str) -> ImportError:
    """Return the error for an optional package that is not installed.

    >>> print(missing("river", "river"))
    perdure.integrations needs river here: install it with `pip install "perdure[river]"`
    """
    return ImportError(
        f"perdure.integrations needs {package} here: install it with "
        f'`pip install "perdure[{extra}]"`'
    )
