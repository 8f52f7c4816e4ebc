"""What a server may make a site do by naming it: the methods of this library, and nothing else."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import fedquilt
from conformance.cases import CASES
from fedquilt.core.describe import _ROOMS, build, describe
from fedquilt.core.describe import READING as APART
from fedquilt.core.net import Net
from fedquilt.errors import InputError
from fedquilt.models.registry import make
from fedquilt.models.weights.start import with_weights
from fedquilt.records.record import pack, unpack

HOSTILE = [
    "os:system",
    "builtins:eval",
    "builtins:open",
    "functools:partial",
    "subprocess:Popen",
    "importlib:import_module",
    "fedquilt.core.describe:importlib.import_module",
    "fedquilt.core.describe:find",
    "fedquilt.core.describe:build",
    "fedquilt.core.net:torch.load",
    "fedquilt.core.net:copy.deepcopy",
    "fedquilt.core.net:partial",
    "fedquilt.core.net:Net.__init__.__globals__.get",
    "fedquilt.core.net:Net.__class__",
    "fedquilt.core.net:Net.__init__.__builtins__.get",
    "fedquilt.models.small:nn.Module.load_state_dict",
    "fedquilt.models.registry:Path",
    "fedquilt.models.registry:MODELS",
    "fedquilt.models.weights.files:load_file",
    "fedquilt.data.sources.download:fetch",
    "fedquilt.storage.files:write_atomic",
    "fedquilt.deploy.flower_command:call",
    "fedquilt.methods:__builtins__",
    "fedquilt.modelsevil:x",
    "",
    ":",
    "fedquilt.models",
    "fedquilt.models:",
    7,
]


@pytest.mark.parametrize("name", HOSTILE, ids=str)
@pytest.mark.parametrize("form", ["name", "make", "partial"])
def test_names_outside_the_rooms_are_refused(name, form, monkeypatch):
    monkeypatch.setattr("os.system", lambda *_: pytest.fail("it was called"))
    call = {"args": ["true"], "kwargs": {}}
    described = {"name": {"name": name}, "make": {"make": name, **call}, "partial": {"partial": {"name": name}, **call}}
    with pytest.raises(InputError, match=r"trusted packages|reads files|is not here"):
        build(described[form], trusted=())


READING = [
    ("fedquilt.models.weights.hub:pretrained", ["AutoModel", "somebody/model"], {"trust_remote_code": True}),
    ("fedquilt.models.encoder:TextEncoder", ["somebody/model"], {}),
    ("fedquilt.models.weights.files:read_tensors", ["/etc/passwd"], {}),
    ("fedquilt.models.weights.files:fingerprint", ["/etc/passwd"], {}),
    ("fedquilt.models.weights.start:load_file", ["/etc/passwd"], {}),
    ("fedquilt.models.weights.start:read_tensors", ["/etc/passwd"], {}),
    ("fedquilt.models.registry:fingerprint", ["/etc/passwd"], {}),
    ("fedquilt.models:make", ["encoder", [3], 2], {"folder": "/etc"}),
    ("fedquilt.models:with_weights", [None, "/etc/passwd"], {}),
    ("fedquilt.models:tokenise", [["x"], "somebody/model"], {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), READING, ids=[name for name, _, _ in READING])
def test_what_reads_files_or_downloads_is_refused(name, args, kwargs):
    with pytest.raises(InputError, match=r"reads files of this machine|trusted packages|is not here"):
        build({"make": name, "args": [{"list": a} if isinstance(a, list) else a for a in args], "kwargs": kwargs}, ())


def test_a_server_cannot_name_a_sites_weights_unless_the_site_agrees(tmp_path):
    builder = make("mlp", (1, 8, 8), 10, hidden=(4,))
    save_file(dict(builder().state_dict()), tmp_path / "w.safetensors")
    described = unpack(pack(describe(Net(with_weights(builder, tmp_path / "w.safetensors")))))
    with pytest.raises(InputError, match=r"reads files of this machine.*trust fedquilt\.models\.weights"):
        build(described, trusted=())
    for trusted in (["fedquilt.models.weights.start"], ["fedquilt"]):
        assert isinstance(build(described, trusted=trusted), Net)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method_can_be_built_where_nothing_else_is_trusted(case):
    described = unpack(pack(describe(case.method)))
    assert describe(build(described, trusted=("helpers",))) == described


def test_a_name_that_only_another_version_has_is_explained():
    with pytest.raises(InputError, match="same version"):
        build({"name": "fedquilt.methods.fedavg:FedFuture"}, trusted=())


def test_partials_and_tensors_still_travel():
    value = partial(Net, build=None, seed=3)
    again = build(unpack(pack(describe(value))), trusted=())
    assert (again.func, again.keywords) == (value.func, value.keywords)
    assert torch.equal(build(torch.ones(2), trusted=()), torch.ones(2))


OUTSIDE = {
    "os",
    "io",
    "sys",
    "subprocess",
    "shutil",
    "socket",
    "tempfile",
    "pathlib",
    "urllib",
    "http",
    "importlib",
    "pickle",
    "ctypes",
    "runpy",
    "glob",
    "multiprocessing",
    "threading",
    "safetensors",
    "transformers",
    "requests",
    "httpx",
}


def test_no_module_of_the_rooms_reaches_outside_but_those_set_apart():
    """A module that a server may name must not open files or connections; one that does belongs in ``READING``."""
    root = Path(fedquilt.__file__).parent
    reaching = set()
    for file in root.rglob("*.py"):
        module = ".".join(["fedquilt", *file.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        if any(module == room or module.startswith(room + ".") for room in _ROOMS):
            tree = ast.walk(ast.parse(file.read_text()))
            reaching |= {module} if any(_reaches(node) for node in tree) else set()
    apart = {module for module in reaching if any(module == f or module.startswith(f + ".") for f in APART)}
    assert reaching - apart == {"fedquilt.methods"}  # which imports modules of its own table only


def _reaches(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in OUTSIDE for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in OUTSIDE
    return isinstance(node, ast.Name) and node.id in ("open", "eval", "exec", "__import__", "compile")
