"""Which names exist, and what the ones that are not implemented do."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sgl_kernel  # noqa: E402 - needs torch
from sgl_kernel import _missing  # noqa: E402

# Names by whose absence SGLang 0.5.23 falls back to plain torch, with the place that looks for them. One that existed
# would send it down a path that this package cannot serve; `convert_weight_packed` decides on all of AMX.
PROBED = {
    "convert_weight_packed": "srt/utils/common.py:_is_intel_amx_backend_available",
    "fused_qk_norm_cpu": "srt/models/utils.py:can_use_fused_qk_norm_cpu",
    "fused_qk_norm_rope_cpu": "srt/models/qwen3_moe.py",
    "get_device_accessible_ptr": "srt/mem_cache/pool_host/common.py",
    "shm_group_initialize": "multimodal_gen/runtime/distributed/group_coordinator.py",
}


@pytest.mark.parametrize("name", sorted(PROBED))
def test_what_sglang_probes_for_is_absent(name: str) -> None:
    assert not hasattr(torch.ops.sgl_kernel, name)
    assert not hasattr(sgl_kernel, name)


@pytest.mark.parametrize("name", _missing.PACKAGE_NAMES)
def test_missing_package_names_raise_when_called(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{name} is not implemented.*CPU stand-in"):
        getattr(sgl_kernel, name)(1, keyword=2)


@pytest.mark.parametrize("name", _missing.TORCH_OPS)
def test_missing_torch_operations_raise_when_called(name: str) -> None:
    op = getattr(torch.ops.sgl_kernel, name)
    for call in (op, op.default):
        with pytest.raises(NotImplementedError, match=f"{name} is not implemented.*CPU stand-in"):
            call(torch.zeros(1))


def test_missing_names_of_submodules_raise_when_called() -> None:
    from sgl_kernel.mamba import causal_conv1d_update_cpu
    from sgl_kernel.speculative import reconstruct_indices_from_tree_mask

    for op in (causal_conv1d_update_cpu, reconstruct_indices_from_tree_mask):
        with pytest.raises(NotImplementedError, match=f"{op.__name__} is not implemented"):
            op()


def test_version_is_the_sglang_release_it_answers() -> None:
    pyproject = Path(sgl_kernel.__file__).parent.parent / "pyproject.toml"
    assert f'version = "{sgl_kernel.__version__}"' in pyproject.read_text()


# What SGLang imports on a CPU, read from its source: an upgrade that asks for another name fails here, not in a server.


def _taken_on_cpu(test: ast.expr) -> bool:
    """Value of a condition on a CPU without AMX: every other device flag is false."""
    match test:
        case ast.BoolOp(op=ast.And()):
            return all(map(_taken_on_cpu, test.values))
        case ast.BoolOp(op=ast.Or()):
            return any(map(_taken_on_cpu, test.values))
        case ast.UnaryOp(op=ast.Not()):
            return not _taken_on_cpu(test.operand)
    condition = ast.unparse(test)
    return "is_cpu" in condition and "amx" not in condition


def _module_level_names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of what a CPU engine reads from sgl_kernel while it imports the file. `try` blocks may fail."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try):
            continue
        if isinstance(child, ast.If):
            branch = child.body if _taken_on_cpu(child.test) else child.orelse
            yield from _module_level_names(ast.Module(branch, []))
        elif isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "sgl_kernel":
            yield from ((child.module or "", alias.name) for alias in child.names)
        elif isinstance(child, ast.Attribute) and ast.unparse(child.value) == "torch.ops.sgl_kernel":
            yield "torch.ops.sgl_kernel", child.attr
        else:
            yield from _module_level_names(child)


def _sglang_sources() -> list[Path]:
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        pytest.skip("needs SGLang")
    root = Path(spec.origin).parent
    other_devices = ("xpu", "npu", "sycl")
    files = [*root.glob("srt/**/*.py"), *root.glob("kernels/**/*.py")]
    return [file for file in files if not any(device in str(file.relative_to(root)) for device in other_devices)]


def test_every_name_that_sglang_imports_on_a_cpu_exists() -> None:
    names = {
        name
        for file in _sglang_sources()
        if "sgl_kernel" in (source := file.read_text())
        for name in _module_level_names(ast.parse(source))
    }
    assert ("sgl_kernel", "assign_req_to_token_pool_cpu") in names
    for module, name in sorted(names):
        owner = torch.ops.sgl_kernel if module.startswith("torch") else importlib.import_module(module)
        assert hasattr(owner, name), f"{module}.{name}"
