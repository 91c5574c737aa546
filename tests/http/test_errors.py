"""What goes wrong, and how it is said: each error is JSON with the right status, and the server goes
on."""

import json
import os
import socket
import unittest

import harness
from harness import ServedCase, multipart, png_header, post, read_answer, read_to_end, seven


class BadImages(ServedCase):
    def test_empty(self):
        self.assert_error(self.server.predict(b""), 400, "invalid_request", "empty", "curl")
        # A POST without any body at all.
        answer = self.server.raw(b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 411 "), answer)

    def test_truncated(self):
        whole = seven()
        for size in (1, 8, 20, 33, len(whole) // 2, len(whole) - 12):
            answer = self.server.predict(whole[:size])
            with self.subTest(size=size):
                self.assertIn(answer.status, (400, 415))
                self.assertIn(answer.json()["code"], ("bad_image", "unsupported_media_type"))

    def test_text_named_jpg(self):
        self.assert_error(self.server.predict(b"just some words", headers={
            "Content-Type": "image/jpeg"}), 415, "unsupported_media_type", "JPEG", "PNG")
        content_type, body = multipart([("image", "photo.jpg", b"just some words")])
        self.assert_error(self.server.predict(body, headers={"Content-Type": content_type}), 415,
                          "unsupported_media_type", "text")

    def test_curl_data_without_binary(self):
        answer = self.server.predict(seven().replace(b"\r", b"").replace(b"\n", b""), headers={
            "Content-Type": "application/x-www-form-urlencoded", "X-Request-Id": "curl-data"})
        self.assert_error(answer, 415, "unsupported_media_type", "--data-binary @file")
        words = self.server.predict(b"no picture", headers={"Content-Type": "application/x-www-form-urlencoded"})
        self.assertEqual(words.status, 415)
        self.assertNotIn("--data-binary", words.json()["error"])
        (line,) = self.server.wait_log("id=curl-data")
        self.assertIn(" code=unsupported_media_type ", line)

    def test_other_formats_by_their_names(self):
        for start, name in ((b"RIFF\0\0\0\0WAVEfmt " + bytes(20), "RIFF"), (b"\0\0\0\x18ftypisom" + bytes(20), "MP4"),
                            (b"<!DOCTYPE html><html>", "HTML"), (b"%PDF-1.7\n" + bytes(20), "PDF")):
            self.assert_error(self.server.predict(start), 415, "unsupported_media_type", name)

    def test_a_huge_header_costs_nothing(self):
        before = self.memory()
        answer = self.server.predict(png_header(50000, 50000))
        self.assert_error(answer, 413, "too_large", "50000")
        answer = self.server.predict(png_header(16000, 16000))
        self.assert_error(answer, 413, "too_large", "50000000")
        self.assertLess(self.memory() - before, 64 * 2**20)

    def memory(self):
        with open(f"/proc/{self.server.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_bad_base64(self):
        for b64, word in (("!!!!", "base64"), ("abcde", "base64"), ("QUJD", "JPEG"), ("", "empty"),
                          ("photo.jpg", "not its name")):
            answer = self.server.predict(json.dumps({"image": {"b64": b64}}))
            with self.subTest(b64=b64):
                self.assertIn(answer.status, (400, 415))
                self.assertIn(word, answer.json()["error"])


class BadRequests(ServedCase):
    arguments = ("--body-timeout", "0")  # under an emulator six megabytes take longer than the default

    def test_wrong_method(self):
        for method, path, allow in (("GET", "/predict", "POST, OPTIONS"),
                                    ("PUT", "/predict", "POST, OPTIONS"),
                                    ("DELETE", "/predict", "POST, OPTIONS"),
                                    ("PATCH", "/health", "GET, HEAD, OPTIONS"),
                                    ("POST", "/health", "GET, HEAD, OPTIONS"),
                                    ("BREW", "/metrics", "GET, HEAD, OPTIONS")):
            answer = self.server.request(method, path)
            with self.subTest(method=method, path=path):
                self.assert_error(answer, 405, "method_not_allowed", allow, f"the method {method} is not allowed for {path}; use {allow}")
                self.assertEqual(answer.headers["Allow"], allow)
        for path in ("/predict", "/predictions/digits"): # what a browser asks first
            self.assert_error(self.server.get(path), 405, "method_not_allowed", "--data-binary @photo.jpg")
        answer = self.server.request("HEAD", "/predict")
        self.assertEqual((answer.status, answer.headers["Allow"], answer.body), (405, "POST, OPTIONS", b""))

    def test_wrong_path(self):
        for path in ("/nope", "/predict/", "/Predict", "//predict", "/predict/../health",
                     "/../../etc/passwd", "/%2e%2e/etc/passwd", "/predict%2F", "*"):
            with self.subTest(path=path):
                self.assert_error(self.server.get(path), 404, "not_found", "/predict")
        # With a body behind it, and the connection goes on.
        with self.server.connect() as connection:
            connection.sendall(post("/nope", b"x" * 100000))
            answer, _ = read_answer(connection)
            self.assert_error(answer, 404, "not_found")
            connection.sendall(post("/predict", seven()))
            answer, _ = read_answer(connection)
            self.assertEqual(answer.status, 200)

    def test_addresses_that_are_none(self):
        for path in ("/%zz", "/%", "/%0", "/a%00b", "/a%0Ab", "/%ff", "/%c0%af"):
            with self.subTest(path=path):
                self.assert_error(self.server.get(path), 400, "invalid_request", "URL")
        answer = self.server.get("/" + "a" * 9000)
        self.assert_error(answer, 414, "uri_too_long", "8192")

    def test_bad_json(self):
        for body, word in (("{", "byte 1"), ("{}", "no image"), ("[]", "object"), ("{]", "key"),
                           ('{"image":{"b64":"QUJD"}} x', "end"), ('{"image":7}', "object"), ('{"image":["QUJD"]}', "object"),
                           ('{"image":{"b64":"QUJD"},"top_k":0}', "top_k"),
                           ('{"image":{"b64":"QUJD"},"topk":1}', "topk"),
                           ('{"images":[]}', "images"), ('{"image":{"url":"http://x"}}', "url"),
                           ("[" * 100000, "64 levels"), ('{"a":' * 65 + "1", "--max-json-depth"),
                           ('{"image":{"b64":"\\u0000"}}', "u0000"), ('{"a":NaN}', "value"),
                           ('{"images":[' + "1," * 60000 + "1]}", "values")):
            with self.subTest(body=body[:60]):
                self.assert_error(self.server.predict(body), 400, "invalid_request", word)
        self.assert_error(self.server.predict("null", headers={"Content-Type": "application/json"}),
                          400, "invalid_request", "object")

    def test_bad_multipart(self):
        good_type, good = multipart([("image", "a.png", seven())])
        for content_type, body, word in (
                ("multipart/form-data", good, "boundary"),
                ("multipart/form-data; boundary=", good, "boundary"),
                ("multipart/form-data; boundary=" + "x" * 71, good, "boundary"),
                ("multipart/form-data; boundary=other", good, "not in the body"),
                (good_type, good[:-8], "cut"), (good_type, b"", "boundary"),
                (good_type, b"--XboundaryX--\r\n", "no part"),
                (good_type, b"--XboundaryX\r\n\r\n--XboundaryX--\r\n", "image"),
                (good_type, b"--XboundaryX\r\nA: b\r\n--XboundaryX--\r\n", "headers"),
                (good_type, b"--XboundaryX\r\n" + b"A: b\r\n" * 900 + b"\r\nx\r\n--XboundaryX--", "headers"),
                (*multipart([("comment", None, b"hello")]), "comment"),
                (*multipart([("image", None, b"cat.jpg")]), "-F image=@cat.jpg"),
                (*multipart([("top_k", None, b"0"), ("i", "a.png", seven())]), "top_k"),
                (*multipart([("top_k", None, b"3")]), "no image")):
            with self.subTest(body=body[:40], word=word):
                self.assert_error(self.server.predict(body, headers={"Content-Type": content_type}),
                                  400, "invalid_request", word)

    def test_framing_beyond_doubt(self):
        head = "POST /predict HTTP/1.1\r\nHost: x\r\n"
        for headers, status in (("Content-Length: 5\r\nContent-Length: 6\r\n", 400),
                                ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
                                ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
                                ("Transfer-Encoding: gzip\r\n", 501),
                                ("Content-Length: -1\r\n", 400), ("Content-Length: 1x\r\n", 400),
                                ("Content-Length: 99999999999999999999999\r\n", 413)):
            behind = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
            answer = self.server.raw((head + headers + "\r\n").encode() + behind)
            with self.subTest(headers=headers):
                self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % status), answer)
                # What came behind it has not been taken for a request.
                self.assertNotIn(b" 404 ", answer)
                self.assertNotIn(b" 200 ", answer)

    def test_lengths_that_are_no_numbers(self):
        """One answer, in JSON, and the end of the connection, which libmicrohttpd does not give by itself."""
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: "
        behind = b"\r\n\r\nhelloGET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        for length, status in ((b"-1", 400), (b"+5", 400), (b"5, 5", 400), (b"5 5", 400), (b"0x5", 400), (b"5.0", 400),
                               (b"", 400), (b"-1\r\nContent-Length: 5", 400), (b"5\r\nContent-Length: -1", 400),
                               (b"-1\r\nTransfer-Encoding: chunked", 400), (b"18446744073709551615", 413),
                               (b"18446744073709551616", 413), (b"99999999999999999999", 413)):
            with self.subTest(length=length):
                answer = self.server.raw(head + length + behind)
                self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
                top, body = answer.split(b"\r\n\r\n", 1)
                self.assertTrue(top.startswith(b"HTTP/1.1 %d " % status), answer)
                self.assertIn(b"Connection: close", top)
                self.assertIn(b"Content-Length: %d" % len(body), top)
                self.assertIn("Content-Length" if status == 400 else "--max-body", json.loads(body)["error"])

    def test_a_bad_length_among_others(self):
        """Heads that come in pieces at the same time: who sent the bad one hears it, the others their own answers."""
        with self.server.connect() as slow, self.server.connect() as bad, self.server.connect() as good:
            slow.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            bad.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\nX-Request-Id: ours\r\n")
            good.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n")
            bad.sendall(b"\r\n")
            answer = read_to_end(bad)
            self.assertEqual((answer.count(b"HTTP/1.1 400 "), answer.count(b"X-Request-Id: ours")), (1, 1), answer)
            for connection in (good, slow):
                connection.sendall(b"\r\n")
                self.assertEqual(read_answer(connection)[0].status, 200)

    def test_requests_that_are_none(self):
        for data in (b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
                     b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
                     b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            with self.subTest(data=data):
                answer = self.server.raw(data)
                self.assertNotIn(b" 200 ", answer)
        self.assert_error(read_answer_of(self.server, b"GET / HTTP/1.1\r\n\r\n"), 400,
                          "invalid_request", "Host")
        self.assertIn(b" 200 ", self.server.raw(b"GET /livez HTTP/1.0\r\n\r\n"))

    GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
    CHUNKS = b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Request-Id: ours\r\nTransfer-Encoding: chunked\r\n\r\n"

    def test_what_libmicrohttpd_refuses(self):
        """One answer, in JSON, logged and counted, and the end of the connection. libmicrohttpd answers in HTML, and for too
        many cookies twice."""
        get, chunks = self.GET, self.CHUNKS
        for data, status, code in (
                (b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n", 414, "uri_too_long"),
                (get + b"".join(b"X-%d: y\r\n" % i for i in range(9000)) + b"\r\n", 431, "header_too_large"),
                (get + b"X: " + b"y" * 200000 + b"\r\n\r\n", 431, "header_too_large"),
                (get + b"Cookie: " + b"a=b; " * 3100 + b"\r\n\r\n", 431, "header_too_large"),
                (get + b"no colon\r\n\r\n", 400, "invalid_request"),
                (b"GET / HTTP/9.9\r\n\r\n", 505, "not_implemented"), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "not_implemented"),
                (b"GET / HTTP/1.1x\r\n\r\n", 400, "invalid_request"),
                (chunks + b"zz\r\n", 400, "invalid_request"), (chunks + b"2\r\nabc\r\n", 400, "invalid_request"),
                (chunks + b"1" + 16 * b"0" + b"\r\n", 413, "too_large")):
            with self.subTest(data=data[:70], status=status):
                top = self.refused(data, status, code)
                self.assertIn(b"X-Request-Id: " + (b"ours" if b"ours" in data else b""), top)

    @harness.needs("byte counts")
    def test_a_line_with_a_chunk_size_that_does_not_end(self):
        """libmicrohttpd 0.9 would never answer: the watcher does, without the request's id."""
        self.refused(self.CHUNKS + b"2;" + b"x" * 6000000 + b"\r\nab\r\n0\r\n\r\n", 413, "too_large")

    def refused(self, data, status, code):
        """The head of the only answer to `data`. Another connection goes on."""
        counted = self.server.metric(f'lensd_http_requests_total{{status="{status}"}}')
        with self.server.connect() as other, self.server.connect() as connection:
            other.sendall(self.GET)
            try:
                connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the answer may be there all the same
            answer = read_to_end(connection)
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
            top, body = answer.split(b"\r\n\r\n", 1)
            self.assertTrue(top.startswith(b"HTTP/1.1 %d " % status), answer)
            self.assertIn(b"Connection: close", top)
            self.assertEqual(json.loads(body)["code"], code)
            other.sendall(b"\r\n")
            self.assertEqual(read_answer(other)[0].status, 200)
        self.server.wait_metric(f'lensd_http_requests_total{{status="{status}"}}', counted + 1)
        return top

    def test_many_parameters(self):
        self.assert_error(self.server.get("/readyz?" + "a&" * 4000), 400, "invalid_request", "'a' is given twice")

    def test_a_broken_request_behind_another(self):
        """A malformed request does not overtake the one before it, even if that one waits for the model."""
        for first, status in ((b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", 200), (post("/predict", seven()), 200)):
            with self.server.connect() as connection, self.server.connect() as other:
                other.sendall(b"GET /livez HTTP/1.1\r\n")
                connection.sendall(first + b"GET / HTTP/9.9\r\n\r\n")
                answer, rest = read_answer(connection)
                self.assertEqual(answer.status, status)
                self.assertEqual(read_answer(connection, rest)[0].status, 505)
                other.sendall(b"Host: x\r\n\r\n")
                self.assertEqual(read_answer(other)[0].status, 200)

    def test_headers_that_proxies_read_otherwise(self):
        """400, the end of the connection, and what lies behind is never a request of its own."""
        hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
        length = b"%d" % len(hidden)
        host = b"Host: x\r\n"
        for headers in (host + b"Content-Length : " + length + b"\r\n",
                        host + b"Content-Length\t: " + length + b"\r\n",
                        host + b"Content-Length:\r\n " + length + b"\r\n",
                        host + b"Transfer-Encoding : chunked\r\n",
                        host + b"Transfer-Encoding:\r\n chunked\r\n",
                        host + b"X-A: b\r\nTransfer-Encoding : chunked\r\nContent-Length: 4\r\n",
                        host + host, b"Host: x\r\nHost: y\r\n",
                        host + host + b"Content-Length: " + length + b"\r\n"):
            for path in (b"/predict", b"/v2/models/digits/infer"):
                answer = self.server.raw(b"POST " + path + b" HTTP/1.1\r\n" + headers + b"\r\n" + hidden)
                with self.subTest(headers=headers, path=path):
                    self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
                    self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
        self.assert_hidden()
        self.assertEqual(self.server.predict(seven()).status, 200)

    def test_lines_that_end_a_head_early(self):
        """libmicrohttpd takes a line with an empty name, or that begins with NUL, for the end of the head. NUL, CR and
        folded lines in values are read in several ways, too."""
        hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
        for line in (b": x\r\n", b":\r\n", b"\0\r\n", b"\0X: y\r\n", b"\0: y\r\n", b"X: y\0z\r\n", b"X\0Y: z\r\n",
                     b"X: y\rZ: z\r\n", b"X: y\r\n z\r\n", b"X: y\n", b"X\x01: y\r\n", b"X: \0\r\n"):
            for head in (line + b"Host: x\r\n", b"Host: x\r\n" + line, b"Host: x\r\nA: b\r\n" + line + b"C: d\r\n"):
                answer = self.server.raw(b"GET /livez HTTP/1.1\r\n" + head + hidden + b"\r\n" + hidden)
                with self.subTest(head=head):
                    self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
                    self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
        for line in (b"GET  /livez HTTP/1.1", b"GET /livez\0 HTTP/1.1", b"GET\0 /livez HTTP/1.1", b"GET /livez HTTP/1.1\0"):
            answer = self.server.raw(line + b"\r\nHost: x\r\n\r\n" + hidden)
            with self.subTest(line=line):
                # libmicrohttpd 1.0 closes the connection at a NUL.
                self.assertTrue(b" 400 " in answer or b"\0" in line and answer == b"", answer)
                self.assertNotIn(b" 404 ", answer)
        self.assert_hidden()

    def assert_hidden(self):
        """No request was taken for one to /hidden: its line would be there once its connection is closed."""
        self.server.wait_metric("lensd_http_connections", 1)
        self.assertNotIn("/hidden", self.server.whole_log())

    def test_values_cut_at_nul(self):
        for line in (b"Content-Length: 5\0 6\r\n", b"Content-Length: 5\0\r\n", b"X-API-Key: KEY\0x\r\n"):
            answer = self.server.raw(b"POST /predict HTTP/1.1\r\nHost: x\r\n" + line + b"\r\nhello")
            with self.subTest(line=line):
                self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
                self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)

    def test_chunks_in_http_1_0(self):
        answer = self.server.raw(b"POST /predict HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
                                 b"0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
        self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
        self.assertIn(b"HTTP/1.0", answer.split(b"\r\n\r\n", 1)[1])

    def test_what_ends_a_chunked_body(self):
        """Bytes after trailers are not parsed: libmicrohttpd ends trailers as leniently as headers."""
        image = seven()
        start = (b"POST /predict?top_k=1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                 b"%x\r\n%s\r\n0\r\n" % (len(image), image))
        hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
        for trailers in (b": x\r\n", b"A: b\r\n: x\r\n", b"\0X: y\r\n", b"\0\r\n", b"A: b\r\n\0X: y\r\n", b"A: b\r\n"):
            with self.subTest(trailers=trailers):
                self.assertNotIn(b" 404 ", self.server.raw(start + trailers + hidden + b"\r\n" + hidden))
        with self.server.connect() as connection:
            for _ in range(2):
                connection.sendall(start + b"\r\n")
                self.assertEqual(read_answer(connection)[0].status, 200)
            connection.sendall(start + b"\r\n" + hidden)
            answer, rest = read_answer(connection)
            self.assertEqual(answer.status, 200)
            self.assertEqual(read_answer(connection, rest)[0].status, 404)

    def test_zeros_at_the_end_of_a_chunked_body(self):
        """They lie where libmicrohttpd's buffer shows how the body ended, and do not end the connection."""
        image, zeros = seven(), bytes(20)
        with self.server.connect() as connection:
            for _ in range(2):
                connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                                   b"%x\r\n%s" % (len(image + zeros), image))
                self.server.wait_for(lambda: self.server.metric("lensd_http_upload_bytes") > 0, "the image")
                connection.sendall(zeros + b"\r\n0\r\n\r\n")
                answer, _ = read_answer(connection)
                self.assertEqual((answer.status, answer.headers.get("connection")), (200, None))
                self.server.wait_metric("lensd_http_upload_bytes", 0)

    def test_seeded_noise(self):
        import random
        noise = random.Random(11)
        for _ in range(60):
            data = bytearray(post("/predict?top_k=3", *[multipart([("i", "a.png", seven())])[1]],
                                  "Content-Type: multipart/form-data; boundary=XboundaryX"))
            for _ in range(noise.randrange(1, 12)):
                data[noise.randrange(len(data))] = noise.randrange(256)
            with self.server.connect() as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                harness.read_to_end(connection)


def read_answer_of(server, data):
    with server.connect() as connection:
        connection.sendall(data)
        return read_answer(connection)[0]


class Targets(ServedCase):
    def ask(self, target):
        return read_answer_of(self.server, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def test_addresses_as_proxies_ask(self):
        for target in ("http://x/livez", f"http://127.0.0.1:{self.server.port}/livez?", "HTTPS://x:1/livez"):
            answer = self.ask(target)
            self.assertEqual((answer.status, answer.json()), (200, {"status": "live"}), target)
        for target in ("http://x", "http://x/", "http://x?"):
            self.assertEqual(self.ask(target).status, 200, target)
        self.assertEqual(self.ask("http://x/nowhere").status, 404)
        self.assert_error(self.ask("http:///livez"), 400, "invalid_request", "no host")
        self.assert_error(self.ask("http://x/livez?%zz"), 400, "invalid_request")

    def test_what_browsers_ask_by_themselves(self):
        answer = self.server.get("/favicon.ico")
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "image/svg+xml"))
        self.assertIn(b"<svg", answer.body)
        self.assertIn(b'href="favicon.ico"', self.server.get("/").body)


class Head(ServedCase):
    def test_head_is_get_without_the_body(self):
        for path in ("/", "/health", "/livez", "/readyz", "/ping", "/devices", "/metrics"):
            got = self.server.get(path)
            with self.server.connect() as connection, self.subTest(path=path):
                for _ in range(2):
                    connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    answer, rest = read_answer(connection, head=True)
                    self.assertEqual((answer.status, rest), (got.status, b""))
                    self.assertEqual(answer.headers["content-type"], got.headers["Content-Type"])
                    self.assertGreater(int(answer.headers["content-length"]), 0)

    def test_status_answers(self):
        health = self.server.get("/health").json()
        self.assertEqual((health["status"], health["ready"]), ("ready", True))
        self.assertEqual([(m["name"], m["state"], m["progress"], m["default"])
                          for m in health["models"]], [("digits", "ready", 1, True)])
        self.assertEqual(self.server.get("/readyz").json(), {"status": "ready"})
        self.assertEqual(self.server.get("/ping").json(), {"status": "Healthy"})
        self.assertEqual(self.server.get("/health?probe=1").status, 200)
        devices = self.server.get("/devices").json()["devices"]
        cpu = devices[0]
        self.assertEqual((cpu["id"], cpu["usable"]), ("cpu", True))
        self.assertGreater(cpu["memory"]["total_bytes"], cpu["memory"]["used_by_lensd_bytes"])
        model = cpu["models"][0]
        self.assertEqual(model["name"], "digits")
        self.assertIn(model["precision"], ("fp32", "bf16"))  # it is no longer small where a sanitizer slows it
        self.assertEqual(model["batches"][0]["size"], 1)
        for batch in model["batches"]:
            self.assertGreater(batch["milliseconds"], 0)
            self.assertGreater(batch["activation_bytes"], 0)
        for other in devices[1:]:
            self.assertTrue(other["usable"] or other["reason"])

    def test_metrics(self):
        self.server.predict(seven())
        self.server.get("/nope")
        answer = self.server.get("/metrics")
        self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        self.assertGreaterEqual(self.server.metric('lensd_http_requests_total{status="200"}'), 1)
        self.assertGreaterEqual(self.server.metric('lensd_http_requests_total{status="404"}'), 1)
        self.assertGreaterEqual(self.server.metric("lensd_http_body_bytes_total"), len(seven()))
        self.assertGreaterEqual(self.server.metric("lensd_http_connections"), 1)
        self.assertGreaterEqual(
            self.server.metric("lensd_http_request_duration_seconds_count"), 1)

    def test_the_page(self):
        answer = self.server.request("GET", "/", headers={"Host": 'x"><script>alert(1)</script>'})
        page = answer.body.decode()
        self.assertTrue(answer.headers["Content-Type"].startswith("text/html"))
        self.assertIn("Content-Security-Policy", answer.headers)
        for word in ("digits (default)", "curl --data-binary", "/devices", "32 × 32 × 3", "ready",
                     "up to 64 MiB."):
            self.assertIn(word, page)
        self.assertNotIn("<script>", page)
        self.assertNotIn("{{", page)
        self.assertNotIn("http://", page.replace('http://x&quot;', ""))

    def test_the_page_cuts_no_host(self):
        for count in range(4080, 4095):
            page = self.server.request("GET", "/", headers={"Host": "localhost:" + count * "a" + 9 * "'"}).body.decode()
            self.assertIn(f"'http://127.0.0.1:{self.server.port}/predict'", page)


if __name__ == "__main__":
    unittest.main()
