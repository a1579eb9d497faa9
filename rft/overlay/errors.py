"""Exit codes and the one error type of the overlay."""

from __future__ import annotations

OK = 0
NOT_WANTED = 1  # the tree, a header or a lock is not in the wanted state
USAGE = 2
REFUSED = 3  # version, install shape or missing rft
DOES_NOT_APPLY = 4
BUSY = 5
NOT_WRITABLE = 6
ROLLED_BACK = 7


class OverlayError(Exception):
    """A refusal: what happened, what was found and wanted, and the command that repairs it.

    `code` is the exit status of the command line.
    """

    def __init__(self, code: int, what: str, found: str = "", wanted: str = "", repair: str = ""):
        super().__init__(what)
        self.code, self.what, self.found, self.wanted, self.repair = code, what, found, wanted, repair

    def __str__(self) -> str:
        rows = [("found", self.found), ("wanted", self.wanted), ("repair", self.repair)]
        return "\n".join([self.what, *(f"  {label + ':':<8}{text}" for label, text in rows if text)])

    def document(self) -> dict:
        """The error as printed by --json."""
        fields = {"message": self.what, "found": self.found, "wanted": self.wanted, "repair": self.repair}
        return {"ok": False, "exit_code": self.code, "error": {k: v for k, v in fields.items() if v}}
