"""Machines on this one, for clusters: network, process, mount and host-name namespaces each, with an sshd and a home of its own.

    with Machines(2, folder) as machines:
        machines.addresses                       # ["10.77.0.1", "10.77.0.2"]
        machines.ssh(0, "hostname")              # by ssh, as from a laptop at 10.77.0.254
        machines.stop(1); machines.start(1)      # a power cut: every process on it is killed; and back again

Needs root, iproute2, util-linux, openssh-server and rsync (`missing` says what is not there). File systems are those of this
machine, but for /tmp/ray, the home and /etc/passwd. Nothing of it reaches beyond this machine. If the test is
killed, its machines end with it; their namespaces and the bridge stay until the next test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

PROGRAMS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
}
NETWORK = "10.77.0"
BRIDGE = "throughline0"


def missing() -> str:
    """Why machines cannot be made here, in a sentence; empty where they can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root: run it as root, or in a privileged container"
    absent = sorted({package for program, package in PROGRAMS.items() if not find(program)})
    if absent:
        return f"needs the Debian packages {', '.join(absent)}"
    made = subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount", "true"], capture_output=True, text=True)
    return f"this kernel or container allows no namespaces ({made.stderr.strip()})" if made.returncode else ""


def find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Machines:
    """So many machines in one network, from which the host, at address 254, is reached too."""

    def __init__(self, count: int, folder: Path) -> None:
        self.folder = folder
        self.addresses = [f"{NETWORK}.{i + 1}" for i in range(count)]
        self.key = folder / "id_ed25519"
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        self.client = ["ssh", "-i", str(self.key), *(word for option in options for word in ("-o", option))]
        self._outer: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Machines:
        self.folder.mkdir(parents=True, exist_ok=True)
        for key in (self.key, self.folder / "host_key"):
            key.unlink(missing_ok=True)
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        shutil.copy(self.key.with_suffix(".pub"), self.folder / "authorized_keys")
        self.__exit__()  # of an earlier test that was killed
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for i, address in enumerate(self.addresses):
            space = self.space(i)
            run("ip", "netns", "add", space)
            run("ip", "link", "add", f"v{space}", "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", f"v{space}", "master", BRIDGE, "up")
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "route", "add", "default", "via", f"{NETWORK}.254")
            self._write(i)
            self.start(i)
        return self

    def __exit__(self, *error: object) -> None:
        for i in range(len(self.addresses)):
            self.stop(i)
            left = subprocess.run([str(find("ip")), "netns", "pids", self.space(i)], capture_output=True, text=True)
            for process in left.stdout.split():  # of a test that was killed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            run("ip", "netns", "delete", self.space(i), check=False)
            run("ip", "link", "delete", f"v{self.space(i)}", check=False)
        run("ip", "link", "delete", BRIDGE, check=False)

    def space(self, i: int) -> str:
        return f"throughl{i + 1}"

    def home(self, i: int) -> Path:
        return self.folder / f"home{i + 1}"

    def start(self, i: int) -> None:
        """Switch a machine on: nothing runs on it but an sshd."""
        temporary = self.folder / f"ray{i + 1}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        Path("/tmp/ray").mkdir(exist_ok=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        script = (
            f"hostname machine{i + 1}; mount --bind {temporary} /tmp/ray; "
            f"mount --bind {self.folder}/passwd{i + 1} /etc/passwd; mount -t tmpfs -o size=8g tmpfs /dev/shm; "
            f"exec {find('sshd')} -D -e -f {self.folder}/sshd{i + 1}.conf"
        )
        inside = [
            "unshare",
            "--pid",
            "--mount",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            script,
        ]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        tied = ["setpriv", "--pdeathsig", "KILL"]  # a test that is killed leaves no machine running
        with open(self.folder / f"sshd{i + 1}.log", "ab") as log:
            self._outer[i] = subprocess.Popen(
                [*tied, "ip", "netns", "exec", self.space(i), *inside],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        for _ in range(100):
            if self.ssh(i, "true", check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise TimeoutError((self.folder / f"sshd{i + 1}.log").read_text())

    def stop(self, i: int) -> None:
        """Pull the plug: every process of the machine is killed."""
        outer = self._outer.pop(i, None)
        if outer:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(outer.pid, signal.SIGKILL)
            outer.wait()

    def ssh(self, i: int, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine, as its shells do."""
        words = [*self.client, f"root@{self.addresses[i]}", command]
        return subprocess.run(words, capture_output=True, text=True, check=check, stdin=subprocess.DEVNULL)

    def _write(self, i: int) -> None:
        home = self.home(i)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        for name in (".bashrc", ".profile"):
            (home / name).write_text("")
        (home / ".profile").write_text(". ~/.bashrc\n")
        users = Path("/etc/passwd").read_text().splitlines()
        rows = [f"root:x:0:0:root:{home}:/bin/bash" if row.startswith("root:") else row for row in users]
        (self.folder / f"passwd{i + 1}").write_text("\n".join(rows) + "\n")
        settings = {
            "Port": "22",
            "ListenAddress": self.addresses[i],
            "HostKey": self.folder / "host_key",
            "PidFile": "none",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "StrictModes": "no",
            "MaxSessions": "100",
            "MaxStartups": "100",
            "PermitRootLogin": "prohibit-password",
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "SetEnv": f"HOME={home}",
        }
        lines = [f"{key} {value}" for key, value in settings.items()]
        (self.folder / f"sshd{i + 1}.conf").write_text("\n".join(lines) + "\n")


def run(*words: str, check: bool = True) -> None:
    done = subprocess.run([find(words[0]) or words[0], *words[1:]], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
