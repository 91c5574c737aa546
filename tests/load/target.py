"""What is asked, and with what: the URL, the pictures of a folder, the request bodies made of them."""

import http.client
import ipaddress
import json
import os
import random
import ssl
import struct
import urllib.parse

BODY_BYTES_MAX = 512 << 20  # of all prepared requests together: they stay in memory
FILE_BYTES_MAX = 64 << 20
BOUNDARY = "lensd-load-7c1f5d0e9a"
KINDS = ((b"\xff\xd8\xff", "image/jpeg"), (b"\x89PNG\r\n\x1a\n", "image/png"))


class Refusal(Exception):
    """A sentence for the user; the program ends with 2."""


class Target:
    """A URL taken apart."""

    def __init__(self, text, insecure=False):
        if "://" not in text:
            text = "http://" + text
        parts = urllib.parse.urlsplit(text)
        try:
            port = parts.port
        except ValueError as error:
            raise Refusal(f"'{text}': {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refusal(f"'{text}' is not a URL such as http://127.0.0.1:8080")
        self.scheme, self.host = parts.scheme, parts.hostname
        self.port = port or (443 if self.scheme == "https" else 80)
        self.path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
        self.insecure = insecure

    @property
    def base(self):
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def is_loopback(self):
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def ask(self, method, path, body=None, headers=None, timeout=30):
        """(status, bytes) of one request; OSError and http.client.HTTPException when none came."""
        if self.scheme == "https":
            context = ssl._create_unverified_context() if self.insecure else None
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout,
                                                     context=context)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def kind_of(path):
    """The media type its first bytes tell, or None."""
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError:
        return None
    for magic, kind in KINDS:
        if head.startswith(magic):
            return kind
    return None


def find_pictures(place, count, seed):
    """[(path, media type)]: at most `count` of the JPEG and PNG files of a folder, sampled."""
    if os.path.isfile(place):
        names = [place]
    elif os.path.isdir(place):
        names = sorted(os.path.join(folder, name) for folder, folders, files in os.walk(place)
                       for name in files if not name.startswith("."))
    else:
        raise Refusal(f"there is no folder '{place}': name one with JPEG or PNG files")
    random.Random(seed).shuffle(names)
    found, others = [], 0
    for name in names:
        kind = kind_of(name)
        if kind and os.path.getsize(name) <= FILE_BYTES_MAX:
            found.append((name, kind))
        else:
            others += 1
        if len(found) == count:
            break
    if not found:
        raise Refusal(f"'{place}' has no JPEG or PNG file ({others} other files)")
    return sorted(found)


# ---- request bodies ----

def raw_request(pictures, _model):
    path, kind = pictures[0]
    return read(path), [f"Content-Type: {kind}"]


def multipart_request(pictures, _model):
    body = b""
    for path, kind in pictures:
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in os.path.basename(path))
        body += (f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"image\"; "
                 f"filename=\"{name}\"\r\nContent-Type: {kind}\r\n\r\n").encode()
        body += read(path) + b"\r\n"
    return (body + f"--{BOUNDARY}--\r\n".encode(),
            [f"Content-Type: multipart/form-data; boundary={BOUNDARY}"])


def v2_request(pictures, model):
    """The binary tensor extension: JSON, then each picture behind its length."""
    tensor = b"".join(struct.pack("<I", os.path.getsize(path)) + read(path) for path, _ in pictures)
    head = json.dumps({
        "inputs": [{"name": model["input"], "datatype": "BYTES", "shape": [len(pictures)],
                    "parameters": {"binary_data_size": len(tensor)}}],
        "outputs": [{"name": model["output"], "parameters": {"classification": 5}}],
    }).encode()
    return head + tensor, ["Content-Type: application/octet-stream",
                           f"Inference-Header-Content-Length: {len(head)}"]


MODES = {"raw": raw_request, "multipart": multipart_request, "v2": v2_request}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def v2_model(target, name, headers):
    """Name, input and output of a model, as the server's V2 metadata has them."""
    if not name:
        status, body = target.ask("POST", "/v2/repository/index", b"{}", headers)
        models = json.loads(body) if status == 200 else []
        names = [entry["name"] for entry in models if entry.get("state", "READY") == "READY"]
        if len(names) != 1:
            raise Refusal("say which model --mode v2 shall ask: --model NAME"
                          + (f" (there are {', '.join(names)})" if names else ""))
        name = names[0]
    path = "/v2/models/" + urllib.parse.quote(name, safe="")
    status, body = target.ask("GET", path, None, headers)
    if status != 200:
        raise Refusal(f"GET {path} answers {status}: {sentence_of(body)}")
    metadata = json.loads(body)
    # A model that takes pictures as they are has an input of BYTES; where several are listed, that.
    inputs = sorted(metadata["inputs"], key=lambda entry: entry["datatype"] != "BYTES")
    return {"name": name, "path": path + "/infer", "input": inputs[0]["name"],
            "output": metadata["outputs"][0]["name"]}


def sentence_of(body):
    """What an answer that is an error says."""
    try:
        return json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "nothing"


class Requests:
    """The prepared requests: files in `folder`, a manifest that names them, and the path to ask."""

    def __init__(self, target, options, headers, folder):
        self.pictures = find_pictures(options.folder, options.files, options.seed)
        if options.mode == "raw" and options.images != 1:
            raise Refusal("a raw body is one image: for several a request use --mode multipart or v2")
        self.path, model = target.path or "/predict", None
        if options.mode == "v2":
            model = v2_model(target, options.model, headers)
            self.path = target.path or model["path"]
        elif options.model:
            self.path += ("&" if "?" in self.path else "?") + "model=" + urllib.parse.quote(options.model)
        self.url = target.base + self.path
        self.manifest = os.path.join(folder, "manifest")
        self.sizes = []
        self.prepare(options, model, folder)

    def prepare(self, options, model, folder):
        choose, total, lines = random.Random(options.seed), 0, []
        for i, picture in enumerate(self.pictures):
            chosen = [picture] + choose.choices(self.pictures, k=options.images - 1)
            body, headers = MODES[options.mode](chosen, model)
            total += len(body)
            if lines and total > BODY_BYTES_MAX:
                break
            path = os.path.join(folder, f"body{i}")
            with open(path, "wb") as file:
                file.write(body)
            if not lines:
                self.first = body, dict(line.split(": ", 1) for line in headers)
            self.sizes.append(len(body))
            lines.append("\t".join([path] + headers))
        with open(self.manifest, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def describe(self):
        low, high = min(self.sizes), max(self.sizes)
        kilobytes = f"{low / 1e3:.1f}" if low == high else f"{low / 1e3:.1f} to {high / 1e3:.1f}"
        return f"{len(self.sizes)} different requests of {kilobytes} kB"


def boxes_found(target, headers):
    """Boxes in all answers of a lensd so far, by its metrics; None: it finds none, or is no lensd."""
    try:
        status, text = target.ask("GET", "/metrics", None, headers)
    except (OSError, http.client.HTTPException):
        return None
    counts = [float(line.split()[-1]) for line in text.decode("utf-8", "replace").splitlines()
              if line.startswith("lensd_detections_total{")]
    return sum(counts) if status == 200 and counts else None


def check_answer(target, requests, headers):
    """One request before the load: what does not answer 200 is not worth loading."""
    body, own = requests.first
    try:
        status, answer = target.ask("POST", requests.path, body, {**own, **headers})
    except (OSError, http.client.HTTPException) as error:
        raise Refusal(f"nothing answers at {target.base}: {error}. Is the server running?") from None
    if status == 401:
        raise Refusal(f"{requests.url} wants a key: {sentence_of(answer)} "
                      "(give one with --header 'Authorization: Bearer KEY')")
    if not 200 <= status <= 299:
        raise Refusal(f"{requests.url} answers {status}: {sentence_of(answer)}")
    return answer
