"""How the code is laid out: arrows between rooms go one way, and importing costs little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import drometric

SOURCE = Path(drometric.__file__).parent

# From the top of the house to the bottom: a room imports only what stands below it.
FLOORS = [
    {"robust_loss", "baselines"},
    {"mining"},
    {"engine"},
    {"uncertainty", "pair_losses"},
    {"checks"},
]


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def floor_of(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def imports_of(path: Path) -> list[tuple[str, str]]:
    """Every (module, name) that a file imports; the name is "" for a plain import."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


def wrong_arrows(path: Path) -> list[str]:
    """The imports of a file that go up the house, sideways, or to a sibling's private name."""
    wrong = []
    room = room_of(path)
    for module, name in imports_of(path):
        if module.split(".")[0] != "drometric":
            continue
        target = module.split(".")[1] if "." in module else name
        sideways = target != room and floor_of(target) <= floor_of(room)
        if sideways or name.startswith("_"):
            wrong.append(f"{room} imports {name} from {module}")
    return wrong


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_what_is_below_it(path: Path) -> None:
    assert wrong_arrows(path) == []


def test_an_import_that_goes_up_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine").mkdir()
    upward = tmp_path / "engine" / "upward.py"
    upward.write_text("from drometric.mining.mined import counts\n", encoding="utf-8")
    private = tmp_path / "robust_loss.py"
    private.write_text("from drometric.engine.rows import _slice\n", encoding="utf-8")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    assert wrong_arrows(upward) == ["engine imports counts from drometric.mining.mined"]
    assert wrong_arrows(private) == ["robust_loss imports _slice from drometric.engine.rows"]


def test_importing_brings_in_torch_numpy_and_the_standard_library_only() -> None:
    script = (
        "import sys, torch, numpy\n"
        "before = set(sys.modules)\n"
        "import drometric\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    brought = set(shown.stdout.decode().split())
    assert brought <= {"drometric", "torch", "numpy"} | sys.stdlib_module_names


def test_every_public_name_is_there_and_explained() -> None:
    assert len(set(drometric.__all__)) == len(drometric.__all__)
    for name in drometric.__all__:
        explained = getattr(drometric, name).__doc__
        assert not explained.startswith(f"{name}(")  # what dataclass writes where nobody did
