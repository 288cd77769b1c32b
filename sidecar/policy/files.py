"""Which files a policy is made of, read once: what is compiled is what is hashed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.ports.policy import PolicyErrors, PolicyFault

ENDINGS: Final = (".yaml", ".yml")
TEST: Final = "_test"
MOST_FILES: Final = 1000
MOST_BYTES: Final = 4 << 20
DEEPEST: Final = 8


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """One file: where it is, what people call it, and what it holds."""

    path: Path
    shown: str
    data: bytes
    shipped: bool = False

    @property
    def text(self) -> str:
        """The content.

        Raises:
            PolicyErrors: it is not UTF-8.
        """
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = self.data[: error.start]
            column = error.start - before.rfind(b"\n")
            line = before.count(b"\n") + 1
            raise PolicyErrors([_fault(self.shown, "is not UTF-8 text", line, column)]) from None


def is_test(path: Path) -> bool:
    """Whether a file is called as tests of policies are: ``*_test.yaml``."""
    return path.stem.endswith(TEST)


def shipped_folder() -> Path:
    """Where the policies of the sidecar itself are."""
    return Path(__file__).resolve().parent.parent / "policies"


def shipped_file(name: str) -> Path:
    """The file of a shipped policy."""
    return shipped_folder() / f"{name}.yaml"


def find(paths: Sequence[Path]) -> list[Path]:
    """The policy and test files that files and folders stand for, each once.

    Of a folder: every ``*.yaml`` and ``*.yml`` below it in the order of their paths, hidden
    files and folders left out (Kubernetes keeps old versions of a ConfigMap in those). Links are
    followed, those to folders as well: such are the subfolders of a ConfigMap.

    Raises:
        PolicyErrors: every path that is not there, is no YAML file, or holds too much. Nothing
            that is there is passed over: it may be what denies.
    """
    found: dict[Path, None] = {}
    faults: list[PolicyFault] = []
    for path in paths:
        try:
            if path.is_dir():
                for each in _below(path):
                    found.setdefault(each)
            elif not path.exists():
                faults.append(_fault(str(path), "is not there; name a file or a folder"))
            elif not _is_yaml(path):
                faults.append(_fault(str(path), "is no .yaml file"))
            else:
                found.setdefault(path)
        except OSError as error:
            faults.append(_fault(str(path), f"cannot be read: {_why(error)}"))
        except _TooMuch as error:
            faults.append(_fault(str(path), str(error)))
    if faults:
        raise PolicyErrors(faults)
    return list(found)


class _TooMuch(Exception):
    """A folder with more in it than anybody writes; the text says what."""


def _is_yaml(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def _below(folder: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise error

    found: list[Path] = []
    seen = {os.path.realpath(folder)}
    top = len(folder.parts)
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        here = Path(root)
        kept: list[str] = []
        for name in sorted(each for each in folders if not each.startswith(".")):
            # A folder that several names lead to counts once, so that loops end.
            real = os.path.realpath(here / name)
            if real not in seen:
                seen.add(real)
                kept.append(name)
        folders[:] = kept
        if kept and len(here.parts) - top >= DEEPEST:
            raise _TooMuch(f"holds folders more than {DEEPEST} deep: {here / kept[0]}")
        found += [
            here / name for name in names if not name.startswith(".") and _is_yaml(here / name)
        ]
        if len(found) > MOST_FILES or len(seen) > MOST_FILES:
            raise _TooMuch(f"holds more than {MOST_FILES} files or folders")
    return sorted(found)


def read(paths: Sequence[Path], *, shipped: bool = False) -> list[PolicyFile]:
    """The files' contents.

    Raises:
        PolicyErrors: every file that cannot be read.
    """
    files: list[PolicyFile] = []
    faults: list[PolicyFault] = []
    for path in paths:
        shown = f"shipped:{path.name}" if shipped else str(path)
        try:
            files.append(PolicyFile(path, shown, _content(path), shipped))
        except OSError as error:
            faults.append(_fault(shown, f"cannot be read: {_why(error)}"))
    if faults:
        raise PolicyErrors(faults)
    return files


def _content(path: Path) -> bytes:
    # Not a pipe, a device or a folder: opening or reading those may never end.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError("is not a file")
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(f"is larger than {MOST_BYTES >> 20} MiB")
    return data


def revision(files: Sequence[PolicyFile], *about: str) -> str:
    """The sha256 (hex) of all files' names and contents, and of the settings that matter.

    Folders take no part: replicas that keep the same files in other places agree.
    """
    seen = hashlib.sha256()
    for word in about:
        seen.update(hashlib.sha256(word.encode()).digest())
    for file in files:
        seen.update(hashlib.sha256(file.path.name.encode()).digest())
        seen.update(hashlib.sha256(file.data).digest())
    return seen.hexdigest()


def _fault(file: str, message: str, line: int = 0, column: int = 0) -> PolicyFault:
    return PolicyFault(file, line, column, "", message, code="file")


def _why(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
