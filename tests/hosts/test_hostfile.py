"""Open MPI host files, read by hosts/hostfile.py."""

from __future__ import annotations

import pytest

from base.errors import InputError
from hosts.hostfile import read_host_lines, read_hostfile
from tests.processes import ROOT


@pytest.mark.parametrize(
    ("name", "hosts", "slots"), [("1x_p3dn", 1, 8), ("4x_p3dn", 4, 32), ("32x_p3dn", 32, 256)]
)
def test_host_files_of_the_experiments(name, hosts, slots):
    read = read_hostfile(str(ROOT / "hosts" / name))
    assert (len(read), sum(count for _, count in read)) == (hosts, slots)


def test_host_file_forms(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# the cluster\n\nnode-1 slots=8  # rack 1\n10.0.0.2   slots = 4 max-slots=8\n"
        "user@node-3.example max_slots=4 slots=2\nnode-1 slots=2\n"
    )
    assert read_hostfile(str(path)) == [("node-1", 10), ("10.0.0.2", 4), ("user@node-3.example", 2)]
    lines = [("node-1", 8), ("10.0.0.2", 4), ("user@node-3.example", 2), ("node-1", 2)]
    assert read_host_lines(str(path)) == lines


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a slots=8\nb\n", 2, "slots"),
        ("a slots=0\n", 1, "slots=0"),
        ("a slots=-1\n", 1, "slots=-1"),
        ("a slots=many\n", 1, "slots=many"),
        ("# c\n\na 8\n", 3, "'8'"),
        ("^a slots=8\n", 1, "'^a'"),
        ("a slots=8 b slots=8\n", 1, "'b'"),
    ],
)
def test_host_file_errors_name_file_and_line(text, line, said, tmp_path):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_hostfile(str(path))
    assert f"{path}, line {line}:" in str(error.value) and said in str(error.value)


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"\xff\xfe\x00", None])
def test_host_files_without_hosts(content, tmp_path):
    path = tmp_path / "hosts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="--hostfile .*hosts: "):
        read_hostfile(str(path))
