from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from pipesvc.client.bundle import Bundle, make_bundle
from pipesvc.client.locality import SourceFile, is_local, rooted
from pipesvc.errors import ErrorCode, PipesvcError


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _names(bundle: Bundle) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(bundle.data)).namelist())


def _bundle(root: Path, *names: str, include: tuple[str, ...] = ()) -> Bundle:
    sources = [SourceFile(path=(root / name).resolve(), root=root.resolve()) for name in names]
    return make_bundle(sources, include=include, include_root=root.resolve())


def _refusal(root: Path, *names: str, include: tuple[str, ...] = ()) -> str:
    with pytest.raises(PipesvcError) as caught:
        _bundle(root, *names, include=include)
    assert caught.value.code is ErrorCode.BUNDLE_REFUSED
    return str(caught.value)


def test_only_the_import_closure_travels(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "train.py": "import os, torch\nimport layers.blocks\ndef f():\n    from text import words\n",
            "layers/__init__.py": "from . import norms\n",
            "layers/blocks.py": "from .norms import Norm\nfrom ..nothing import x\n".replace(
                "from ..nothing import x\n", ""
            ),
            "layers/norms.py": "from layers import deep\n",
            "layers/deep/__init__.py": "from ..extra import a\n",
            "layers/extra.py": "a = 1\n",
            "layers/unused.py": "import boom\n",
            "text.py": "words = 1\n",
            "unused.py": "",
            "secrets.env": "TOKEN=1",
        },
    )
    assert _names(_bundle(tmp_path, "train.py")) == {
        "train.py",
        "text.py",
        "layers/__init__.py",
        "layers/blocks.py",
        "layers/norms.py",
        "layers/deep/__init__.py",
        "layers/extra.py",
    }


def test_namespace_packages_and_import_cycles(tmp_path: Path) -> None:
    _write(tmp_path, {"a.py": "import space.b\n", "space/b.py": "import a\nimport space.c as c\n", "space/c.py": ""})
    assert _names(_bundle(tmp_path, "a.py")) == {"a.py", "space/b.py", "space/c.py"}


def test_a_file_inside_a_package_brings_the_packages_above_it(tmp_path: Path) -> None:
    _write(tmp_path, {"p/__init__.py": "import side\n", "p/q/__init__.py": "", "p/q/m.py": "", "side.py": ""})
    assert _names(_bundle(tmp_path, "p/q/m.py")) == {"p/__init__.py", "p/q/__init__.py", "p/q/m.py", "side.py"}


def test_equal_sources_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _write(tmp_path / name, {"b.py": "x = 1\n", "a.py": "import b\n"})
    first, second = (_bundle(tmp_path / name, "a.py") for name in ("one", "two"))
    assert first == second
    (tmp_path / "two" / "b.py").write_text("x = 2\n")
    assert _bundle(tmp_path / "two", "a.py").sha256 != first.sha256


def test_nothing_of_the_user_means_no_bundle(tmp_path: Path) -> None:
    assert make_bundle([], include_root=tmp_path) == Bundle(data=b"", sha256="")


def test_include_takes_files_globs_and_directories(tmp_path: Path) -> None:
    _write(tmp_path, {"a.py": "", "d/x.txt": "1", "d/__pycache__/y.pyc": "2", "d/e/z.txt": "3", "w.json": "{}"})
    bundle = _bundle(tmp_path, "a.py", include=("*.json", "d"))
    assert _names(bundle) == {"a.py", "w.json", "d/x.txt", "d/e/z.txt"}


def test_include_outside_or_without_a_match_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, {"a.py": ""})
    assert "matches nothing" in _refusal(tmp_path, "a.py", include=("*.csv",))
    assert "leads out of" in _refusal(tmp_path, "a.py", include=("../x",))
    assert "leads out of" in _refusal(tmp_path, "a.py", include=("/etc/passwd",))


@pytest.mark.parametrize("pattern", ["", ".", "**x", "x" * 4000])
def test_include_of_what_is_no_pattern_is_refused(tmp_path: Path, pattern: str) -> None:
    _write(tmp_path, {"a.py": ""})
    text = _refusal(tmp_path, "a.py", include=(pattern,))
    assert "which is no pattern of files" in text
    assert len(text) < 300


def test_a_bundle_above_the_cap_names_the_largest_files(tmp_path: Path) -> None:
    _write(tmp_path, {"a.py": ""})
    (tmp_path / "big.bin").write_bytes(bytes(17 << 20))
    text = _refusal(tmp_path, "a.py", include=("*.bin",))
    assert "big.bin 17.0 MiB" in text
    assert "Bundles are for code" in text


def test_sources_above_the_cap_are_refused_before_all_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipesvc.client.bundle.MAX_BUNDLE_BYTES", 1 << 20)
    big = "#" + "x" * 600_000
    files = {"a.py": "import large.one\n", "large/one.py": f"import large.two\n{big}", "large/two.py": f"{big}\n("}
    _write(tmp_path, files)
    text = _refusal(tmp_path, "a.py")  # and not for the last line of two.py
    assert "the source bundle has more than 1 MiB. Largest: large 1.1 MiB. Install large packages" in text


def test_what_an_installer_put_beside_the_users_files_travels_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(
        tmp_path,
        {
            "train.py": "import apart\nimport big.models\nimport old\nimport single\nimport mine\nimport beside\n",
            "mine.py": "",
            "target/big/__init__.py": "",
            "target/big/models.py": "import single\n",
            "target/single.py": "",
            "target/beside.py": "",
            "target/old/__init__.py": "",
            "target/big-1.0.dist-info/RECORD": 'big/__init__.py,sha256=x,0\nbig/models.py,,\n"single.py",,\n',
            "target/old-1.0.egg-info/installed-files.txt": "../old/__init__.py\nPKG-INFO\n",
            "work/apart/__init__.py": "",
            "work/apart.egg-info/top_level.txt": "apart\n",
        },
    )
    for folder in ("target", "work"):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert _names(_bundle(tmp_path, "train.py")) == {"train.py", "mine.py", "beside.py", "apart/__init__.py"}


def test_a_folder_may_hold_both_the_users_files_and_installed_ones(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "train.py": "import big\nimport mine\n",
            "mine.py": "",
            "big/__init__.py": "",
            "big-1.0.dist-info/RECORD": "big/__init__.py,,\nbig-1.0.dist-info/RECORD,,\n",
        },
    )
    assert _names(_bundle(tmp_path, "train.py")) == {"train.py", "mine.py"}


def test_a_file_that_submits_when_imported_is_refused_with_its_line(tmp_path: Path) -> None:
    _write(tmp_path, {"a.py": "import b\n", "b.py": "import pipesvc\n\npipesvc.train(1)\n"})
    text = _refusal(tmp_path, "a.py")
    assert f"{(tmp_path / 'b.py').resolve()}:3 calls pipesvc.train(...)" in text
    assert 'if __name__ == "__main__":' in text


def test_a_file_that_is_not_python_is_refused_with_its_line(tmp_path: Path) -> None:
    _write(tmp_path, {"a.py": "import b\n", "b.py": "x = 1\ny = (\n"})
    assert "b.py:2 is not valid Python" in _refusal(tmp_path, "a.py")


def test_relative_import_beyond_the_top_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, {"p/__init__.py": "", "p/m.py": "from ... import x\n"})
    assert "m.py:1 imports from beyond" in _refusal(tmp_path, "p/m.py")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, {"one/a.py": "", "two/a.py": "x = 1"})
    sources = [
        SourceFile(path=(tmp_path / d / "a.py").resolve(), root=(tmp_path / d).resolve()) for d in ("one", "two")
    ]
    with pytest.raises(PipesvcError, match=r"would both be a\.py"):
        make_bundle(sources, include_root=tmp_path)


def test_installed_files_are_not_the_users(tmp_path: Path) -> None:
    assert not is_local(Path(io.__file__))
    assert not is_local(Path(pytest.__file__))
    assert not is_local(Path(make_bundle.__code__.co_filename))
    assert is_local(tmp_path / "a.py")
    assert not is_local(tmp_path / "a.so")


def test_the_root_is_counted_back_from_the_dotted_name() -> None:
    assert rooted(Path("/w/p/q/m.py"), "p.q.m").root == Path("/w")
    assert rooted(Path("/w/p/q/__init__.py"), "p.q").root == Path("/w")
    assert rooted(Path("/w/p/q/m.py"), "p.q.m").package == "p.q"
