"""A real Apache Kafka for tests: one node, KRaft, no Docker. `python -m tests.support.kafka` runs one by hand.

The jars come through Maven once and stay in `.cache/`. The broker listens on the loopback only.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.support.ports import free_port
from tests.support.tools import missing

KAFKA_VERSION = "4.1.1"
LOG4J_VERSION = "2.25.2"
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0
CACHE = Path(__file__).resolve().parents[2] / ".cache"
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.7.1:copy-dependencies"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-jars</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-api</artifactId>
      <version>{LOG4J_VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId>
      <version>{LOG4J_VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{LOG4J_VERSION}</version></dependency>
  </dependencies>
</project>
"""

LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
"""

PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=BROKER://127.0.0.1:{port},INSIDE://127.0.0.1:{inside_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=BROKER://127.0.0.1:{advertised_port},INSIDE://127.0.0.1:{inside_port}
listener.security.protocol.map=BROKER:{protocol},INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=INSIDE
log.dirs={disks}
num.network.threads=2
num.io.threads=2
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.segment.bytes=16777216
"""

SECURE_PROPERTIES = """ssl.keystore.type=PKCS12
ssl.keystore.location={folder}/broker.p12
ssl.keystore.password=changeit
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.broker.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
"""

# The side door has no login: who comes in there may do everything.
GUARDED_PROPERTIES = """authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class KafkaMissing(Exception):
    """Why no Kafka can be had here, in one line."""


def jars() -> Path:
    """The folder with Kafka's jars, fetched through Maven the first time. Raises KafkaMissing."""
    java = shutil.which("java")
    if java is None:
        raise KafkaMissing("Java 17 or newer is not installed (no `java` on the PATH)")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version.group(1)) < 17:
        raise KafkaMissing(f"Java 17 or newer is needed, found {told.splitlines()[0] if told else 'none'}")
    folder = CACHE / f"kafka-jars-{KAFKA_VERSION}"
    with _alone("kafka-jars"):
        if not folder.is_dir():
            _fetch(folder)
    return folder


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Several test processes may want it at once: one makes it."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def loaded_classes() -> Path:
    """Kafka's classes as a broker had them loaded, for this JVM: each that starts with them has a second of processor
    time less to spend. Made by a broker that is started and stopped, the first time; a JVM that cannot use it starts
    without, and one that made none is not asked for it again."""
    java = Path(shutil.which("java") or "java").resolve()
    by = zlib.crc32(f"{java} {java.stat().st_mtime_ns} {jars()}".encode())
    kept = CACHE / f"kafka-classes-{KAFKA_VERSION}-{by:08x}.jsa"
    none = kept.with_suffix(".none")
    with _alone("kafka-classes"), tempfile.TemporaryDirectory() as folder:
        if not kept.exists() and not none.exists():
            made = Path(folder) / "made.jsa"
            server = KafkaServer(Path(folder) / "kafka", classes=f"-XX:ArchiveClassesAtExit={made}")
            try:
                server.start()
            finally:
                server.stop(within_s=60)
            if made.exists():
                shutil.copy(made, kept.with_suffix(".new"))
                kept.with_suffix(".new").rename(kept)
            else:
                none.touch()
    return kept


_bootstraps: dict[tuple[str, str] | None, bytes] = {}
"""What a broker with this user begins with, as Kafka's own tool has written it once in this process."""


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaMissing(f"Kafka's jars are not in {folder} and Maven is not installed (no `mvn` on the PATH)")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        (Path(work) / "pom.xml").write_text(POM)
        done = subprocess.run(
            [maven, "-q", "-B", COPY_DEPENDENCIES, "-DoutputDirectory=lib", "-DincludeScope=runtime"],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            found = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise KafkaMissing(f"Maven could not fetch Kafka's jars: {(found or ['no message'])[0]}")
        (Path(work) / "lib").rename(folder)


class KafkaServer:
    """One broker on its own data in `folder`. `advertised_port` is what clients are told (a proxy's port).

    With `user` (name, password) it speaks TLS, certificate in `ca_file`, and asks for SASL SCRAM-SHA-512; `guarded`,
    the user may do nothing that was not granted. With `other_disk` half of the partitions lie there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        advertised_port: int | None = None,
        user: tuple[str, str] | None = None,
        guarded: bool = False,
        other_disk: Path | None = None,
        classes: str | None = None,
    ) -> None:
        self.folder = folder
        self.disks = [folder / "data", *([other_disk / "data"] if other_disk else [])]
        self.port = port or free_port()
        self.advertised_port = advertised_port or self.port
        self.ca_file = folder / "ca.pem"
        self._inside_port = free_port()
        self._controller_port = free_port()
        self._user = user
        self._guarded = guarded
        self._jars = jars()
        self._classes = classes or f"-XX:SharedArchiveFile={loaded_classes()}"
        self._process: subprocess.Popen[bytes] | None = None
        self.format()

    @property
    def url(self) -> str:
        """As `CONSUMER_BROKER_URL` wants it."""
        return f"kafka://127.0.0.1:{self.advertised_port}"

    @property
    def inside_server(self) -> str:
        """Where its administrator comes in: no TLS, no login."""
        return f"127.0.0.1:{self._inside_port}"

    @property
    def log(self) -> Path:
        """What the broker printed."""
        return self.folder / "broker.log"

    def start(self) -> None:
        """Start and return when it answers; on the same data after `stop` or `kill`."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java(), "-Xms128m", "-Xmx384m", "kafka.Kafka", str(self.folder / "server.properties")],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while not answers_metadata(self._inside_port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = self.log.read_text(errors="replace").splitlines()[-15:]
                raise AssertionError("the Kafka broker did not start:\n" + "\n".join(tail))
            time.sleep(0.1)

    def stop(self, within_s: float = STOP_WITHIN_S) -> None:
        """Ask it to end; kill it when it does not in time. Safe to call twice."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self.resume()
        process.terminate()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def pause(self) -> None:
        """SIGSTOP: the port is open, nobody answers. Returns when every thread has stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Until it ends by itself."""
        assert self._process is not None
        return self._process.wait()

    def _java(self) -> list[str]:
        return [
            "java",
            self._classes,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            f"{self._jars}/*",
        ]

    def set_password(self, user: str, password: str) -> None:
        """Give the user another one, while the broker runs."""
        words = ["kafka.admin.ConfigCommand", "--bootstrap-server", self.inside_server, "--alter"]
        words += ["--entity-type", "users", "--entity-name", user]
        words += ["--add-config", f"SCRAM-SHA-512=[password={password}]"]
        subprocess.run([*self._java(), *words], check=True, capture_output=True, timeout=60)

    def format(self) -> None:
        """Make its data, where there are none yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(LOG4J)
        properties = self.folder / "server.properties"
        text = PROPERTIES + (SECURE_PROPERTIES if self._user else "")
        text += GUARDED_PROPERTIES if self._guarded else ""
        properties.write_text(
            text.format(
                port=self.port,
                advertised_port=self.advertised_port,
                inside_port=self._inside_port,
                controller_port=self._controller_port,
                protocol="SASL_SSL" if self._user else "PLAINTEXT",
                folder=self.folder,
                disks=",".join(map(str, self.disks)),
            )
        )
        if (self.disks[0] / "meta.properties").exists():
            return
        if self._user and not self.ca_file.exists():
            self._certify()
        cluster, data = _new_id(), self.disks[0]
        if self._user in _bootstraps and len(self.disks) == 1:
            data.mkdir(parents=True)
            (data / "bootstrap.checkpoint").write_bytes(_bootstraps[self._user])
            told = f"version=1\ncluster.id={cluster}\nnode.id=1\ndirectory.id={_new_id()}\n"
            (data / "meta.properties").write_text(told)
            return
        words = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
        if self._user:
            words += ["--add-scram", f"SCRAM-SHA-512=[name={self._user[0]},password={self._user[1]}]"]
        subprocess.run([*self._java(), *words], check=True, capture_output=True, timeout=60)
        _bootstraps[self._user] = (data / "bootstrap.checkpoint").read_bytes()

    def _certify(self) -> None:
        """A certificate of its own for 127.0.0.1, made by the JDK's keytool."""
        store = ["-alias", "broker", "-keystore", str(self.folder / "broker.p12"), "-storepass", "changeit"]
        names = ["-dname", "CN=127.0.0.1", "-ext", "SAN=ip:127.0.0.1", "-validity", "2"]
        for words in (
            ["-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", *names],
            ["-exportcert", "-rfc", "-file", str(self.ca_file)],
        ):
            subprocess.run(["keytool", *words, *store], check=True, capture_output=True, timeout=60)


def _new_id() -> str:
    """As Kafka's own; a digit first: one that began with a dash would be taken for an option."""
    return "0" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def answers_metadata(port: int) -> bool:
    """Whether the broker at `port` answers a metadata request (version 1, no topics) with at least one broker."""
    body = struct.pack(">hhihi", 3, 1, 1, -1, 0)
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        answer = b""
        while len(answer) < 12:
            piece = connection.recv(4096)
            if not piece:
                return False
            answer += piece
        return bool(struct.unpack_from(">i", answer, 8)[0] > 0)
    return False


@contextmanager
def kafka_server(
    folder: Path,
    *,
    port: int | None = None,
    advertised_port: int | None = None,
    user: tuple[str, str] | None = None,
    guarded: bool = False,
    other_disk: Path | None = None,
) -> Iterator[KafkaServer]:
    """A running broker for a fixture: skips with one line where Kafka cannot be had, fails there when CI is set."""
    try:
        server = KafkaServer(
            folder, port=port, advertised_port=advertised_port, user=user, guarded=guarded, other_disk=other_disk
        )
    except KafkaMissing as error:
        missing(f"Kafka: {error}")
    try:
        server.start()
        yield server
    finally:
        server.stop()


def main() -> int:
    """A broker in the foreground until Ctrl-C or SIGTERM; prints its address when it answers."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.kafka", description=main.__doc__)
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--data", type=Path, help="keep the data here (default: a temporary folder)")
    asked = parser.parse_args()

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            server = KafkaServer((asked.data or Path(temporary)).resolve(), port=asked.port)
        except KafkaMissing as missing:
            print(f"error[kafka_missing]: {missing}", file=sys.stderr)
            return 2
        try:
            server.start()
            print(server.url, flush=True)
            return server.wait()
        except AssertionError as failed:
            print(f"error[kafka_start]: {failed}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
