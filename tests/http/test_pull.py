"""lensd pull: from a small hub over HTTPS to a folder that is served; what is refused, resumed and never sent."""

import hashlib
import http.server
import json
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
import unittest
from urllib.parse import unquote

import harness
from harness import FolderCase, run_lensd
from test_tls import OPENSSL, make_certificate

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "acme/digits"
TOKEN = "hf_secret"
PARTIAL = f".digits.model.onnx.{COMMIT[:12]}.pull"


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """The paths of huggingface.co that a download uses, and a second host that keeps the large files.

    `files`: {path: bytes}. Files under onnx/ and those that end in .onnx are large: a redirect leads to the other host,
    X-Linked-ETag has their SHA-256. Others are answered here, with git's hash as ETag."""

    def __init__(self, folder, files):
        hub = self
        self.files, self.seen, self.lock = dict(files), [], threading.Condition()
        self.token = None         # needed, if set
        self.lies = {}            # path: bytes that are sent instead
        self.cut = {}             # path: list of how many bytes to send before the connection breaks
        self.ranges = True        # whether Range is honoured
        self.held = None          # path that stops after half of it, until the client is gone
        self.fail = []            # statuses of the first requests

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with hub.lock:
                    hub.seen.append((self.server is hub.other, self.path, dict(self.headers)))
                    status = hub.fail.pop(0) if hub.fail else 0
                if status:
                    return self.answer(status, b"", {})
                return hub.store(self) if self.server is hub.other else hub.answer(self)

            def answer(self, status, body, headers, sent=None):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if sent is None else body[:sent])
                if sent is not None:
                    self.wfile.flush()
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.cert, key = make_certificate(folder, "hub")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, key)
        self.servers = []
        for _ in range(2):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.handle_error = lambda *_: None
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)
        self.main, self.other = self.servers
        self.url, self.other_url = (f"https://127.0.0.1:{server.server_port}" for server in self.servers)

    def answer(self, handler):
        path = unquote(handler.path)
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return handler.answer(401, b"no", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
        api, resolve = f"/api/models/{REPO}/revision/", f"/{REPO}/resolve/{COMMIT}/"
        if path.startswith(api) and path[len(api):] in ("main", "refs/pr/1"):
            return handler.answer(200, json.dumps({
                "id": REPO, "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}).encode(), {})
        name = path[len(resolve):] if path.startswith(resolve) else None
        if name not in self.files:
            return handler.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        data = self.files[name]
        if name.endswith(".onnx") or name.startswith("onnx/"):
            return handler.answer(302, b"moved", {
                "Location": f"{self.other_url}/blobs/{name}", "ETag": '"' + git_hash(data) + '"',
                "X-Linked-ETag": '"' + hashlib.sha256(data).hexdigest() + '"', "X-Linked-Size": str(len(data))})
        return handler.answer(200, self.lies.get(name, data), {"ETag": f'W/"{git_hash(data)}"', "X-Repo-Commit": COMMIT})

    def store(self, handler):
        name = unquote(handler.path)[len("/blobs/"):]
        data = self.lies.get(name, self.files[name])
        wanted, start = handler.headers.get("Range"), 0
        if wanted and self.ranges:
            start = int(wanted[len("bytes="):].rstrip("-"))
            if start >= len(data):
                return handler.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers = {"ETag": '"of-the-store"'}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if name == self.held:
            self.held = None
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data[:len(data) // 2])
            handler.wfile.flush()
            handler.rfile.read(1)  # until the client is gone
            handler.close_connection = True
            return None
        cut = self.cut.get(name)
        return handler.answer(206 if start else 200, data[start:], headers, cut.pop(0) if cut else None)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


@unittest.skipUnless(OPENSSL, "openssl is not installed")
class Pull(FolderCase):
    def setUp(self):
        super().setUp()
        digits = os.path.join(harness.ROOT, "models", "digits")
        self.files = {"README.md": b"# digits", "sub/config.json": b"{}", "big.safetensors": b"x" * 99, ".hidden.json": b"{}",
                      "LICENSE": b"Apache"}
        for name in ("model.onnx", "labels.txt", "preprocessor_config.json"):
            self.files[name] = harness.read(os.path.join(digits, name))
        self.hub = Hub(self.folder, self.files)
        self.addCleanup(self.hub.close)
        os.mkdir(self.path("models"))

    def environment(self, **more):
        return {"HF_ENDPOINT": self.hub.url, "SSL_CERT_FILE": self.hub.cert, "HF_TOKEN": "", "HF_HUB_OFFLINE": "",
                "no_proxy": "127.0.0.1", **more}

    def pull(self, source=f"hf:{REPO}", *options, **more):
        return run_lensd("pull", source, "--models", self.path("models"), *options, environment=self.environment(**more))

    def refused(self, ended, *words, left=()):
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertEqual(ended.stdout, "")
        for word in words:
            self.assertIn(word, ended.stderr.splitlines()[-1])
        self.assertEqual(sorted(os.listdir(self.path("models"))), sorted(left))

    def blobs(self):
        return [headers.get("Range") for is_other, path, headers in self.hub.seen if is_other]

    def test_a_model_that_is_served(self):
        self.hub.token = TOKEN
        ended = self.pull(HF_TOKEN=TOKEN, HF_ENDPOINT=self.hub.url + "/")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("4 files", ended.stdout)
        self.assertIn(COMMIT, ended.stdout)
        folder = self.path("models/digits")
        self.assertEqual(sorted(os.listdir(folder)), ["LICENSE", "labels.txt", "model.onnx", "preprocessor_config.json"])
        for name in os.listdir(folder):
            self.assertEqual(harness.read(os.path.join(folder, name)), self.files[name])
        self.assertEqual(os.listdir(self.path("models")), ["digits"])
        self.assertIn("model.onnx", ended.stderr)  # a log gets a line of each file
        # The token went to the hub only.
        for is_other, path, headers in self.hub.seen:
            self.assertEqual(headers.get("Authorization"), None if is_other else f"Bearer {TOKEN}", path)
        self.assertIn(True, [is_other for is_other, _, _ in self.hub.seen])
        server = self.serve("--models", self.path("models"))
        self.assertEqual(server.predict(harness.seven()).json()["predictions"][0]["label"], "7")
        # Again: it is there.
        self.refused(self.pull(HF_TOKEN=TOKEN), "exists already", left=["digits"])

    def test_a_pull_that_goes_on(self):
        """A connection that breaks, a server without ranges, and a pull that is stopped and repeated."""
        size = len(self.files["model.onnx"])
        self.hub.cut["model.onnx"] = [1000]
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(self.blobs(), [None, "bytes=1000-"])
        self.hub.seen.clear()
        self.hub.ranges, self.hub.cut["model.onnx"] = False, [1000]
        ended = self.pull(f"hf:{REPO}", "-o", self.path("models/second"))
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(self.blobs(), [None, "bytes=1000-"])
        self.hub.seen.clear()
        self.hub.ranges, self.hub.held = True, "model.onnx"
        process = subprocess.Popen([harness.BINARY, "pull", f"hf:{REPO}", "-o", self.path("models/third")],
                                   env={**os.environ, **self.environment()}, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        grows = self.path(f"models/{PARTIAL}/model.onnx").replace("digits", "third")
        end = time.monotonic() + harness.PATIENCE
        while not (os.path.exists(grows) and os.path.getsize(grows)):
            self.assertLess(time.monotonic(), end, "no bytes came")
            time.sleep(0.01)
        # Another pull of the same folder is refused meanwhile.
        ended = self.pull(f"hf:{REPO}", "-o", self.path("models/third"))
        self.assertEqual(ended.returncode, 2)
        self.assertIn("another lensd pull", ended.stderr)
        process.send_signal(signal.SIGINT)
        process.wait(harness.PATIENCE)
        have = os.path.getsize(grows)
        self.assertLess(have, size)
        self.hub.seen.clear()
        ended = self.pull(f"hf:{REPO}", "-o", self.path("models/third"))
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(self.blobs(), [f"bytes={have}-"])
        self.hub.seen.clear()
        # What is whole already is only compared.
        os.rename(self.path("models/third"), self.path("models/" + PARTIAL.replace("digits", "third")))
        self.assertEqual(self.pull(f"hf:{REPO}", "-o", self.path("models/third")).returncode, 0)
        self.assertEqual(self.blobs(), [f"bytes={size}-"])
        for name in ("digits", "second", "third"):
            self.assertEqual(harness.read(self.path(f"models/{name}/model.onnx")), self.files["model.onnx"])

    def test_another_commit_begins_again(self):
        """What a stopped pull of an older commit has left is in a folder of its own, which goes when another is complete."""
        older = self.path("models/" + PARTIAL.replace(COMMIT[:12], "ffffffffffff"))
        os.mkdir(older)
        for name in ("labels.txt", "gone.json"):
            with open(os.path.join(older, name), "wb") as file:
                file.write(b"old")
        others = [".digits.model.onnx.0123.pull", ".digits.other.onnx.ffffffffffff.pull"]
        for name in others:
            os.mkdir(self.path("models/" + name))
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(sorted(os.listdir(self.path("models"))), [*others, "digits"])
        self.assertEqual(sorted(os.listdir(self.path("models/digits"))), ["LICENSE", "labels.txt", "model.onnx", "preprocessor_config.json"])
        self.assertEqual(harness.read(self.path("models/digits/labels.txt")), self.files["labels.txt"])

    def test_which_file(self):
        data = self.files["model.onnx"]
        self.hub.files = {"onnx/model.onnx": data, "onnx/model_int8.onnx": data, "onnx/model.onnx_data": b"far",
                          "onnx/model_int8.onnx_data": b"other", "config.json": b"{}", "model_index.json": b"{}"}
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(sorted(os.listdir(self.path("models/digits"))), ["config.json", "model.onnx", "model.onnx_data", "model_index.json"])
        # A text of another model at the top that has the same name.
        self.hub.files.update({"onnx/model.onnx.json": b"own", "model.onnx.json": b"another's"})
        self.assertEqual(self.pull(f"hf:{REPO}", "-o", self.path("models/twins")).returncode, 0)
        self.assertEqual(harness.read(self.path("models/twins/model.onnx.json")), b"own")
        shutil.rmtree(self.path("models/twins"))
        del self.hub.files["onnx/model.onnx.json"], self.hub.files["model.onnx.json"]
        ended = self.pull(f"hf:{REPO}@refs/pr/1:onnx/model_int8.onnx", "--output", self.path("models/small/"))
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(os.listdir(self.path("models/small"))), ["config.json", "model_index.json", "model_int8.onnx", "model_int8.onnx_data"])
        here = ["digits", "small"]
        self.refused(self.pull(f"hf:{REPO}:absent.onnx", "-o", self.path("models/x")), "no file 'absent.onnx'",
                     "onnx/model_int8.onnx", left=here)
        # What only begins like the model's name is a text at the top, too.
        self.hub.files = {"model.onnx": data, "model.txt": b"x", "model.onnx.data": b"far", "model.onnx/x.json": b"{}"}
        self.assertEqual(self.pull(f"hf:{REPO}", "-o", self.path("models/third")).returncode, 0)
        self.assertEqual(sorted(os.listdir(self.path("models/third"))), ["model.onnx", "model.onnx.data", "model.txt"])
        here.append("third")
        self.hub.files = {"a.onnx": data, "b.onnx": data}
        self.refused(self.pull(f"hf:{REPO}", "-o", self.path("models/x")), "name one", "a.onnx, b.onnx", left=here)
        self.hub.files = {".x.onnx": data}
        for source in (f"hf:{REPO}", f"hf:{REPO}:.x.onnx"):
            self.refused(self.pull(source, "-o", self.path("models/x")), "hidden file", "'.x.onnx'", left=here)
        self.hub.files = {"model.safetensors": b"x"}
        self.refused(self.pull(f"hf:{REPO}", "-o", self.path("models/x")), "no .onnx file", "export", left=here)

    def test_what_lies(self):
        """Bytes without the hash are refused, and so are names that lead elsewhere and answers that are not a hub's."""
        self.hub.lies["labels.txt"] = b"a\nb\n"
        self.refused(self.pull(), "labels.txt", "do not match the hub's hash", left=[PARTIAL])
        shutil.rmtree(self.path("models/" + PARTIAL))
        self.hub.lies.clear()
        self.hub.files["../../escape.json"] = b"{}"
        self.hub.files["/etc/x.json"] = b"{}"
        self.assertEqual(self.pull().returncode, 0)
        self.assertFalse(os.path.exists(self.path("escape.json")))
        self.assertFalse([path for _, path, _ in self.hub.seen if "escape" in path or "etc" in path])
        self.hub.files["new\nline.json"] = b"{}"
        self.refused(self.pull(f"hf:{REPO}", "-o", self.path("models/y")), "control characters", left=["digits"])

    def test_what_is_said(self):
        self.hub.token = TOKEN
        self.refused(self.pull(), "answers 401", "HF_TOKEN")
        self.refused(self.pull(HF_TOKEN="hf_wrong"), "answers 401", "may read it")
        self.hub.token = None
        self.refused(self.pull(f"hf:{REPO}@nowhere"), "answers 404", "revision")
        self.refused(self.pull(HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE is 1")
        self.refused(self.pull(HF_ENDPOINT="ftp://x"), "HF_ENDPOINT is 'ftp://x'")
        self.refused(self.pull(HF_ENDPOINT="http://127.0.0.1:9", HF_TOKEN=TOKEN), "not sent without TLS")
        self.refused(self.pull(HF_TOKEN="a\nb"), "one line")
        ended = self.pull(SSL_CERT_FILE=os.path.join(harness.ROOT, "README.md"))
        self.assertEqual(ended.returncode, 1, ended.stderr)  # nobody vouches for this hub
        self.assertIn(self.hub.url, ended.stderr)
        for source in ("acme/digits", "hf:digits", "hf:a/b/c", "hf:../x", "hf:a/b:weights.bin", "hf:a/b?x"):
            self.refused(self.pull(source), "hf:ORG/REPO")
        self.assertEqual(run_lensd("pull").returncode, 2)
        # A hub that is busy is asked again.
        self.hub.fail = [503]
        ended = self.pull()
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("try again later", ended.stderr)
        self.assertEqual(self.pull().returncode, 0)


if __name__ == "__main__":
    unittest.main()
