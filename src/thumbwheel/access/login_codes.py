"""Codes that log one browser in, once: what a URL may hold in the place of the home's token.

A code is a file of the home under its hash. Redeeming it removes the file, so that of two who have
the same code one gets in, whichever process they ask.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import unwritable

SECONDS = 600
"""How long a code may wait for its browser."""


@dataclass(frozen=True)
class LoginCodes:
    """The codes of one home, in a folder that only its owner reads."""

    folder: Path

    def make(self) -> str:
        """Return a new code. Raises StorageError if the home cannot be written."""
        code = secrets.token_urlsafe(24)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._forget_old()
            os.close(os.open(self._file(code), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise self._refusal(error) from error
        return code

    def redeem(self, code: str) -> bool:
        """Use up a code; return whether it was valid."""
        file = self._file(code)
        try:
            age = time.time() - file.stat().st_mtime
            file.unlink()  # fails for the second of two at once
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._refusal(error) from error
        return abs(age) < SECONDS  # a clock that was set back lets no code live longer

    def forget(self) -> None:
        """Delete all codes."""
        for file in self.folder.glob("*"):
            with suppress(FileNotFoundError):
                file.unlink()

    def _file(self, code: str) -> Path:
        return self.folder / hashlib.sha256(code.encode("utf-8", "surrogateescape")).hexdigest()

    def _forget_old(self) -> None:
        oldest = time.time() - SECONDS
        for file in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def _refusal(self, error: OSError) -> StorageError:
        return unwritable(f"login codes {str(self.folder)!r}", error)
