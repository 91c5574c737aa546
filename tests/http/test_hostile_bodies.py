"""Bodies made to cost the server more than the client: they may take long themselves, but nobody else waits
for them. Which thread spent the time is asked, not how long it took: on a busy machine everything takes long."""

import gzip
import json
import os
import random
import struct
import unittest
import zlib

import small_onnx
from harness import ServedCase, ServedModelCase, png_chunk, png_header, read, seven

MIB = 2**20


def large_gzip(start, filling, size):
    """`start`, then `size` bytes of `filling`, compressed quickly."""
    return gzip.compress(start + filling * size, 6)


class HostileCase(ServedCase):
    """--core-dumps: others may look into its /proc only so."""

    def cpu_seconds(self):
        """(seconds of the threads that serve connections, of those for large requests) so far"""
        folder, serving, offloaded = f"/proc/{self.server.process.pid}/task", 0, 0
        for thread in os.listdir(folder):
            name = read(f"{folder}/{thread}/comm").decode().strip()
            spent = int(read(f"{folder}/{thread}/schedstat").split()[0]) * 1e-9
            serving += spent if name.startswith("MHD") else 0
            offloaded += spent if name == "offload" else 0
        return serving, offloaded

    def attack(self, *requests):
        """Sends (path, body, headers) one after another; returns the answers. Most of the work is done by other
        threads than those that serve connections."""
        before = self.cpu_seconds()
        answers = [self.server.request("POST", *request) for request in requests]
        serving, offloaded = (after - earlier for after, earlier in zip(self.cpu_seconds(), before))
        self.assertLess(serving, offloaded / 2, (serving, offloaded))
        return answers


class Forms(HostileCase):
    arguments = ("--core-dumps",)

    def test_a_form_of_nothing_but_hyphens(self):
        """The random bytes keep it below --max-inflate-ratio. A search that began again behind every hyphen took 4 to 8 s,
        and /livez waited for it; one of zeros, which begin no boundary, is the control."""
        spent = []
        for filling in (b"\0", b"-"):
            body = large_gzip(random.Random(14).randbytes(620000), filling, 64000000)
            self.assertLess(len(body), MIB)
            before = self.cpu_seconds()
            answer, = self.attack(("/predict", body, {"Content-Type": "multipart/form-data; boundary=" + 70 * "-",
                                                      "Content-Encoding": "gzip"}))
            self.assert_error(answer, 400, "invalid_request", "boundary")
            spent.append(sum(self.cpu_seconds()) - sum(before))
        self.assertLess(spent[1], 8 * spent[0])

    def test_settings_are_short(self):
        answer = self.server.request("POST", "/v2/repository/index", b"{" + 200000 * b" " + b"}")
        self.assert_error(answer, 413, "too_large", "200002", "131072")


class Bombs(HostileCase):
    arguments = ("--core-dumps", "--max-inflate-ratio", "2000")

    def test_they_are_inflated_elsewhere(self):
        body = large_gzip(seven(), b"\0", 60 * MIB)
        self.assertLess(len(body), 70000)  # one read of a socket
        for answer in self.attack(*[("/predict", body, {"Content-Encoding": "gzip"})] * 4):
            self.assertEqual(answer.json()["predictions"][0]["label"], "7")
        self.server.wait_metric("lensd_http_upload_bytes", 0)

    def test_a_png_that_goes_on_after_its_last_row(self):
        inflated = zlib.compressobj(9)
        data = b"".join(inflated.compress(bytes(1 << 20)) for _ in range(80)) + inflated.flush()
        answer = self.server.predict(png_header(1, 1) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b""))
        self.assertEqual(answer.status, 400)
        self.assertIn("goes on after the last row", answer.json()["error"])

    def test_almost_delimiters(self):
        """Words that begin as the boundary does, blanks behind it with no line end behind them, line ends alone."""
        image = (b"--B\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n\r\n" + seven())
        headers = {"Content-Type": "multipart/form-data; boundary=B", "Content-Encoding": "gzip"}
        for filling in (b"\r\n--Bx", b"\r\n--B" + 4096 * b" " + b"x", b"\r", b"\r\n", b"\r\n-"):
            body = gzip.compress(image + filling * (16 * MIB // len(filling)) + b"\r\n--B--")
            answer, = self.attack(("/predict", body, headers))
            self.assertEqual(answer.status, 200, answer.body)
            self.assertEqual(answer.json()["predictions"][0]["label"], "7")


class LargeRows(HostileCase, ServedModelCase):
    arguments = ("--core-dumps", "--max-queue", "4096", "--max-inflate-ratio", "2000")
    VALUES = 3 * 24 * 24

    @staticmethod
    def write_model(path):
        small_onnx.doubled_image(path, 24)

    def classify(self, wanted, rows):
        numbers = b"".join(struct.pack("<f", number) for row in rows for number in row)
        head = json.dumps({
            "inputs": [{"name": "image", "shape": [len(rows), 3, 24, 24], "datatype": "FP32",
                        "parameters": {"binary_data_size": len(numbers)}}],
            "outputs": [{"name": "doubled", "parameters": {"classification": wanted, "binary_data": False}}]}).encode()
        return self.server.request("POST", "/v2/models/served/infer", head + numbers,
                                   {"Inference-Header-Content-Length": str(len(head))})

    def test_blanks_before_json(self):
        """The first bytes do not say which thread reads a body. (Compressed, receiving it costs next to nothing.)"""
        count = 256
        body = json.dumps({
            "inputs": [{"name": "image", "shape": [count, 3, 24, 24], "datatype": "FP32",
                        "data": [0.123456] * (count * self.VALUES)}],
            "outputs": [{"name": "doubled", "parameters": {"classification": 1, "binary_data": False}}]}).encode()
        answer, = self.attack(("/v2/models/served/infer", gzip.compress(100 * b" " + body, 6),
                               {"Content-Encoding": "gzip"}))
        self.assertEqual(answer.status, 200, answer.body[:500])

    def test_as_many_classes_as_the_bound(self):
        source = random.Random(3)
        rows = [[source.choice((-2.0, 0.25, 1.0, 3.5, float(source.randrange(1000)))) for _ in range(self.VALUES)]
                for _ in range(5)]
        rows[1][7] = float("nan")
        rows[2] = [float("nan")] * self.VALUES
        rows[2][-1] = 1.0
        for wanted in (1, 2, 999, 1000):
            answer = self.classify(wanted, rows)
            self.assertEqual(answer.status, 200, answer.body[:500])
            output = answer.json()["outputs"][0]
            self.assertEqual((output["datatype"], output["shape"]), ("BYTES", [5, wanted]))
            for r, row in enumerate(rows):
                numbers = [i for i in range(self.VALUES) if row[i] == row[i]]
                best = sorted(numbers, key=lambda i: (-row[i], i)) + [i for i in range(self.VALUES) if row[i] != row[i]]
                found = [int(text.split(":")[1]) for text in output["data"][r * wanted:(r + 1) * wanted]]
                self.assertEqual(found, best[:wanted])

    def test_more_classes_than_the_bound(self):
        for wanted in (1001, 2000000000):
            answer = self.classify(wanted, [[0.0] * self.VALUES] * 64)
            self.assert_error(answer, 400, "invalid_request", f"is {wanted} for output 'doubled'", "1728 values",
                              "1 to 1000")


class ShortRows(ServedCase):
    def test_more_than_there_are_is_all_of_them(self):
        head = json.dumps({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES",
                                       "parameters": {"binary_data_size": 4 + len(seven())}}],
                           "outputs": [{"name": "logits", "parameters": {"classification": 2000000000,
                                                                         "binary_data": False}}]}).encode()
        image = struct.pack("<I", len(seven())) + seven()
        answer = self.server.request("POST", "/v2/models/digits/infer", head + image,
                                     {"Inference-Header-Content-Length": str(len(head))})
        self.assertEqual(answer.status, 200, answer.body)
        output = answer.json()["outputs"][0]
        self.assertEqual(output["shape"], [1, 10])
        self.assertEqual(output["data"][0].split(":")[1], "7")


if __name__ == "__main__":
    unittest.main()
