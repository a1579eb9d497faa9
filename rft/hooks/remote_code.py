from rft.options.remote_code import refuse, require_own_code, settle, trusted  # noqa: F401
