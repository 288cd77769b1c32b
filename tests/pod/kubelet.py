"""A folder as kubelet keeps it for a ConfigMap, a Secret or a projected volume.

The sequence is that of Kubernetes' AtomicWriter: a new folder, a link to it under another name,
that link moved over ``..data``, the old folder removed. What users see are links through it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


class Volume:
    """``swap`` mounts other content, all of it at once."""

    def __init__(self, path: Path, content: Mapping[str, str], *, mode: int = 0o644) -> None:
        self.path = path
        self._mode = mode
        self._count = 0
        path.mkdir(parents=True)
        self.swap(content)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def swap(self, content: Mapping[str, str]) -> None:
        """Names may hold slashes, as ``items`` of a volume may."""
        self._count += 1
        new = self.path / f"..2026_11_30_12_00_00.{self._count:09d}"
        for name, text in content.items():
            file = new / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(self._mode)
        data, moving = self.path / "..data", self.path / "..data_tmp"
        old = data.resolve() if data.is_symlink() else None
        moving.symlink_to(new.name)
        os.rename(moving, data)
        tops = {name.partition("/")[0] for name in content}
        for top in tops:
            link = self.path / top
            if not link.is_symlink():
                link.symlink_to(f"..data/{top}")
        for link in self.path.iterdir():
            if not link.name.startswith("..") and link.name not in tops:
                link.unlink()
        if old is not None:
            shutil.rmtree(old)
