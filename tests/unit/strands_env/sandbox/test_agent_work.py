"""The agent's work, selected from its layers: nothing else comes along, and all of it does."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from strands_env.sandbox.bubblewrap.guest.system import remove_tree
from strands_env.sandbox.folders import remove_owned_folder
from strands_env.sandbox.images import ImageSandbox
from strands_env.sandbox.images.work import DEFAULT_WORK, AgentFiles, LaidWork, check_work, pattern_of_directory
from tests.container_support import require_images

SITE = "app/v/lib/python3.11/site-packages"
WHITEOUT = object()
OPAQUE = object()
"""In place of a folder's files: it hides the image's."""


def write(folder: Path, files: Mapping[str, object]) -> str:
    """Files of a layer: text, `Path` for a link, `WHITEOUT`, or `OPAQUE` for a folder that hides the one below."""
    folder.mkdir(parents=True)
    for path, what in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, Path):
            place.symlink_to(what)
        elif what is WHITEOUT:
            os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
        elif what is OPAQUE:
            place.mkdir(exist_ok=True)
            os.setxattr(place, "user.overlay.opaque", b"y")
        else:
            place.write_text(str(what))
    return str(folder)


def agent_files(
    folder: Path,
    image: Mapping[str, object],
    *layers: Mapping[str, object],
    before: Mapping[str, object] | None = None,
    directory: str = "/app",
) -> AgentFiles:
    return AgentFiles(
        root=write(folder / "root", image),
        before=write(folder / "before", before or {}),
        layers=[write(folder / f"layer{index}", layer) for index, layer in enumerate(layers)],
        path_variable="/opt/tool/bin:/usr/bin",
        directory=directory,
        shown=["/shown"],
    )


def listed(folder: str) -> dict[str, str]:
    """Everything below a folder but plain folders: text of files, targets of links, `gone` and `hides`."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                text = f"-> {os.readlink(path)}"
            elif stat.S_ISCHR(mode):
                text = "gone"
            elif stat.S_ISDIR(mode):
                if not (hides := "user.overlay.opaque" in os.listxattr(path)) and os.listdir(path):
                    continue
                text = "hides" if hides else "empty"
            else:
                text = Path(path).read_text()
            found[os.path.relpath(path, folder)] = text
    return found


@pytest.mark.parametrize("move", [True, False])
@pytest.mark.parametrize(
    ("image", "layer", "laid"),
    [
        ({"app/a": "1"}, {"app/a": "2", "usr/bin/cat": "x", "etc/x": "x"}, {"app/a": "2"}),
        ({"app/a": "1"}, {"app/a": WHITEOUT}, {"app/a": "gone"}),
        ({"app/a": "1"}, {"app": WHITEOUT}, {"app": "gone"}),
        ({"app/a": "1"}, {"app": "a file"}, {"app": "a file"}),
        ({"app/a": "1", "usr/y": ""}, {"app": Path("/usr"), "usr/x": "x"}, {"app": "-> /usr"}),
        ({"srv/b/a": "1"}, {"srv": Path("/usr"), "usr/b/a": "x"}, {"srv/b": "gone"}),
        ({"srv/b/a": "1"}, {"srv": WHITEOUT}, {"srv/b": "gone"}),
        ({"srv/b/a": "1"}, {"srv": OPAQUE, "srv/b/c": "3"}, {"srv/b": "hides", "srv/b/c": "3"}),
        ({"srv/b/a": "1"}, {"srv": OPAQUE, "srv/c": "3"}, {"srv/b": "gone"}),
        ({"app/a": "1"}, {"app/tests": Path("/tests"), "tests/x": "x"}, {"app/tests": "gone"}),
        ({"app": Path("data/app"), "data/app/a": "1"}, {"data/app/a": "2", "data/b": "x"}, {"data/app/a": "2"}),
        ({"app": Path("data/app"), "data/app/a": "1"}, {"app": "now a file"}, {"app": "now a file"}),
        ({"app": Path("../../../../data"), "data/a": "1"}, {"data/a": "2"}, {"data/a": "2"}),
        ({"app": Path("app")}, {"app": "x"}, {"app": "x"}),
        ({"app": Path("/tests")}, {"tests/x": "x"}, {}),
        ({"app": Path("/")}, {"usr/x": "x"}, {}),
    ],
)
def test_the_work_and_nothing_else_is_laid(
    tmp_path: Path, image: Mapping[str, object], layer: Mapping[str, object], laid: Mapping[str, str], move: bool
) -> None:
    files = agent_files(tmp_path, image, layer)
    (made,) = files.lay_work(["/app", "/srv/b"], str(tmp_path / "laid"), move=move).folders
    assert listed(made) == laid


def test_a_file_in_place_of_a_folder_that_the_image_lacks_deletes_nothing(tmp_path: Path) -> None:
    """It must not break the grading: an agent could withdraw from a reward of 0 so."""
    files = agent_files(tmp_path, {"opt/x": "1"}, {"opt/a": "a file"})
    (made,) = files.lay_work(["/opt/a/b/c"], str(tmp_path / "laid"), move=True).folders
    assert listed(made) == {"opt": "empty"}


def test_folders_on_the_way_to_work_are_the_images(tmp_path: Path) -> None:
    files = agent_files(tmp_path, {"srv/b/a": "1"}, {"srv/b/a": "2"})
    os.chmod(tmp_path / "root/srv", 0o750)
    os.chmod(tmp_path / "layer0/srv", 0o777)
    os.chmod(tmp_path / "layer0/srv/b", 0o1777)
    (made,) = files.lay_work(["/srv/b"], str(tmp_path / "laid"), move=True).folders
    modes = [stat.S_IMODE(os.stat(f"{made}/{path}").st_mode) for path in ("srv", "srv/b")]
    assert modes == [0o750, 0o1777]


def test_a_path_of_work_below_another_is_laid_once(tmp_path: Path) -> None:
    files = agent_files(tmp_path, {}, {"a/x/y": "", "a-b/z": "", "a/c": ""})
    assert files.select(["/a/x", "/a-b", "/a", "/a/x/y", "/tests", "/a"]) == ["a", "a-b"]


def test_every_layer_gives_its_part(tmp_path: Path) -> None:
    files = agent_files(tmp_path, {"app/a": "1"}, {"app/a": "2", "etc/x": ""}, {"app/a": WHITEOUT, "app/b": "3"})
    below, above = files.lay_work(["/app"], str(tmp_path / "laid"), move=True).folders
    assert listed(below) == {"app/a": "2"} and listed(above) == {"app/a": "gone", "app/b": "3"}
    assert (tmp_path / "layer0/app/a").exists(), "a snapshot is used again"


def test_what_was_there_before_the_agent_comes_back_only_outside_its_work(tmp_path: Path) -> None:
    before = {"app/a": "1", "logs/verifier/.keep": ""}
    files = agent_files(tmp_path, {}, {**before, "app/b": ""}, before=before)
    os.remove(tmp_path / "layer0/app/a")
    files.lay_work(["/app"], str(tmp_path / "laid"), move=True)
    assert listed(files.before) == {"logs/verifier/.keep": ""}


def test_the_default_leaves_out_settings_and_programs(tmp_path: Path) -> None:
    image = {"opt/conda/bin/python": "", "opt/data/x": "", "opt/suite/inner/bin/tool": "", "root/.bashrc": ""}
    layer = dict.fromkeys(
        ("root/.bashrc", "root/.local/bin/env", "root/bin/cat", "root/notes", "home/u/.profile", "home/u/w/x",
         "opt/conda/lib/site.py", "opt/data/x", "opt/suite/y", "opt/tool/bin/cat", "opt/made/bin/x", "srv/www/i",
         "etc/hosts", "usr/bin/git", "home/.x/y", "opt/.hidden/x"), "changed",
    )  # fmt: skip
    files = agent_files(tmp_path, image, layer)
    (made,) = files.lay_work(DEFAULT_WORK, str(tmp_path / "laid"), move=True).folders
    assert set(listed(made)) == {"root/notes", "home/u/w/x", "opt/data/x", "opt/made/bin/x", "srv/www/i"}


def test_the_default_leaves_out_programs_of_the_image_however_deep(tmp_path: Path) -> None:
    image = {
        "opt/suite/v1/x/bin/tool": "", "opt/suite/v1/data/y": "", "opt/all": Path("/usr"), "usr/share/x": "",
        "opt/linked": Path("/lib/jdk"), "lib/jdk/bin/java": "", "opt/files": Path("/data"), "data/x": "",
        "srv/a/tool": "\x7fELF", "srv/a/source": "", "srv/link": Path("/usr/bin/git"), "usr/bin/git": "",
    }  # fmt: skip
    layer = {path: "changed" for path in image if path.startswith(("opt/suite", "srv", "data", "lib", "usr"))}
    layer |= {"opt/suite/v1/x/pyvenv.cfg": "", "opt/suite/v1/new": "", "opt/suite/new": "", "srv/a/tool": "\x7fELF"}
    layer |= {"opt/linked": "changed", "opt/files": "changed", "opt/all": Path("/srv")}
    files = agent_files(tmp_path, image, layer)
    os.chmod(tmp_path / "root/srv/a/tool", 0o755)
    (made,) = files.lay_work(DEFAULT_WORK, str(tmp_path / "laid"), move=True).folders
    assert set(listed(made)) == {"opt/suite/new", "opt/files", "data/x", "srv/a/source"}


@pytest.mark.parametrize(
    ("target", "is_laid"),
    [
        ("/tests/expected", False), ("../../tests", False), ("/proc/self/root/tests/x", False),
        ("/proc/self/cwd/../tests/x", False), ("/proc/1/../../tests/x", False), ("/dev/fd/../root/tests", False),
        ("/given/tests/x", False), ("/logs/verifier/reward.txt", False), ("/solution/solve.sh", False),
        ("/./" * 1300 + "tests/x", False), ("../" * 1300 + "tests/x", False), ("/app/.." * 500 + "/tests/x", False),
        ("/proc/self/cmdline", False), ("/proc/thread-self/environ", False), ("/proc/cpuinfo", False),
        ("/dev/null", False), ("/dev/stdin", False), ("/dev/fd/3", False), ("/sys/kernel", False),
        ("/tests/../app/other", False), ("/given/etc/mtab", False), ("/given", False), ("/", False), ("/logs", False),
        ("link", False), ("/chain/0", False), ("/chain/20", True), ("/deep/" + "d/" * 1900, False),
        ("/logs/agent/x", False), ("../../logs/agent", False), ("/logs/artifacts/y", False),
        ("/tmp/expected", False), ("/hidden/x", False), ("n\n/../../../tests", False), ("\udcff/../../../proc", False),
        ("tests/x", True), ("/app/tests", True), ("/usr/share/x", True), ("nothing", True), ("/shown/node", True),
        ("/etc/../usr/share/x", True), ("/app/d/./tests/../tests/x", True), ("/./" * 1300 + "app/d/tests/x", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [0o755, 0o000])
def test_no_link_of_the_work_leads_to_what_is_not_the_agents(
    tmp_path: Path, target: str, is_laid: bool, mode: int
) -> None:
    """Nor where folders on the way are closed, which are no barrier to root in the tests' container."""
    image = {"given": Path(".."), "etc/mtab": Path("/proc/mounts"), "usr/share/x": "", "tests": Path("/hidden")}
    image |= {f"chain/{number}": Path(f"{number + 1}") for number in range(45)}
    logs = {"logs/agent/x": "", "logs/agent/last": Path("x")}
    image |= {"chain/45": "", "deep": Path("/".join(["d"] * 1900))}
    files = agent_files(tmp_path, image, {"app/other": Path("/tests"), "app/d/tests/x": "", **logs})
    os.symlink(target, tmp_path / "layer0/app/d/link")
    (tmp_path / "layer0/app/d").chmod(mode)
    laid = files.lay_work(["/app", "/logs/agent", "/logs/artifacts"], str(tmp_path / "laid"), move=True)
    (made,) = laid.folders
    assert listed(f"{made}/logs")["agent/last"] == "-> x"
    assert stat.S_IMODE(os.stat(f"{made}/app/d").st_mode) == mode
    assert listed(f"{made}/app/d")["link"] == (f"-> {target}" if is_laid else "gone")
    assert ("/app/d/link" in laid.cut_links) is not is_laid


def test_a_home_for_a_work_directory_leaves_out_its_settings(tmp_path: Path) -> None:
    files = agent_files(
        tmp_path, {"root/p/bin/x": ""}, dict.fromkeys(("root/p/a", "root/.bashrc", "root/bin/b"), "changed")
    )
    (made,) = files.lay_work([str(pattern_of_directory("/root/"))], str(tmp_path / "laid"), move=True).folders
    assert set(listed(made)) == {"root/p/a", "root/bin/b"} and pattern_of_directory("/home/u") == "/home/u/[!.]*"
    assert [pattern_of_directory(folder) for folder in ("/app", "/root/x", "//home/u/x")] == [
        "/app",
        "/root/x",
        "/home/u/x",
    ]
    nothing = ("/", "", "/usr/", "/home", "/x/..", "/usr/local/lib", "/sbin", "/usr/share")
    assert [pattern_of_directory(folder) for folder in nothing] == [None] * len(nothing)


def test_what_changed_outside_the_work_is_listed_by_the_highest_path_of_it(tmp_path: Path) -> None:
    image = {"etc/hosts": "", "etc/nginx/conf": "", "usr/lib/python3/os.py": "", "var/cache/apt/x": ""}
    before = {"etc/hosts": "127.0.0.1", "logs/agent/.keep": ""}
    layer = {
        "etc/nginx/conf": "changed", "etc/nginx/more/a": "", "etc/nginx/more/b": "", "srv/made/a": "", "app/x": "",
        "usr/lib/python3/__pycache__/os.pyc": "", "var/cache/apt/x": "", "root/.cache/uv/x": "", "etc/ld.so.cache": "",
        "etc/gone": WHITEOUT, "tests/x": "", "solution/solve.sh": "", "logs/verifier/x": "", "etc/a*": "", "etc/*": "",
    }  # fmt: skip
    files = agent_files(tmp_path, image, {**layer, "root/.x": ""}, before={**before, "root/a": "", "solution/a": ""})
    shutil.copytree(tmp_path / "before/etc", tmp_path / "layer0/etc", dirs_exist_ok=True)
    found = files.changes(["/app", "/srv/*"]).paths
    assert found == ["/etc/[*]", "/etc/a*", "/etc/gone", "/etc/nginx/conf", "/etc/nginx/more", "/root/.x"]
    assert {f"/{path}" for path in files.select(found)} == {*found, "/etc/*"} - {"/etc/[*]"}
    more = files.changes(["/app", "/srv/*"], by_products=True).paths
    assert {*more} - {*found} == {"/var/cache/apt/x", "/root/.cache", "/etc/ld.so.cache"}


@pytest.mark.parametrize(
    ("image", "layer", "found"),
    [
        ({"app/tool": "\x7fELF1"}, {"app/tool": "\x7fELF2"}, ["/app/tool"]),
        ({"app/tool": "\x7fELF1"}, {"app/tool": "\x7fELF1", "app/made": "\x7fELF"}, []),
        ({"app/tool": "\x7fELF1"}, {"app/tool": WHITEOUT}, ["/app/tool"]),
        ({"app/v/bin/py": "#!x"}, {"app/v/bin/py": Path("/usr/bin/x")}, ["/app/v/bin/py"]),
        ({"app/v/lib/python3.11/a.py": "1"}, {"app/v/lib/python3.11/a.py": "2"}, ["/app/v/lib/python3.11/a.py"]),
        ({}, {"app/v/lib/python3.11/site-packages/a.pth": "import os"}, ["/app/v/lib/python3.11/site-packages/a.pth"]),
        ({"app/main.py": "1"}, {"app/main.py": "2", "app/run.sh": "#!/bin/sh", "app/lib/json.py": ""}, []),
        ({}, {"app/json.py": "", "app/sub/conftest.py": ""}, ["/app/json.py", "/app/sub/conftest.py"]),
        ({}, {"app/json/__init__.py": "", "app/re.pyc": ""}, ["/app/json/__init__.py", "/app/re.pyc"]),
        ({}, {"app/json.txt": "", "app/json/x.py": "", "app/sub/json/__init__.py": "", "app/new/bin/x": ""}, []),
        ({"app/v/bin/py": "#!x"}, {"app/v": Path("mine"), "app/mine/bin/py": "#!y"}, ["/app/v"]),
        ({"app/v/bin/py": "#!x", "app/data/x": ""}, {"app/v": WHITEOUT, "app/data": WHITEOUT}, ["/app/v"]),
        ({f"{SITE}/a.py": "1"}, {f"{SITE}/__pycache__/a.pyc": "x"}, []),
        ({}, {f"{SITE}/a.dist-info/entry_points.txt": "[pytest11]"}, [f"/{SITE}/a.dist-info/entry_points.txt"]),
        ({}, {f"{SITE}/a.dist-info/entry_points.txt": "[console_scripts]"}, []),
        ({"app/l": Path("/usr/bin")}, {"app/l/x": "y"}, []),
        ({}, {"app/iniconfig.py": "", "app/py.py": "", "app/a/attr.py": ""},
         ["/app/a/attr.py", "/app/iniconfig.py", "/app/py.py"]),
        ({}, {"app/pluggy.so": "", "app/pluggy2.so": "", "app/packaging.abi3.so": "", "app/pytest_x.py": ""},
         ["/app/packaging.abi3.so", "/app/pluggy.so", "/app/pytest_x.py"]),
        ({}, {"app/data/__init__.py": "", "app/json": Path("data"), "app/notes": Path("data")}, ["/app/json"]),
        ({"usr/lib/python3/dist-packages/helper/__init__.py": ""}, {"app/helper.py": "", "app/other.py": ""},
         ["/app/helper.py"]),
        ({}, {"app/a.dist-info/entry_points.txt": "[pytest11]\nx = y"}, ["/app/a.dist-info/entry_points.txt"]),
        ({}, {"app/b/A.EGG-INFO/entry_points.txt": "[pytest11]"}, ["/app/b/A.EGG-INFO/entry_points.txt"]),
        ({}, {"app/a.egg-info/entry_points.txt": "#" * (1 << 17)}, ["/app/a.egg-info/entry_points.txt"]),
        ({}, {"app/a.dist-info": Path("data"), "app/data/entry_points.txt": "[pytest11]"}, ["/app/a.dist-info"]),
        ({}, {"app/a.dist-info/entry_points.txt": Path("x"), "app/a.egg-info/entry_points.txt": "[x]"},
         ["/app/a.dist-info/entry_points.txt"]),
        ({}, {"app/.git": "gitdir: data", "app/b/.git": Path("../data"), "app/data/HEAD": "", "app/data/x": ""},
         ["/app/.git", "/app/b/.git"]),
        ({}, {"app/.git/modules/a/config": "", "app/.git/commondir": "", "app/.git/HEAD": ""},
         ["/app/.git/commondir", "/app/.git/modules/a/config"]),
        ({}, {"app/HEAD": "", "app/config": "", "app/hooks/update": "", "app/refs/x": "", "app/a/config": ""},
         ["/app/config", "/app/hooks/update"]),
        ({"app/HEAD": ""}, {"app/commondir": "", "app/config.worktree": ""},
         ["/app/commondir", "/app/config.worktree"]),
        ({"app/r/HEAD": "", "app/r/config": "x"}, {"app/r/config": "x", "app/r/description": ""}, []),
        ({}, {"app/hypothesis/__init__.py": "", "app/coverage.py": "", "app/six.py": "", "app/src/six.py": ""},
         ["/app/coverage.py", "/app/hypothesis/__init__.py", "/app/six.py"]),
        ({}, {"app/.git/info/attributes": "", "app/.gitattributes": "", "app/bare/HEAD": "", "app/bare/info/x": ""},
         ["/app/.git/info/attributes", "/app/.gitattributes", "/app/bare/info/x"]),
        ({}, {"app/.bash_aliases": "", "app/.zshrc": "", "app/.config/git/attributes": "", "app/.config/x/y": ""},
         ["/app/.bash_aliases", "/app/.config/git/attributes", "/app/.zshrc"]),
        ({"usr/x": ""}, {"app/l": Path("/usr"), "app/f": Path("/usr/x")}, ["/app/l"]),
        ({}, {"app/a\nb/conftest.py": "", "app/\udcff/conftest.py": ""},
         ["/app/\\xff/conftest.py", "/app/a\nb/conftest.py"]),
    ],
)  # fmt: skip
def test_changed_programs_are_reported(
    tmp_path: Path, image: Mapping[str, object], layer: Mapping[str, object], found: Sequence[str]
) -> None:
    files = agent_files(tmp_path, image, layer)
    assert sorted(files.lay_work(["/app"], str(tmp_path / "laid"), move=True).changed_programs) == found


TESTS = {
    "test.sh": "cp -r /tests/. /app; cd /app/deep && prove t && make check && tool x; uv pip install Some-Helper==1",
    "test_outputs.py": "from helpers import check\nimport json, mine, subprocess\nsubprocess.run(['runner', 'x'])",
    "helpers.py": "",
    "Makefile": "check:",
    "expected.txt": "42",
    "data/__init__.py": "",
}


@pytest.mark.parametrize(
    ("path", "is_named"),
    [
        ("app/test_outputs/__init__.py", True), ("app/helpers/other.py", True), ("app/a/b/Helpers.so", True),
        ("app/helpers", True), ("app/__init__.py", True), ("app/data/__init__.py", True),
        ("app/tests/__init__.py", True), ("app/GNUmakefile", True), ("app/makefile", True),
        ("app/a/EXPECTED.txt", True), ("app/.proverc", True),
        ("app/.runner/settings", True), ("app/runner.config.js", True), ("app/runnerfile", True),
        ("app/some_helper.py", True), ("app/deep/json.py", True),
        ("app/answer.txt", False), ("app/mine/__init__.py", False), ("app/mine.py", False), ("app/test.py", False),
        ("app/a/json.py", False), ("app/.gitignore", False), ("app/data/out.csv", False), ("app/runner.py", False),
        ("app/unexpected.txt", False), ("app/profile", False),
    ],
)  # fmt: skip
def test_what_tests_could_find_in_place_of_their_own_files_is_named(tmp_path: Path, path: str, is_named: bool) -> None:
    image = {"usr/bin/runner": "", "usr/bin/x": ""}
    files = replace(agent_files(tmp_path, image, {path: "changed"}), tests=[write(tmp_path / "tests", TESTS)])
    laid = files.lay_work(["/app"], str(tmp_path / "laid"), move=True)
    assert laid.changed_programs == ([f"/{path}"] if is_named else [])


def test_compiled_files_of_the_agent_are_left_out_and_those_of_the_image_are_seen(tmp_path: Path) -> None:
    image = {"app/__pycache__/a.pyc": "image's", "app/a.py": ""}
    layer = {
        "app/__pycache__/a.pyc": "forged",
        "app/__pycache__/b.pyc": WHITEOUT,
        "app/b/__pycache__/c.pyc": Path("/x"),
    }
    laid = agent_files(tmp_path, image, {**layer, "app/d.pyc": ""}).lay_work(
        ["/app"], str(tmp_path / "laid"), move=True
    )
    assert listed(laid.folders[0]) == {"app/__pycache__": "empty", "app/b/__pycache__": "empty", "app/d.pyc": ""}
    assert laid.changed_programs == laid.cut_links == []


def test_work_that_is_in_use_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    layer = {"app/link": Path("/tests"), "app/a/__pycache__/b.pyc": "", "app/conftest.py": "", "srv/conftest.py": ""}
    files = agent_files(tmp_path, {}, layer)
    laid = LaidWork(files, files.layers, ["app"], in_use=True)
    assert sorted(laid.changed_programs) == ["/app/a/__pycache__/b.pyc", "/app/conftest.py", "/app/link"]
    assert laid.cut_links == [] and os.readlink(tmp_path / "layer0/app/link") == "/tests"


def test_modules_are_named_everywhere_where_the_work_directory_says_nothing(tmp_path: Path) -> None:
    layer = {"app/a/json.py": "", "app/a/b/re/__init__.py": "", "app/a/mine.py": ""}
    laid = agent_files(tmp_path, {}, layer, directory="/").lay_work(["/app"], str(tmp_path / "laid"), move=True)
    assert sorted(laid.changed_programs) == ["/app/a/b/re/__init__.py", "/app/a/json.py"]


def test_what_the_task_brought_is_not_the_agents(tmp_path: Path) -> None:
    before = {"app/conftest.py": "", "app/link": Path("/dev/null"), "app/json": Path("/usr")}
    laid = agent_files(tmp_path, {"usr/x": ""}, {**before, "app/a": ""}, before=before).lay_work(
        ["/app"], str(tmp_path / "laid"), move=True
    )
    assert (laid.changed_programs, laid.cut_links) == ([], [])


def test_no_number_of_files_hides_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bound that is reached is itself a finding, or means no."""
    monkeypatch.setattr("strands_env.sandbox.images.work.MAX_WALKED", 20)
    monkeypatch.setattr("strands_env.sandbox.images.programs.MAX_WALKED", 20)
    monkeypatch.setattr("strands_env.sandbox.images.paths._MAX_STEPS", 200)
    many = {f"{folder}/{number:03}/x": "" for folder in ("a", "m", "z") for number in range(100)}
    image = {f"opt/big/{path}": "" for path in many} | {"opt/big/a/050/x": "\x7fELF", "usr/x": ""}
    image |= {f"etc/{folder}/y": "" for folder in ("a", "m", "z")}
    layer = {f"app/{path}": "" for path in many} | {f"etc/{path}": "" for path in many}
    layer |= {f"app/l{number}": Path("/usr/x") for number in range(200)}
    layer |= {"app/a/conftest.py": "", "app/zz/conftest.py": "", "opt/big/a/050/x": "", "opt/big/new": ""}
    files = agent_files(tmp_path, image, layer)
    (tmp_path / "root/opt/big/a/050/x").chmod(0o755)
    assert not files.changes(["/app"]).is_complete
    laid = files.lay_work(["/app", "/opt/*"], str(tmp_path / "laid"), move=True)
    assert {"/app/a/conftest.py", "/app/zz/conftest.py"} <= set(laid.changed_programs)
    assert set(listed(f"{laid.folders[0]}/opt")) == {"big/new"}
    assert 50 == len(laid.cut_links) < list(listed(laid.folders[0]).values()).count("gone")


def test_more_findings_than_are_listed_and_folders_of_any_depth_are_findings(tmp_path: Path) -> None:
    files = agent_files(tmp_path, {}, {f"app/{number}/conftest.py": "" for number in range(60)})
    place = os.open(tmp_path / "layer0/app", os.O_RDONLY)
    for _ in range(2100):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.symlink("/tests", "link", dir_fd=place)
    laid = files.lay_work(["/app"], str(tmp_path / "laid"), move=True)
    assert len(laid.changed_programs) == 51 and "(more than 50 such files)" in laid.changed_programs
    (cut,) = laid.cut_links
    assert cut.endswith("/.../link")
    os.close(place)
    remove_tree(str(tmp_path / "laid"))


def test_paths_of_work_are_written_in_one_way() -> None:
    assert check_work(["/a//b/", "/a/b", "//c/../d"]) == ("/a/b", "/d")


# ---- against a real container ----------------------------------------------------------------------------------------

WORK = ("/app", "/srv/a/b", "/data/x")
PLACES = ("/app", "/app/d", "/app/d/e", "/srv", "/srv/a", "/srv/a/b", "/srv/a/b/c", "/data", "/data/x", "/data/x/y")
SHOW = """p={}; while [ "$p" != / ]; do p=$(dirname $p); [ -L $p ] && exit; done
find {} 2> /dev/null | sort | while read -r f; do
  stat -c '%n %f %u' "$f"; readlink "$f"; [ -f "$f" ] && [ ! -L "$f" ] && cat "$f"; done; true"""


CHANGES = (
    "rm -rf {one}", "mkdir -p {one}", "echo {number} > {one}/file", "echo {number} > {one}", "mv {one} {other}",
    "ln -s {other} {one}", "chmod 70{digit} {one}", "cp -r {one} {other}/copy", "ln {one}/file {other}/linked",
    "rm -rf {one}; mkdir -p {one}", "chown 1000 {one}",
)  # fmt: skip


def random_script(chance: random.Random) -> str:
    lines = []
    for number in range(25):
        one, other = chance.choice(PLACES), chance.choice(PLACES)
        lines.append(chance.choice(CHANGES).format(one=one, other=other, number=number, digit=number % 8))
    return "".join(f"{{ {line}; }} 2> /dev/null\n" for line in lines) + "true"


@pytest.mark.parametrize("move", [True, False])
async def test_a_fresh_container_shows_the_work_as_the_agent_left_it(tmp_path: Path, move: bool) -> None:
    image = tmp_path / "root"
    shutil.copytree(require_images(), image, symlinks=True)
    for place in ("app/d/e", "srv/a/b/c", "data/x/y"):
        (image / place).mkdir(parents=True)
        (image / place / "file").write_text("the image's")
    os.chmod(tmp_path, 0o755)
    for seed in range(move, 8, 2):  # each script in one of the two ways
        script, views = random_script(random.Random(seed)), []
        agent = ImageSandbox(str(image))
        async with agent:
            await agent.snapshot(tmp_path / f"{seed}-before")
            assert not (await agent.exec(script)).is_error
            await agent.exec("touch /etc/mine")
            views.append([(await agent.exec(SHOW.format(path, path))).stdout for path in WORK])
            folder = os.path.dirname(agent.layer) if not move else await agent.release_layer()
            before = str(tmp_path / f"{seed}-before/upper")
            layers = [f"{folder}/upper"]
            files = AgentFiles(root=str(image), before=before, layers=layers, path_variable="/bin", directory="/app")
            place = f"{folder}/laid" if move else str(tmp_path / f"{seed}-laid")
            laid = files.lay_work(WORK, place, move=move)
            async with agent.sibling(layers=(before, *laid.folders)) as fresh:
                views.append([(await fresh.exec(SHOW.format(path, path))).stdout for path in WORK])
                assert (await fresh.exec("[ -e /etc/mine ]")).is_error
        if move:
            remove_owned_folder(os.path.dirname(folder))
        assert views[0] == views[1], script
