"""Test the installed package: its imports, its public names, its requirements and its wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import tfdbg_arrow
import tfdbg_arrow.query
from tfdbg_arrow._version import SUPPORTED_TENSORFLOW
from tfdbg_arrow.errors import install_command

from .programs.running import run_to_end

ROOT = Path(__file__).resolve().parents[1]


def python(code: str) -> str:
    """Runs code in a new interpreter and returns its output."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("module", ["tfdbg_arrow", "tfdbg_arrow.cli", "tfdbg_arrow.schema", "tfdbg_arrow.errors"])
def test_importing_loads_neither_tensorflow_nor_duckdb(module: str) -> None:
    heavy = {"tensorflow", "keras", "duckdb", "polars", "starlette", "pyspark"}
    loaded = python(f"import {module}, sys, json; print(json.dumps(sorted(sys.modules)))")
    assert heavy & set(json.loads(loaded)) == set()


def load_matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "tools" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    matrix = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = matrix  # dataclasses look their module up
    spec.loader.exec_module(matrix)
    return matrix


def test_the_matrix_tests_exactly_the_lower_bounds() -> None:
    lowest = load_matrix().lowest_versions()
    assert [each for each in lowest if not re.fullmatch(r"[a-z0-9-]+==\d+(\.\d+)*", each)] == []
    assert {"click", "duckdb", "starlette"} <= {each.partition("==")[0] for each in lowest}
    (row,) = re.findall(r"^\| .* \| lowest \| .*$", (ROOT / "docs" / "versions.md").read_text(), re.MULTILINE)
    _, _, _, _, numpy, pyarrow, *_ = row.split("|")
    assert f"numpy=={numpy.strip()}".startswith(next(each for each in lowest if each.startswith("numpy")))
    assert f"pyarrow=={pyarrow.strip()}".startswith(next(each for each in lowest if each.startswith("pyarrow")))


def test_the_matrix_can_collect_the_viewers_tests_without_playwright() -> None:
    matrix = load_matrix()
    assert "playwright" not in matrix.TEST_REQUIREMENTS
    code = f"""
import sys
sys.modules["playwright"] = None
sys.path.insert(0, {str(ROOT)!r})
import tests.viewer.conftest
print(tests.viewer.conftest.__file__)
"""
    assert python(code).strip() == str(ROOT / "tests" / "viewer" / "conftest.py")


def test_supported_versions_are_the_same_everywhere() -> None:
    matrix = load_matrix()
    versions = sorted(matrix.COMBINATIONS, key=lambda version: int(version.partition(".")[2]))
    first, last = versions[0], versions[-1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    end = f"2.{int(last.partition('.')[2]) + 1}"
    assert project["optional-dependencies"]["tensorflow"] == [f"tensorflow>={first},<{end}"]
    assert f"{first} to {last}" == SUPPORTED_TENSORFLOW
    for document in ("README.md", "docs/recording.md"):
        assert re.findall(r"TensorFlow (\d+\.\d+ to \d+\.\d+)", (ROOT / document).read_text()) == [SUPPORTED_TENSORFLOW]
    workflow = (ROOT / ".github" / "workflows" / "matrix.yml").read_text()
    jobs = {(tensorflow, python) for tensorflow in versions for python in ("3.11", "3.12", "3.13")}
    excluded = set(re.findall(r'{tensorflow: "(.*)", python: "(.*)"}', workflow))
    assert f"tensorflow: {json.dumps(versions)}" in workflow
    assert jobs - excluded == {
        (tensorflow, python) for tensorflow, pythons in matrix.COMBINATIONS.items() for python in pythons
    }
    tested = re.findall(
        r"^\| (\d+\.\d+)\.\S+ \| (\d+\.\d+)\.", (ROOT / "docs" / "versions.md").read_text(), re.MULTILINE
    )
    assert set(tested) <= jobs - excluded


def test_recording_does_not_need_duckdb() -> None:
    code = """
import sys
sys.modules["duckdb"] = None
import tfdbg_arrow
import tfdbg_arrow.query
print(callable(tfdbg_arrow.enable), callable(tfdbg_arrow.capture), callable(tfdbg_arrow.mark))
"""
    assert python(code).split() == ["True", "True", "True"]


def test_reading_does_not_need_tensorflow() -> None:
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
import tfdbg_arrow
import tfdbg_arrow.query
print(callable(tfdbg_arrow.open_logdir), callable(tfdbg_arrow.first_nonfinite), callable(tfdbg_arrow.first_nan))
"""
    assert python(code).split() == ["True", "True", "True"]


@pytest.mark.parametrize("package", [tfdbg_arrow, tfdbg_arrow.query])
def test_every_public_name_resolves(package: ModuleType) -> None:
    assert {"first_nonfinite", "open_logdir", "diff", "verify"} <= set(package.__all__)
    missing = [name for name in package.__all__ if not hasattr(package, name)]
    assert missing == []


def test_public_names_resolve_if_pytest_loads_the_package(tmp_path: Path) -> None:
    """pytest rewrites the assertions of a package with a plugin, so it loads the package, unless it is editable."""
    (tmp_path / "conftest.py").write_text("import pytest\npytest.register_assert_rewrite('tfdbg_arrow')\n")
    (tmp_path / "test_names.py").write_text(
        "import tfdbg_arrow\n"
        "from tfdbg_arrow import first_nonfinite\n"
        "def test_it():\n"
        "    assert not hasattr(tfdbg_arrow.__loader__, 'get_source')\n"
        "    assert 'first_nonfinite' in dir(tfdbg_arrow)\n"
    )
    run_to_end("-m", "pytest", "-p", "no:tfdbg_arrow.pytest_plugin", tmp_path).check_returncode()


@pytest.mark.parametrize("package", [tfdbg_arrow, tfdbg_arrow.query])
def test_no_module_replaces_a_public_name(package: ModuleType) -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules & set(package.__all__) <= {"errors"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        tfdbg_arrow.no_such_name  # noqa: B018


def test_the_version_is_the_same_everywhere() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)  # none before the first release
    assert {tfdbg_arrow.__version__, importlib.metadata.version("tfdbg-arrow"), *released[:1]} == {
        tfdbg_arrow.__version__
    }


def test_python_m_runs_the_command() -> None:
    script = Path(sys.executable).parent / "tfdbg-arrow"
    helps = [
        subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
        for command in ([str(script)], [sys.executable, "-m", "tfdbg_arrow"])
    ]
    assert "first-nonfinite" in helps[0]
    assert "first-nonfinite" in helps[1]


def test_requirements_are_pinned_and_have_no_urls() -> None:
    pinned = re.compile(r"[a-z0-9_.-]+==[0-9][0-9a-z.]*|-r (build|demo|test)\.txt|#.*", re.IGNORECASE)
    lines = [
        line for path in sorted((ROOT / "requirements").glob("*.txt")) for line in path.read_text().splitlines() if line
    ]
    assert lines != []
    assert [line for line in lines if not pinned.fullmatch(line) or "://" in line] == []


@pytest.mark.slow
def test_the_requirements_contain_what_they_need() -> None:
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    # tf_keras names the package tensorflow, and the tests use tensorflow-cpu.
    missing = [
        line for line in checked.stdout.splitlines() if " which is not installed" in line and "tf-keras" not in line
    ]
    assert missing == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = {
        line.partition("==")[0]
        for path in (ROOT / "requirements").glob("*.txt")
        for line in path.read_text().splitlines()
        if "==" in line
    }
    names = {
        re.split(r"[<>=~!\[; ]", requirement)[0]
        for requirement in (*project["dependencies"], *project["optional-dependencies"]["test"])
    }
    assert names - pins == set()


def build_wheel(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Builds the wheel of the package in tmp_path / "dist"."""
    build = ["wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(tmp_path / "dist")]
    # The contents do not depend on optimizations, and the build is faster without them.
    build += [f"--config-settings=build-dir={tmp_path / 'build'}", "--config-settings=cmake.build-type=Debug"]
    return subprocess.run([sys.executable, "-m", "pip", *build, str(ROOT)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_build_without_a_compiler_fails_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    monkeypatch.setenv("CXX", "/bin/false")
    done = build_wheel(tmp_path)
    assert done.returncode != 0
    for part in ("needs a C++17 compiler", "install tfdbg-arrow again", "TFDBG_ARROW_NO_CORE=1"):
        assert part in done.stdout + done.stderr
    assert not list(tmp_path.glob("dist/*.whl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "has_compiler",
    [
        pytest.param(True, id="with a compiler", marks=pytest.mark.exhaustive),  # the editable install has one
        pytest.param(False, id="without the core"),
    ],
)
def test_the_wheel_contains_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_compiler: bool) -> None:
    if not has_compiler:
        monkeypatch.setenv("CC", "/bin/false")
        monkeypatch.setenv("CXX", "/bin/false")
        monkeypatch.setenv("TFDBG_ARROW_NO_CORE", "1")
    done = build_wheel(tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())

    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tfdbg_arrow").rglob("*")
        if path.suffix in {".css", ".html", ".js", ".py", ".pyi", ".sql", ".svg", ".typed"}
        or path.name in {"LICENSE", "VERSION"}
    }
    assert {"tfdbg_arrow/py.typed", "tfdbg_arrow/viewer/static/vendor/dagre/LICENSE"} <= sources
    assert sources - names == set()
    assert {name for name in names if name.endswith((".cc", ".h", ".inc", ".pyc"))} == set()
    licenses = {name.partition(".dist-info/licenses/")[2] for name in names if "/licenses/" in name}
    vendored = {f"tfdbg_arrow/viewer/static/vendor/{name}/LICENSE" for name in ("codemirror", "dagre")}
    assert licenses == {"LICENSE", "licenses/nanobind.txt", "licenses/robin_map.txt"} | vendored
    assert any(re.search(r"/native/_core\..*\.so$", name) for name in names) == has_compiler
    if not has_compiler:
        installed = tmp_path / "installed"
        zipfile.ZipFile(wheel).extractall(installed)
        code = f"import sys; sys.path.insert(0, {str(installed)!r}); import tfdbg_arrow; print(tfdbg_arrow.__file__)"
        # -S disables the site packages, and with them the import hook of the editable install.
        shown = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout
        assert shown.strip() == str(installed / "tfdbg_arrow" / "__init__.py")


def test_the_license_of_nanobind_is_that_of_the_installed_one() -> None:
    (installed,) = (
        file for file in importlib.metadata.files("nanobind") or () if file.as_posix().endswith("licenses/LICENSE")
    )
    assert (ROOT / "licenses" / "nanobind.txt").read_text() == installed.read_text()


def load_index_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("index_page", ROOT / "tools" / "index_page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    return page


def test_the_description_for_an_index_has_no_relative_links() -> None:
    page = load_index_page()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.compile(r"\]\(([^)]*)\)|src(?:set)?=\"([^\"]*)\"")
    targets = [link or image for link, image in links.findall(page.index_page(readme, "https://example.org/a/b"))]
    assert "https://example.org/a/b/blob/HEAD/docs/guide.md" in targets
    assert "https://example.org/a/b/raw/HEAD/docs/images/overview-light.png" in targets
    assert [target for target in targets if not target.startswith("https://")] == []
    without_address = page.index_page(readme, None)
    assert links.findall(without_address) == []
    assert "The guide follows this bug" in without_address


def test_only_a_build_on_github_knows_the_links_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    page = load_index_page()
    variables = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "a/b"}
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    assert page.dynamic_metadata({}, {})["urls"] == {}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    metadata = page.dynamic_metadata({}, {})
    assert metadata["urls"]["Source"] == "https://example.org/a/b"
    assert "https://example.org/a/b/blob/HEAD/docs/guide.md" in metadata["readme"]["text"]
    for label, address in metadata["urls"].items():
        assert len(label) <= 32  # the limit of the core metadata
        head, is_file, path = address.partition("/blob/HEAD/")
        assert not is_file or (head == "https://example.org/a/b" and (ROOT / path).is_file())
    # The wheels are built in containers, which see only these variables of the machine.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["cibuildwheel"]["environment-pass"]) == set(variables)


def test_the_command_for_missing_packages_names_the_packages_of_the_extra() -> None:
    command = install_command("viewer", "s3fs")
    assert command.startswith("pip install ")
    assert re.findall(r"[\w-]+(?=>=)|s3fs", command) == ["jinja2", "pygments", "starlette", "uvicorn", "s3fs"]
    for extra in ("remote", "spark", "tensorflow"):
        assert len(install_command(extra).split()) == 3
