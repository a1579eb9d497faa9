"""Stand-ins for optional dependencies: importable everywhere, clear when called."""


def missing(package: str, needed_for: str):
    """A function that raises ModuleNotFoundError, naming the package and the option that needs it."""

    def call(*_args, **_kwargs):
        raise ModuleNotFoundError(f"{package} is not installed, and {needed_for} needs it", name=package)

    return call
