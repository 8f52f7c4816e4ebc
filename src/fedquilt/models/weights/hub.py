"""What the ``transformers`` library has at a local folder or under a name on its hub (extra ``hf``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedquilt.errors import InputError


def pretrained(kind: str, folder: str, **options: Any) -> Any:
    """What the library's class of this name makes of the folder; weights are read as safetensors, never unpickled,
    and code that lies in the folder is never run."""
    if kind.startswith("Auto"):  # only these would look for code
        options = {"trust_remote_code": False, **options}
    found = library()
    shown = found.utils.logging.is_progress_bar_enabled()
    found.utils.logging.disable_progress_bar()
    try:
        return getattr(found, kind).from_pretrained(folder, **options)
    except (OSError, ValueError) as error:
        where = f"the folder '{folder}'" if Path(folder).is_dir() else f"{folder!r}, neither a folder nor on the hub"
        first = str(error).strip().splitlines()[0]
        raise InputError(f"transformers finds no {kind.removeprefix('Auto').lower()} at {where}: {first}") from error
    finally:
        if shown:
            found.utils.logging.enable_progress_bar()


def library() -> Any:
    """The library itself."""
    try:
        import transformers
    except ImportError as error:
        raise InputError("This model needs the library transformers: pip install 'fedquilt[hf]'.") from error
    return transformers
