"""A rehearsal of a deployment: SuperLink and SuperNodes as real processes, all on 127.0.0.1.

    with Loopback(folder, nodes=4, secure=True) as link:
        print(link.run(app, seconds=300))
        link.kill(2), link.start(2)

Every process has a port of its own, writes its log into the folder and ends with the block. Nodes
fork for a message (`warm.py`) where the system can.
`secure=True` is Flower's TLS and node authentication: a certificate authority and keys are made in
the folder, and only nodes whose key was registered are let in.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from fedbook.errors import FedbookError

HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",  # Ray gives up sooner than a busy machine is ready
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; Flower's is 1
    "RAY_worker_niceness": "0",  # Ray's is 15: clients would wait for everybody else
    "OMP_NUM_THREADS": "1",
}


def free_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


class Loopback:
    """A SuperLink with `nodes` SuperNodes; or with `simulated` ones, which Ray plays."""

    def __init__(
        self,
        folder: str | Path,
        nodes: int = 0,
        *,
        secure: bool = False,
        simulated: int = 0,
        start_within: float = 120.0,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.nodes = nodes
        self.secure = secure
        self.simulated = simulated
        self.port = free_port()
        self._start_within = start_within
        self._processes: dict[str, subprocess.Popen] = {}
        self._asked: list[str] = []  # SuperExecs that were asked for
        self._forked: dict[str, int] = {}  # and the processes of those that are known to be there
        here = str(Path(sys.executable).parent)
        self._env = os.environ | QUIET | {"FLWR_HOME": str(self.folder / "flwr")}
        self._env["PATH"] = here + os.pathsep + os.environ.get("PATH", "")

    # -- starting and ending -----------------------------------------------------------------------
    def __enter__(self) -> Loopback:
        for part in ("flwr", "keys", "memory"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        try:
            self._superlink()
            for k in range(self.nodes):
                if self.secure:
                    self.register(k)
                self.start(k)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes.values():  # all at once
            _signal(process.pid, signal.SIGTERM)
        for name in list(self._processes)[::-1]:
            self._end(name)

    def _superlink(self) -> None:
        command = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.simulated:
            command += ["--simulation"]
        trust = "insecure = true"
        if self.secure:
            ca, cert, key = certificates(self.folder / "keys")
            command += ["--ssl-ca-certfile", ca, "--ssl-certfile", cert, "--ssl-keyfile", key]
            command += ["--enable-supernode-auth"]
            trust = f'root-certificates = "{ca}"'
        else:
            command += ["--insecure"]
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n\n[superlink.loop]\naddress = "{HOST}:{self.port}"\n'
            f"{trust}\n"
        )
        self._begin("superlink", command)
        self._wait()

    def _wait(self) -> None:
        """Until the SuperLink answers."""
        import ssl

        limit = time.monotonic() + self._start_within
        scheme = "http"
        context = None
        if self.secure:
            scheme = "https"
            context = ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.pem"))
        while time.monotonic() < limit:
            if self._processes["superlink"].poll() is not None:
                break
            try:
                address = f"{scheme}://{HOST}:{self.port}/health"
                urllib.request.urlopen(address, timeout=5, context=context).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise FedbookError("the SuperLink did not start", f"see {self.log('superlink')}")

    def start(self, k: int, key: str | None = None) -> None:
        """Start the SuperNode of client k; what it remembers lies in the folder's memory/."""
        warm = hasattr(os, "fork")
        memory = self.folder / "memory"
        config = f'partition-id={k} num-partitions={self.nodes} memory="{memory}"'
        port = free_port()
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.port}"]
        command += ["--host", HOST, "--port", str(port), "--node-config", config]
        if self.secure:
            command += ["--root-certificates", str(self.folder / "keys" / "ca.pem")]
            command += ["--auth-supernode-private-key", key or self._key(k)]
        else:
            command += ["--insecure"]
        if warm:
            command += ["--isolation", "process"]
        self._begin(f"node-{k}", command)
        if warm:
            self._fork(f"node-{k}-forks", "--insecure", "--runtime-api-address", f"{HOST}:{port}")

    def kill(self, k: int) -> None:
        """Kill the SuperNode of client k, and whatever it is doing."""
        if forks := self._fork_of(f"node-{k}-forks"):
            _signal(forks, signal.SIGKILL)
        self._end(f"node-{k}", signal.SIGKILL)

    def register(self, k: int) -> None:
        """Make a key for the SuperNode of client k, and tell the SuperLink."""
        private_key(Path(self._key(k)))
        said = self._flwr("supernode", "register", self._key(k) + ".pub", "loop", seconds=120)
        if "registered successfully" not in said:
            raise FedbookError(f"node {k} was not registered", said.strip()[-300:])

    def _key(self, k: int) -> str:
        return str(self.folder / "keys" / f"node-{k}")

    # -- processes ---------------------------------------------------------------------------------
    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _begin(self, name: str, command: list[str], **pipes: Any) -> None:
        with self.log(name).open("ab") as out:
            given: dict[str, Any] = {"stdout": out, "stderr": out, "env": self._env} | pipes
            self._processes[name] = subprocess.Popen(command, start_new_session=True, **given)

    def _fork(self, name: str, *options: str) -> None:
        """Start a SuperExec with the imports of all others."""
        if "forks" not in self._processes:
            command = [sys.executable, "-m", "fedbook.flower.warm", "--stand-by"]
            self._begin("forks", command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = json.dumps([str(self.log(name)), *options])
        print(line, file=self._processes["forks"].stdin, flush=True)
        self._asked.append(name)

    def _fork_of(self, name: str) -> int | None:
        """The process of a SuperExec; they are told in the order in which they were asked for."""
        while self._asked:
            said = self._processes["forks"].stdout.readline()  # type: ignore[union-attr]
            if not said:
                raise FedbookError("no SuperExec was started", f"see {self.log('forks')}")
            self._forked[self._asked.pop(0)] = int(said)
        return self._forked.pop(name, None)

    def _end(self, name: str, how: int = signal.SIGTERM) -> None:
        """End a process with its children: it leads a group of its own."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        for hard in (how, signal.SIGKILL):
            _signal(process.pid, hard)
            try:
                process.wait(10)
                break
            except subprocess.TimeoutExpired:
                continue

    # -- runs --------------------------------------------------------------------------------------
    def begin(self, app: str | Path, **config: Any) -> subprocess.Popen:
        """Start a run of an app, beside others; `config` overrides its settings."""
        command = ["flwr", "run", str(app), "loop", "--stream"]
        if self.simulated:
            played = f"num-supernodes={self.simulated} client-resources-num-cpus=1"
            played += " init-args-num-cpus=1"  # one process plays them all
            command += ["--federation-config", played]
        if config:
            pairs = []
            for name, value in config.items():
                text = f'"{value}"' if isinstance(value, (str, Path)) else str(value)
                pairs.append(f"{name.replace('_', '-')}={text}")
            command += ["--run-config", " ".join(pairs)]
        name = run_of(app)
        self.log(name).unlink(missing_ok=True)
        self._begin(name, command)
        return self._processes[name]

    def run(self, app: str | Path, seconds: float, **config: Any) -> str:
        """A whole run of an app, of at most so many seconds; returns its log.

        Flower returns 0 even if a run failed. So does this: look at what the log says.
        """
        self.begin(app, **config)
        return self.wait(app, seconds)

    def wait(self, app: str | Path, seconds: float) -> str:
        """Until a run has ended, at most so many seconds; returns its log."""
        name = run_of(app)
        try:
            self._processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise FedbookError(
                f"the run took longer than {seconds:g} s", f"see {self.log(name)}"
            ) from None
        finally:
            self._end(name)
        return self.log(name).read_text()

    def _flwr(self, *arguments: str, seconds: float) -> str:
        done = subprocess.run(
            ["flwr", *arguments], env=self._env, timeout=seconds, capture_output=True, text=True
        )
        return done.stdout + done.stderr


def run_of(app: str | Path) -> str:
    """The name of a run's process and log."""
    return f"run-{Path(app).name}"


def _signal(leader: int, number: int) -> None:
    """To a process and its children, if they are there."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        pass


# -- keys ------------------------------------------------------------------------------------------
def private_key(path: Path) -> None:
    """A key of a SuperNode, as `ssh-keygen -t ecdsa -b 384` makes it, and its public one."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public)


def certificates(folder: Path) -> tuple[str, str, str]:
    """A certificate authority, and a certificate of 127.0.0.1 that it signed: (ca, cert, key)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.timezone.utc)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def build(subject: str, public: Any) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("fedbook rehearsal"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=7))
        )

    def usage(**allowed: bool) -> x509.KeyUsage:
        every: tuple[str, ...] = ("digital_signature", "content_commitment", "key_encipherment")
        every += ("data_encipherment", "key_agreement", "key_cert_sign", "crl_sign")
        every += ("encipher_only", "decipher_only")
        return x509.KeyUsage(**{n: allowed.get(n, False) for n in every})

    ca_key = ec.generate_private_key(ec.SECP256R1())
    own = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        build("fedbook rehearsal", ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(own, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    names.append(x509.IPAddress(ipaddress.ip_address(HOST)))
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    server = (
        build("localhost", key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    paths = [folder / n for n in ("ca.pem", "server.pem", "server.key")]
    paths[0].write_bytes(ca.public_bytes(s.Encoding.PEM))
    paths[1].write_bytes(server.public_bytes(s.Encoding.PEM))
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    paths[2].write_bytes(private)
    paths[2].chmod(0o600)
    return str(paths[0]), str(paths[1]), str(paths[2])
