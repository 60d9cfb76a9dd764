"""One member of etcd for tools/bench store, spoken to in JSON over HTTP: there is nothing to install but the server."""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time

from bench_common import STEP_SECONDS, Server, Trouble
from bench_node import free_port, memory_of

VALUE = base64.b64encode(b"v" * 256).decode()
TXN_PUTS = 100  # of new keys in a request
TXN_CLIENTS = 16
PUT_CLIENTS = 128
COMPACT_SECONDS = 1800
QUOTA_BYTES = 8 << 30


def version():
    """What `etcd --version` says first; None: it is not installed."""
    if shutil.which("etcd") is None:
        return None
    return subprocess.run(["etcd", "--version"], text=True, capture_output=True, check=True).stdout.splitlines()[0]


def encoded(text):
    return base64.b64encode(text.encode()).decode()


class Connection:
    """Kept alive, and read by hand: http.client would be the limit of the load."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.input = self.socket.makefile("rb")

    def post(self, path, request):
        body = json.dumps(request)
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        status = self.input.readline()
        headers = dict(line.lower().split(b": ", 1) for line in iter(lambda: self.input.readline().strip(), b""))
        answer = self.read_chunks() if b"transfer-encoding" in headers else self.input.read(int(headers[b"content-length"]))
        if b" 200 " not in status:
            raise Trouble(f"etcd: {path}: {answer.decode(errors='replace')[:200]}")

    def read_chunks(self):
        answer = b""
        while True:
            size = int(self.input.readline(), 16)
            answer += self.input.read(size + 2)[:size]
            if size == 0:
                return answer

    def close(self):
        self.input.close()
        self.socket.close()


class Etcd(Server):
    def __init__(self, directory):
        self.directory = directory
        self.port = free_port()
        peers = f"http://127.0.0.1:{free_port()}"
        clients = f"http://127.0.0.1:{self.port}"
        self.command = [
            "etcd", "--data-dir", directory, "--listen-client-urls", clients, "--advertise-client-urls", clients,
            "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
            "--quota-backend-bytes", str(QUOTA_BYTES), "--log-level", "error"]

    # ---- starts and stops ----

    def start(self):
        """The milliseconds from the start of the process until a linearizable read is answered."""
        begin = time.monotonic()
        self.run(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.answers():
            if time.monotonic() > begin + STEP_SECONDS or self.process.poll() is not None:
                raise Trouble(f"etcd in {self.directory} does not answer")
            time.sleep(0.0005)
        return (time.monotonic() - begin) * 1000

    def answers(self):
        try:
            self.ask("/v3/kv/range", {"key": encoded("k0")})
            return True
        except (OSError, Trouble, http.client.HTTPException):
            return False

    # ---- what it says and has ----

    def ask(self, path, request, seconds=STEP_SECONDS):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request("POST", path, json.dumps(request))
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise Trouble(f"etcd: {path}: {answer.decode(errors='replace')[:200]}")
            return json.loads(answer)
        finally:
            connection.close()

    def memory(self):
        return memory_of(self.process.pid)

    def data_file_bytes(self):
        return os.stat(os.path.join(self.directory, "member", "snap", "db")).st_size

    def log_bytes(self):
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir(os.path.join(self.directory, "member", "wal")))

    # ---- work ----

    def in_parallel(self, clients, work):
        """work(client, connection) in so many threads."""
        troubles = []

        def run(client):
            connection = Connection(self.port)
            try:
                work(client, connection)
            except (OSError, ValueError, KeyError, Trouble) as error:
                troubles.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=run, args=(client,), daemon=True) for client in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if troubles:
            raise Trouble(f"etcd cannot be filled: {troubles[0]}")

    def make_keys(self, first, end):
        """Of 256 bytes, several in one transaction."""

        def work(client, connection):
            for at in range(first + client * TXN_PUTS, end, TXN_CLIENTS * TXN_PUTS):
                puts = [{"requestPut": {"key": encoded(f"k{i}"), "value": VALUE}} for i in range(at, min(at + TXN_PUTS, end))]
                connection.post("/v3/kv/txn", {"success": puts})

        self.in_parallel(TXN_CLIENTS, work)

    def make_revisions(self, keys, count):
        """One by one, to so many keys in turn."""

        def work(client, connection):
            for number in range(client, count, PUT_CLIENTS):
                connection.post("/v3/kv/put", {"key": encoded(f"k{number % keys}"), "value": VALUE})

        self.in_parallel(PUT_CLIENTS, work)

    def compact(self):
        """All history, until it is removed. Seconds."""
        revision = self.ask("/v3/kv/range", {"key": encoded("k0")})["header"]["revision"]
        begin = time.monotonic()
        self.ask("/v3/kv/compaction", {"revision": revision, "physical": True}, COMPACT_SECONDS)
        return time.monotonic() - begin

    def defragment(self):
        self.ask("/v3/maintenance/defragment", {}, COMPACT_SECONDS)
