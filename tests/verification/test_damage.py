"""Test what verify reports for each kind of damage, and for deviations that are not damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.query.manifests import resealed
from tests.recovery.checking import tree
from tfdbg_arrow import open_logdir, recover, verify
from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.query.present.logdirs import verification
from tfdbg_arrow.query.present.text import text_of
from tfdbg_arrow.schema import FORMAT_VERSION
from tfdbg_arrow.storage.manifest import with_checksum

from .logdirs import CLEAN_RUN, KILLED_RUN, clean_run, damage, others, write_all, write_killed_run

MANIFEST = f"manifest/{CLEAN_RUN}.jsonl"
PART = f"tensor_health/run={CLEAN_RUN}/part-000000.parquet"
OTHER_PART = f"tensor_health/run={CLEAN_RUN}/part-000001.parquet"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A logdir of a run that ended, with two parts for each table."""
    return clean_run().write(tmp_path / "logdir", parts=2)


def edit_lines(logdir: Path, edit: Callable[[list[str]], list[str]]) -> None:
    path = logdir / MANIFEST
    path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))


def without_checksums(text: str) -> str:
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        line.pop("checksum", None)
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_new_logdir_is_intact_and_verify_does_not_change_it(logdir: Path) -> None:
    before = tree(logdir)
    found = verify(logdir)
    assert (found.is_intact, found.deviations, found.num_runs) == (True, (), 1)
    assert found.num_parts == len([name for name in before if name.endswith(".parquet")])
    assert found.num_bytes == sum(len(content) for name, content in before.items() if name.endswith(".parquet"))
    with open_logdir(logdir) as opened:
        assert opened.verify() == found
    assert tree(logdir) == before


def test_deviations_beyond_the_limit_are_counted(logdir: Path) -> None:
    (logdir / PART).unlink()
    for number in range(1500):
        (logdir / "mark" / f"extra-{number:04}").touch()
    found = verify(logdir)
    assert (found.num_found, found.num_damaged, len(found.deviations)) == ({"missing": 1, "extra": 1500}, 1501, 1001)
    assert "extra: and 1,480 more\n" in text_of(verification(found))


class TestParts:
    def test_a_missing_file(self, logdir: Path) -> None:
        (logdir / PART).unlink()
        assert damage(verify(logdir)) == [("missing", PART)]

    def test_a_part_that_was_truncated_or_grew(self, logdir: Path) -> None:
        content = (logdir / PART).read_bytes()
        for changed in (content[:-1], content + b"\0", b""):
            (logdir / PART).write_bytes(changed)
            assert damage(verify(logdir)) == [("changed", PART)]

    def test_another_valid_part_in_its_place(self, logdir: Path) -> None:
        shutil.copy(logdir / OTHER_PART, logdir / PART)
        assert damage(verify(logdir)) == [("changed", PART)]

    def test_two_swapped_parts(self, logdir: Path) -> None:
        (logdir / PART).rename(logdir / "kept")
        (logdir / OTHER_PART).rename(logdir / PART)
        (logdir / "kept").rename(logdir / OTHER_PART)
        assert damage(verify(logdir)) == [("changed", PART), ("changed", OTHER_PART)]

    def test_a_part_that_no_manifest_names(self, logdir: Path) -> None:
        extra = PART.replace("part-000000", "part-000009")
        shutil.copy(logdir / PART, logdir / extra)
        assert damage(verify(logdir)) == [("extra", extra)]

    @pytest.mark.parametrize(
        "name", ["notes.txt", f"run={CLEAN_RUN}/part-000000.parquet.bak", "run=../x", "run=run-b/part-1"]
    )
    def test_other_files_among_the_parts(self, logdir: Path, name: str) -> None:
        path = (logdir / "mark" / name.replace("/x", "x")).resolve()
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        assert damage(verify(logdir)) == [("extra", path.relative_to(logdir.resolve()).as_posix())]

    def test_a_directory_or_a_link_in_its_place(self, logdir: Path, tmp_path: Path) -> None:
        (logdir / PART).rename(tmp_path / "part")
        (logdir / PART).mkdir()
        assert damage(verify(logdir)) == [("changed", PART), ("extra", PART)]
        (logdir / PART).rmdir()
        (logdir / PART).symlink_to(tmp_path / "part")
        (deviation,) = verify(logdir).deviations
        assert (deviation.kind, deviation.path) == ("changed", PART)
        assert "leads through a symbolic link" in deviation.what

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("rows", 4, "has 3 rows, not 4"),
            ("min_event_index", 1, "has the event indexes 0 to 2, not 1 to 2"),
            ("max_event_index", 9, "has the event indexes 0 to 2, not 0 to 9"),
        ],
    )
    def test_a_part_that_contradicts_a_manifest(self, logdir: Path, key: str, value: int, said: str) -> None:
        lines = [json.loads(line) for line in (logdir / MANIFEST).read_text().splitlines()]
        next(line for line in lines if line["path"] == PART)[key] = value
        (logdir / MANIFEST).write_text(resealed("".join(json.dumps(line) + "\n" for line in lines)))
        assert (PART, said) in [(deviation.path, deviation.what) for deviation in verify(logdir).deviations]


class TestManifest:
    @pytest.mark.parametrize(
        "edit",
        [
            lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
            lambda lines: [*lines[:5], *lines[6:]],
            lambda lines: lines[1:],
            lambda lines: [*lines[:5], lines[4], *lines[5:]],
            lambda lines: [*lines[:5], "\n", *lines[5:]],
            lambda lines: [*lines[:-1], lines[-1].replace(" ", "  ", 1)],
            lambda lines: [*lines[:-1], without_checksums(lines[-1])],
            lambda lines: [without_checksums(lines[0]), *lines[1:]],
            lambda lines: [*lines[:-1], lines[-1][:-1] + "x"],
            lambda lines: [*lines[:-1], lines[-1][:-1] + " "],
            lambda lines: [*lines, "x\n"],
        ],
        ids=[
            "swapped", "removed", "first removed", "doubled", "empty line", "space", "no last checksum",
            "no first checksum", "last newline changed", "last newline a space", "garbage",
        ],
    )  # fmt: skip
    def test_changed_lines_are_found_and_refused_by_readers(
        self, logdir: Path, edit: Callable[[list[str]], list[str]]
    ) -> None:
        edit_lines(logdir, edit)
        assert damage(verify(logdir)) == [("changed", MANIFEST)]
        with pytest.raises(LogdirError, match="the manifest is damaged"):
            open_logdir(logdir)

    @pytest.mark.parametrize("number", [1, 2, 7])
    def test_missing_last_lines_leave_parts_that_nothing_names(self, logdir: Path, number: int) -> None:
        lost = [json.loads(line)["path"] for line in (logdir / MANIFEST).read_text().splitlines()[-number:]]
        edit_lines(logdir, lambda lines: lines[:-number])
        assert sorted(damage(verify(logdir))) == [("extra", path) for path in sorted(lost)]

    def test_a_truncated_last_line(self, logdir: Path) -> None:
        edit_lines(logdir, lambda lines: [*lines[:-1], lines[-1][:-1]])
        assert damage(verify(logdir)) == [("missing", MANIFEST)]
        edit_lines(logdir, lambda lines: [*lines[:-1], lines[-1][:-3]])
        assert damage(verify(logdir))[0] == ("changed", MANIFEST)

    def test_recovery_does_not_change_a_damaged_manifest(self, tmp_path: Path) -> None:
        logdir = write_killed_run(tmp_path / "logdir", tmp_path)
        manifest = logdir / f"manifest/{KILLED_RUN}.jsonl"
        manifest.write_bytes(manifest.read_bytes()[:-1] + b"x")
        before = tree(logdir)
        (run,) = recover(logdir)
        assert run.state == "failed"
        assert "the manifest is damaged" in str(run.reason)
        assert tree(logdir) == before

    def test_recovery_continues_after_a_last_line_without_its_newline(self, tmp_path: Path) -> None:
        logdir = write_killed_run(tmp_path / "logdir", tmp_path)
        manifest = logdir / f"manifest/{KILLED_RUN}.jsonl"
        manifest.write_bytes(manifest.read_bytes()[:-1])
        assert ("leftover", f"manifest/{KILLED_RUN}.jsonl") in [(one.kind, one.path) for one in others(logdir)]
        assert [run.state for run in recover(logdir)] == ["recovered"]
        assert others(logdir) == []

    def test_a_missing_manifest(self, logdir: Path) -> None:
        (logdir / MANIFEST).unlink()
        assert damage(verify(logdir)) == [("missing", MANIFEST)]
        shutil.rmtree(logdir / "manifest")
        assert damage(verify(logdir)) == [("missing", MANIFEST)]

    def test_another_file_among_the_manifests(self, logdir: Path) -> None:
        (logdir / "manifest" / "20261120.jsonl").write_text("")
        assert damage(verify(logdir)) == [("extra", "manifest/20261120.jsonl")]

    def test_a_manifest_without_checksums_is_damaged(self, logdir: Path) -> None:
        (logdir / MANIFEST).write_text(without_checksums((logdir / MANIFEST).read_text()))
        assert damage(verify(logdir)) == [("changed", MANIFEST)]


class TestMarker:
    @pytest.mark.parametrize(
        ("old", "new", "kind"),
        [
            (f'"{FORMAT_VERSION}"', '"2.99"', "changed"),
            (f'"{FORMAT_VERSION}"', '"3.4"', "changed"),
            ('"checksum"', '"chfcksum"', "changed"),
            ("format_version", "format_versiom", "changed"),
            ("}\n", "}", "missing"),
            ("}\n", "} ", "changed"),
            ("}\n", "}\n ", "changed"),
            ("{", "[", "changed"),
        ],
    )
    def test_a_changed_marker(self, logdir: Path, old: str, new: str, kind: str) -> None:
        marker = logdir / "tfdbg_arrow.json"
        assert old in marker.read_text()
        marker.write_text(marker.read_text().replace(old, new))
        assert damage(verify(logdir)) == [(kind, "tfdbg_arrow.json")]

    def test_a_missing_file(self, logdir: Path) -> None:
        (logdir / "tfdbg_arrow.json").unlink()
        assert damage(verify(logdir)) == [("missing", "tfdbg_arrow.json")]

    def test_a_marker_of_another_major_version_raises_an_error(self, logdir: Path) -> None:
        marker = with_checksum('{"format": "tfdbg_arrow", "format_version": "3.0"}\n')
        (logdir / "tfdbg_arrow.json").write_text(marker)
        with pytest.raises(FormatVersionError):
            verify(logdir)


class TestKilledRun:
    def test_the_files_of_a_killed_process_are_not_damage(self, tmp_path: Path) -> None:
        logdir = write_all(tmp_path / "logdir", tmp_path)
        with open(logdir / f"manifest/{KILLED_RUN}.jsonl", "a") as file:
            file.write('{"op": "add", "ta')
        untold = f"mark/run={KILLED_RUN}/part-000077.parquet"
        shutil.copy(logdir / f"mark/run={KILLED_RUN}/part-000000.parquet", logdir / untold)
        temporary = f"spool/{KILLED_RUN}.mark.000078.tmp"
        (logdir / temporary).write_text("PAR1")
        assert [(one.kind, one.path) for one in others(logdir)] == [
            ("leftover", temporary),
            ("leftover", f"manifest/{KILLED_RUN}.jsonl"),
            ("leftover", untold),
            ("unchecked", f"spool/{KILLED_RUN}.spool"),
            ("unchecked", f"spool/{KILLED_RUN}.values"),
        ]
        recover(logdir)
        assert others(logdir) == []

    def test_a_replaced_part_that_is_still_there_is_not_damage(self, logdir: Path) -> None:
        line = json.dumps({"op": "replace", "removed": [PART, OTHER_PART], "added": []}) + "\n"
        (logdir / MANIFEST).write_text(resealed((logdir / MANIFEST).read_text() + line))
        assert [(one.kind, one.path) for one in others(logdir)] == [("leftover", PART), ("leftover", OTHER_PART)]

    @pytest.mark.parametrize("suffix", ["journal", "rows"])
    def test_journals_that_are_truncated_changed_or_missing(self, tmp_path: Path, suffix: str) -> None:
        logdir = write_killed_run(tmp_path / "logdir", tmp_path)
        path = logdir / f"spool/{KILLED_RUN}.{suffix}"
        content = path.read_bytes()
        name = path.relative_to(logdir).as_posix()
        for changed in (content[:-1], content + b"\0", content + b"\xf0TJ1" + bytes(8), content[:-5] + b"#" * 5):
            path.write_bytes(changed)
            assert damage(verify(logdir)) == [("changed", name)]
        path.unlink()
        assert ("missing", name if suffix == "rows" else f"spool/{KILLED_RUN}.rows") in damage(verify(logdir))

    def test_an_entry_cut_off_by_the_kernel_is_not_damage(self, tmp_path: Path) -> None:
        logdir = write_killed_run(tmp_path / "logdir", tmp_path)
        path = logdir / f"spool/{KILLED_RUN}.journal"
        content = path.read_bytes()
        entry = b"\xf0TJ1" + (8192).to_bytes(4, "little") + bytes(4)
        path.write_bytes((content + entry).ljust(-(-len(content + entry) // 4096) * 4096, b"x"))
        assert ("leftover", f"spool/{KILLED_RUN}.journal") in [(one.kind, one.path) for one in others(logdir)]

    def test_an_entry_that_a_full_disk_cut_is_not_damage(self, tmp_path: Path) -> None:
        logdir = write_killed_run(tmp_path / "logdir", tmp_path)
        path = logdir / f"spool/{KILLED_RUN}.rows"
        content = path.read_bytes()
        cut = (b"\xf0TJ1" + (8192).to_bytes(4, "little") + bytes(4)).ljust(4096, b"x")
        path.write_bytes(content + cut[: -len(content) % 4096] + content)
        first, *_ = [one for one in others(logdir) if one.path.endswith(".rows")]
        why = "the process was killed or the disk was full while it was written"
        assert first.kind == "leftover"
        assert first.what == f"has an incomplete entry at byte {len(content):,}: {why}"

    def test_a_file_that_is_not_a_valid_spool(self, tmp_path: Path) -> None:
        logdir = write_killed_run(tmp_path / "logdir", tmp_path)
        name = f"spool/{KILLED_RUN}.spool"
        (logdir / name).write_bytes(b"x" * 5000)
        assert ("changed", name) in damage(verify(logdir))

    def test_another_file_in_the_spool_directory(self, logdir: Path) -> None:
        (logdir / "spool").mkdir()
        (logdir / "spool" / "notes.txt").write_text("mine")
        assert damage(verify(logdir)) == [("extra", "spool/notes.txt")]


@pytest.mark.parametrize("kind", ["missing", "empty", "other"])
def test_a_path_that_is_not_a_logdir_raises_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "logdir"
    if kind != "missing":
        path.mkdir()
    if kind == "other":
        (path / "notes.txt").write_text("mine")
    with pytest.raises(LogdirError):
        verify(path)
    with pytest.raises(LogdirError, match="is a URL"):
        verify("s3://bucket/logs")
