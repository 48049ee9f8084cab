"""An image of one program: an archive as `docker save` writes it, made without any image builder."""

import hashlib
import io
import json
import tarfile
from pathlib import Path


def write_image(
    archive: Path, name: str, files: dict[str, Path], entrypoint: list[str], folders: tuple[str, ...] = ()
) -> None:
    """`files`: path in the image -> file to put there, all executable; `folders`: empty ones that anybody may use."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
        for path, source in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = source.stat().st_size, 0o755
            with source.open("rb") as content:
                tar.addfile(entry, content)
    digest = hashlib.sha256(layer.getbuffer()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    part = archive.with_suffix(".part")
    with tarfile.open(part, mode="w", format=tarfile.GNU_FORMAT) as tar:
        contents = {
            "manifest.json": json.dumps(manifest).encode(),
            "config.json": json.dumps(config).encode(),
            "layer.tar": layer.getvalue(),
        }
        for path, data in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    part.rename(archive)
