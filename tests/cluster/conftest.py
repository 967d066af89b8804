"""A cluster of two machines, made by `ray up` of the project's own cluster.yaml, and a laptop that uses it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import PACKAGES
from tests.cluster.machines import NETWORK, Machines, missing
from tests.s3_server import ENVIRONMENT, s3_server
from tests.shared_data import SHARED

PROJECT = Path(__file__).parents[2]
ASKED = "THROUGHLINE_TEST_CLUSTER"
COPIED = (*PACKAGES, "clusters", "pyproject.toml", "constraints.txt")
CHATTER = re.compile(r"INFO|WARN|VERBOSE|please use a directory|Permanently added|^sending |^sent |^total size |^\s*$")
PORT = 18265


class Laptop:
    """A person's machine: a folder with the project, a home, a token, and Ray's commands. `log` keeps what they said."""

    def __init__(self, machines: Machines, folder: Path, shared: Path, buckets: str) -> None:
        self.machines, self.folder, self.shared = machines, folder, shared
        self.buckets = {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://{buckets}"}
        self.project, self.home = folder / "project", folder / "laptop"
        self.log = folder / "log.txt"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("RAY_", "THROUGHLINE_", "PYTHON"))
            },
            "HOME": str(self.home),
            "RAY_TMPDIR": str(self.home / "tmp"),
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{PORT}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        }
        (self.home / "tmp").mkdir(parents=True)
        self.project.mkdir()
        for name in (*COPIED, "README.md", ".gitignore", ".rayignore"):
            source = PROJECT / name
            if source.is_dir():
                shutil.copytree(source, self.project / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.project)
        self._cluster_file()

    def _cluster_file(self) -> None:
        """The project's cluster.yaml with what it says to change."""
        changes = {
            "head_ip: 10.0.0.1 ": f"head_ip: {self.machines.addresses[0]} ",
            "[10.0.0.2, 10.0.0.3]": f"[{', '.join(self.machines.addresses[1:])}]",
            "ssh_user: ubuntu": "ssh_user: root",
            "~/.ssh/id_ed25519": str(self.machines.key),
        }
        text = (PROJECT / "cluster.yaml").read_text()
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        (self.project / "cluster.yaml").write_text(text)
        environment = (self.project / "clusters" / "environment.sh").read_text()
        for old, new in {
            "/mnt/throughline": str(self.shared),
            "# export THROUGHLINE_ENVIRONMENT=/opt/throughline": f"export THROUGHLINE_ENVIRONMENT={sys.prefix}",
        }.items():
            assert old in environment, old
            environment = environment.replace(old, new)
        environment += "".join(f"export {name}={value}\n" for name, value in self.buckets.items())
        (self.project / "clusters" / "environment.sh").write_text(environment)

    def run(self, *command: str, status: int = 0) -> str:
        """Run a command in the project's folder. Returns what it said, on both streams."""
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout).replace("\r", "\n")
        lines = [line for line in said.splitlines() if not CHATTER.search(line)]
        if "get-auth-token" in command:  # it prints the token
            lines = []
        with open(self.log, "a") as log:
            log.write(f"$ {' '.join(command)}      # status {done.returncode}, {time.monotonic() - began:.0f} s\n")
            log.writelines(f"    {line}\n" for line in lines)
        assert done.returncode == status, said[-6000:]
        return "\n".join(lines)

    def submit(self, stage: str, *words: str, status: int = 0) -> str:
        return self.run("ray", "submit", "cluster.yaml", f"pipelines/{stage}.py", "--", *words, status=status)

    def job(self, stage: str, *words: str, status: int = 0, options: tuple[str, ...] = ()) -> str:
        module = ("python", "-m", f"pipelines.{stage}")
        return self.run("ray", "job", "submit", "--working-dir", ".", *options, "--", *module, *words, status=status)

    def exec(self, command: str) -> str:
        return self.run("ray", "exec", "cluster.yaml", command)


def copy_books(folder: Path) -> None:
    """A few real texts: the smallest of the shared books where they are, else of the standard library's own modules."""
    for split, count in {"train": 6, "validation": 2, "test": 1}.items():
        (folder / split).mkdir(parents=True)
        books = sorted((SHARED / "pg19" / split).glob("*.txt"), key=lambda path: path.stat().st_size)
        first = {"train": 0, "validation": 6, "test": 8}[split]
        modules = sorted(Path(os.__file__).parent.glob("t*.py"))[first : first + count]
        for path in books[:count] or modules:
            shutil.copyfile(path, folder / split / f"{path.stem}.txt")


@pytest.fixture(scope="session")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """The cluster, up; taken down at the end."""
    if not os.environ.get(ASKED):
        pytest.skip(f"takes minutes and root: make test-cluster ({ASKED}=1)")
    if why := missing():
        pytest.fail(f"the tests of the cluster were asked for ({ASKED}) and cannot run here: {why}", pytrace=False)
    folder = Path(os.environ.get("THROUGHLINE_TEST_FOLDER") or tmp_path_factory.mktemp("cluster"))
    shared = folder / "shared"
    small = shared / "small"  # a disk of 2 MB that all machines see
    subprocess.run(["umount", "-l", str(small)], capture_output=True)  # of a test that was killed
    shutil.rmtree(folder, ignore_errors=True)
    copy_books(shared / "books")
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=True)
    forward = None
    try:
        with Machines(2, folder / "machines") as machines, s3_server(f"{NETWORK}.254") as buckets:
            laptop = Laptop(machines, folder, shared, buckets)
            laptop.run("ray", "get-auth-token", "--generate")
            laptop.run("ray", "up", "-y", "cluster.yaml")
            forward = subprocess.Popen(  # what `ray dashboard` does, without its endless loop
                [*machines.client, "-N", "-L", f"{PORT}:127.0.0.1:8265", f"root@{NETWORK}.1"],
                stdin=subprocess.DEVNULL,
            )
            for _ in range(60):
                if "2 local.cluster.node" in laptop.exec("ray status"):
                    break
                time.sleep(2)
            yield laptop
            laptop.run("ray", "down", "-y", "cluster.yaml")
            for i in range(2):
                left = ""
                for _ in range(120):  # a worker's Ray ends by itself a minute after the head's
                    if not (left := machines.ssh(i, "pgrep -x 'raylet|gcs_server'", check=False).stdout):
                        break
                    time.sleep(1)
                assert not left, left
    finally:
        if forward:
            forward.kill()
            forward.wait()
        subprocess.run(["umount", "-l", str(small)], check=False)
