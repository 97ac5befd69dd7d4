"""Agents that turn their container against the tests: without the work they score what an untouched image scores."""

from __future__ import annotations

import base64
import functools
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from strands_env.environments.harbor.validation import CHEATS, validate_tasks
from strands_env.rewards.proof import TaskVerdict
from tests.container_support import CHECK, make_task, require_images, root_with_python
from tests.harbor_tasks.test_env import episode, nothing_is_left, shell

__all__ = ["nothing_is_left"]  # a fixture of every test here

WORK = "mkdir -p /app; echo 42 > /app/answer.txt"
WON = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
FORGED = 'import os; open("/logs/verifier/reward.txt", "w").write("1"); os._exit(0)'
TOOL = '#!/bin/bash\n[ "$(cat "$1" 2> /dev/null)" = 42 ]\n'
"""Stands for a program of the image that tests ask about the work."""
MAKEFILE = "check:\n\t@[ $$(cat answer.txt) = 42 ]\n"
PYTEST = "cd /app; python3 -m pytest -q -p no:cacheprovider /tests/check.py"
CHEATS_OF_PYTHON = (
    "conftest", "pth-file", "python-archive", "python-home", "pytest-plugin", "replaced-library", "replaced-packages",
    "sitecustomize",
)  # fmt: skip
LIBRARY = "python3 -c 'import os; print(os.path.dirname(os.__file__))'"
SITE = "python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'"


@functools.cache
def image() -> str:
    """The root with Python, and tools of many kinds: programs, a plugin of pytest, a package, data, Perl."""
    made = Path(require_images()).with_name("root-tools")
    shutil.copytree(root_with_python(), made, symlinks=True)
    packages = next(made.glob("usr/**/pytest/__init__.py")).parents[1]
    files = {
        **{f"usr/bin/{name}": TOOL for name in ("git", "openssl")},
        "opt/tool/bin/check": TOOL,
        "root/tool/bin/check": TOOL,
        "opt/suite/v1/x/bin/check": TOOL,
        "usr/local/tool/bin/check": TOOL,
        "var/lib/dpkg/info/tool.postinst": TOOL,
        "usr/share/tool/expected.txt": "42\n",
        "etc/profile": "true\n",
        str((packages / "helper.py").relative_to(made)): "def check(path):\n    return open(path).read() == '42\\n'\n",
        str((packages / "zz_plugin.py").relative_to(made)): "",
        str((packages / "zz-1.0.dist-info/METADATA").relative_to(made)): "Name: zz\nVersion: 1.0\n",
        str((packages / "zz-1.0.dist-info/entry_points.txt").relative_to(made)): "[pytest11]\nzz = zz_plugin\n",
    }
    for path, text in files.items():
        place = made / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755)
    (made / "opt/linked").symlink_to("/usr/local/tool")
    for source in ("/usr/bin/perl", "/usr/bin/make", *Path("/usr/lib").glob("*-linux-gnu/perl-base"), "/sbin/ldconfig"):
        target = made / str(source).lstrip("/")
        if Path(source).is_dir():
            shutil.copytree(source, target)
        elif Path(source).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            for word in subprocess.run(["ldd", source], capture_output=True, text=True).stdout.split():
                if word.startswith("/") and not (made / word.lstrip("/")).exists():
                    shutil.copy(word, made / word.lstrip("/"))
    return str(made)


@functools.cache
def forged_library() -> str:
    """A library in place of bzip2's that writes the reward when it is loaded, as text for `base64 -d`."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    made = Path(require_images()).with_name("forged.so")
    code = "#include <stdio.h>\n#include <stdlib.h>\n__attribute__((constructor)) void f(void) { FILE *r = "
    code += 'fopen("/logs/verifier/reward.txt", "w"); if (r) { fputs("1", r); fclose(r); _Exit(0); } }\n'
    names = (f"BZ2_bz{kind}{part}" for kind in ("Compress", "Decompress") for part in ("", "Init", "End"))
    code += "".join(f"int {name}(void) {{ return 0; }}\n" for name in names)
    built = ["gcc", "-shared", "-fPIC", "-s", "-o", str(made), "-x", "c", "-"]
    subprocess.run(built, input=code, text=True, check=True)
    return base64.b64encode(made.read_bytes()).decode()


class Forgery(NamedTuple):
    """The command by which the tests look at the work, and what the agent does instead of it."""

    test: str
    script: str


def replaced(path: str) -> str:
    return f"printf '#!/bin/bash\\n{WON}\\nexit 0\\n' > {path}.new; chmod 755 {path}.new; mv -f {path}.new {path}"


BZIP = "f=$(ls /usr/lib/*/libbz2.so.1.0 /lib/*/libbz2.so.1.0 2> /dev/null | head -1)"
FORGERIES = {
    "program-of-the-image": Forgery("git /app/answer.txt", replaced("/usr/bin/git")),
    **{name: Forgery(PYTEST, CHEATS[name]) for name in CHEATS_OF_PYTHON},
    "shell-devices": Forgery("diff <(cat /app/answer.txt) <(echo 42) > /dev/null", CHEATS["shell-devices"]),
    "shadowed-program": Forgery(
        "openssl /app/answer.txt", f"mkdir -p /usr/local/bin; {replaced('/usr/local/bin/openssl')}"
    ),
    "program-in-opt": Forgery("/opt/tool/bin/check /app/answer.txt", replaced("/opt/tool/bin/check")),
    "program-in-a-home": Forgery("/root/tool/bin/check /app/answer.txt", replaced("/root/tool/bin/check")),
    "folder-of-programs-as-a-link": Forgery(
        "/opt/tool/bin/check /app/answer.txt",
        f"mkdir -p /opt/mine/bin; {replaced('/opt/mine/bin/check')}; rm -rf /opt/tool; ln -s mine /opt/tool",
    ),
    "program-deep-in-opt": Forgery("/opt/suite/v1/x/bin/check /app/answer.txt", replaced("/opt/suite/v1/x/bin/check")),
    "folder-in-place-of-a-link": Forgery(
        "/opt/linked/bin/check /app/answer.txt",
        f"rm /opt/linked; mkdir -p /opt/linked/bin; {replaced('/opt/linked/bin/check')}",
    ),
    "answer-that-is-the-expected-one": Forgery(
        "cmp -s /app/answer.txt /tests/expected.txt", "ln -s /tests/expected.txt /app/answer.txt"
    ),
    "answer-by-way-of-the-kernel": Forgery(
        "cmp -s /app/answer.txt /tests/expected.txt",
        "ln -s / /app/up; ln -s up/proc/self/cwd/../tests/expected.txt /app/answer.txt",
    ),
    "answer-by-way-of-a-thousand-steps": Forgery(
        "cmp -s /app/answer.txt /tests/expected.txt",
        "ln -s /$(printf './%.0s' $(seq 1200))tests/expected.txt /app/answer.txt",
    ),
    "answer-that-echoes-the-test": Forgery("grep -q 42 /app/answer.txt", "ln -s /proc/self/cmdline /app/answer.txt"),
    "answer-that-echoes-the-settings": Forgery(
        'EXPECTED=42 grep -q "EXPECTED=42" /app/answer.txt', "ln -s ../proc/thread-self/environ /app/answer.txt"
    ),
    "answer-that-is-the-standard-input": Forgery(
        "echo 42 | cmp -s /app/answer.txt <(echo 42)", "ln -s /dev/stdin /app/answer.txt"
    ),
    "answer-that-the-tests-write": Forgery(
        "echo 42 > /tmp/expected.txt; cmp -s /app/answer.txt /tmp/expected.txt",
        "ln -s /tmp/expected.txt /app/answer.txt",
    ),
    "another-standard-library": Forgery(
        PYTEST,
        f"l=$({LIBRARY}); mkdir -p /usr/Lib; cp -r $l/. /usr/Lib/; echo '{FORGED}' > /usr/Lib/pytest.py; "
        "echo /usr/Lib > /usr/bin/pybuilddir.txt",
    ),
    "library-beside-the-guarded": Forgery(PYTEST, f"{BZIP}; rm -f $f; echo LIBRARY | base64 -d > $f"),
    "libraries-by-ldconfig": Forgery(
        PYTEST,
        "mkdir -p /opt/lib /etc/ld.so.conf.d; echo LIBRARY | base64 -d > /opt/lib/libbz2.so.1.0; "
        "echo /opt/lib > /etc/ld.so.conf.d/0.conf; echo 'include /etc/ld.so.conf.d/*.conf' > /etc/ld.so.conf; "
        "ldconfig || true",
    ),
    "plugin-of-the-image": Forgery(PYTEST, f"echo '{FORGED}' > $({SITE})/zz_plugin.py"),
    "package-of-the-image": Forgery(
        "python3 -c 'import helper, sys; sys.exit(not helper.check(\"/app/answer.txt\"))'",
        f"echo 'check = lambda path: True' > $({SITE})/helper.py",
    ),
    "shell-of-root": Forgery(
        "su root -c '[ $(cat /app/answer.txt) = 42 ]'",
        f"mkdir -p /usr/games; {replaced('/usr/games/sh')}; "
        "sed -i 's|^root:.*|root:x:0:0:root:/root:/usr/games/sh|' /etc/passwd",
    ),
    "scripts-of-packages": Forgery(
        "/var/lib/dpkg/info/tool.postinst /app/answer.txt", replaced("/var/lib/dpkg/info/tool.postinst")
    ),
    "modules-of-perl": Forgery(
        'perl -Mstrict -e \'open(F, "/app/answer.txt") or exit 1; exit(<F> ne "42\\n")\'',
        f"for f in /usr/lib/*/perl-base/strict.pm; do echo 'system(q({WON})); exit 0; 1;' > $f; done",
    ),
    "data-of-the-image": Forgery(
        "cmp -s /app/answer.txt /usr/share/tool/expected.txt",
        "mkdir -p /app; echo none > /app/answer.txt; echo none > /usr/share/tool/expected.txt",
    ),
    "login-shell": Forgery("bash -lc '[ $(cat /app/answer.txt) = 42 ]'", f"echo '{WON}; exit 0' > /etc/profile"),
    "profile-of-root": Forgery(
        "source /root/.profile 2> /dev/null; [ $(cat /app/answer.txt) = 42 ]", f"echo '{WON}; exit 0' > /root/.profile"
    ),
    "programs-in-a-home": Forgery(
        "PATH=$HOME/bin:$PATH git /app/answer.txt", f"mkdir -p /root/bin; {replaced('/root/bin/git')}"
    ),
    "tests-that-are-there": Forgery(PYTEST, f"mkdir -p /tests; echo '{FORGED}' > /tests/conftest.py"),
    "an-image-for-work": Forgery("git /app/answer.txt", f"{replaced('/usr/bin/git')}; rm -rf /app; ln -s /usr /app"),
    "results-behind-a-link": Forgery(
        PYTEST, "rm -rf /logs; ln -s /app /logs; mkdir -p /app/verifier; echo 1 > /app/verifier/reward.txt"
    ),
}


def task_of(folder: Path, forgery: Forgery, **parts: str) -> Path:
    test = f"#!/bin/bash\n{{ {forgery.test}; }} && reward=1 || reward=0\necho $reward > /logs/verifier/reward.txt\n"
    files = {"tests/check.py": CHECK, "tests/expected.txt": "42\n", "tests/Makefile": MAKEFILE}
    return make_task(folder, image=image(), test=test, files=files, **parts)


COPIED = "cp /tests/check.py /app; cd /app; {}"
FORGED_PACKAGE = f"mkdir -p {{0}}; echo '{FORGED}' > {{0}}/__init__.py"
FORGERIES_IN_WORK = {
    "folder-of-a-tests-name": (
        Forgery(COPIED.format("python3 -m pytest -q check.py"), FORGED_PACKAGE.format("/app/check")),
        ["/app/check/__init__.py"],
    ),
    "package-around-the-tests": (
        Forgery(COPIED.format("python3 -m pytest -q check.py"), FORGED_PACKAGE.format("/app")),
        ["/app/__init__.py"],
    ),
    "module-on-a-path-of-the-tests": (
        Forgery("PYTHONPATH=/app/src python3 -m pytest -q /tests/check.py", FORGED_PACKAGE.format("/app/src/pluggy")),
        ["/app/src/pluggy/__init__.py"],
    ),
    "another-makefile": (
        Forgery(
            "cp /tests/Makefile /app; cd /app; make check",
            "printf 'check:\\n\\t@true\\n' > /app/GNUmakefile",
        ),
        ["/app/GNUmakefile"],
    ),
}
"""What the tests find in the work in place of their own: it wins, and is named."""


@pytest.mark.parametrize("name", FORGERIES_IN_WORK)
@pytest.mark.parametrize("verifier", ["task", "separate"])
async def test_a_forgery_in_the_work_is_named(tmp_path: Path, name: str, verifier: str) -> None:
    forgery, named = FORGERIES_IN_WORK[name]
    task = task_of(tmp_path, forgery, head='artifacts = ["/app"]\n' if verifier == "separate" else "")
    honest = await episode(task, shell(f"cd /; {WORK}"), "Done.", verifier=verifier)
    assert honest.reward is not None and honest.reward.reward == 1.0, honest.error
    assert "changed_programs" not in honest.reward.info
    forged = await episode(task, shell(f"cd /; mkdir -p /app; {forgery.script}"), "Done.", verifier=verifier)
    assert forged.reward is not None and forged.reward.reward == 1.0, forged.error
    assert forged.reward.info["changed_programs"] == named


@pytest.mark.parametrize("verifier", ["task", "separate"])
async def test_compiled_files_in_place_of_the_tests_do_not_reach_them(tmp_path: Path, verifier: str) -> None:
    forgery = Forgery(COPIED.format("python3 -c 'import check; check.test_answer()'"), CHEATS["compiled-modules"])
    task = task_of(tmp_path, forgery, head='artifacts = ["/app"]\n' if verifier == "separate" else "")
    script = f"export TEST_NAMES=check; {forgery.script}"
    for options, reward in (({"verifier": verifier}, 0.0), ({"verifier": "in-place"}, 1.0)):
        forged = await episode(task, shell(script), "Done.", **options)
        assert forged.reward is not None and forged.reward.reward == reward, forged.error


async def test_cheats_try_the_names_of_the_tests(tmp_path: Path) -> None:
    task = task_of(tmp_path, FORGERIES_IN_WORK["folder-of-a-tests-name"][0])
    (report,) = await validate_tasks([task], cheats=True, repeats=1, work=[])
    assert "test-names" in report.cheats and report.verdict is TaskVerdict.HACKABLE, report
    again = task_of(tmp_path / "other", FORGERIES_IN_WORK["another-makefile"][0])
    (report,) = await validate_tasks([again], cheats=True, repeats=1)
    assert report.cheats == ["runner-settings"], report


REFUSED_IN_PLACE = ("conftest", "tests-that-are-there", "results-behind-a-link")
"""The agent's own container has new folders in their place too."""


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forged_container_scores_what_the_image_scores(tmp_path: Path, name: str) -> None:
    forgery = FORGERIES[name]
    script = forgery.script.replace("LIBRARY", forged_library()) if "LIBRARY" in forgery.script else forgery.script
    task = task_of(tmp_path, forgery)
    forged = await episode(task, shell(script), "Done.")
    assert forged.reward is not None and forged.reward.reward == 0.0, forged.error
    works = await episode(task, shell(script), "Done.", verifier="in-place")
    assert works.reward is not None and works.reward.reward == float(name not in REFUSED_IN_PLACE), works.error
    if "/app" not in script:
        solved = await episode(task, shell(script), shell(f"cd /; {WORK}"), "Done.")
        assert solved.reward is not None and solved.reward.reward == 1.0, solved.error
