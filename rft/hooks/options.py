from rft.options import add, check  # noqa: F401
