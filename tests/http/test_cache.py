"""--response-cache: what is asked again is answered again, to the bit, and nothing else is."""

import gzip
import json
import os
import unittest

import small_onnx
from harness import FolderCase, ServedCase, drawn, flat_png, multipart, png, run_lensd, seven, together
from test_traces import Collector, attributes

# A small body with a large answer: names are repeated in it.
MANY = multipart([(f"i{i}", "\x01" * 120, drawn(i % 10)) for i in range(64)])


class Cache(ServedCase):
    arguments = ("--response-cache", "8M", "--precision", "fp32", "--max-queue-ms", "0")

    def ask(self, body, path="/predict", **headers):
        """The answer, and whether it was kept: "hit", "miss", or None where the cache had nothing to do with it."""
        answer = self.server.predict(body, path, {name.replace("_", "-"): value for name, value in headers.items()})
        return answer, answer.headers["X-Cache"]

    def assert_again(self, body, path="/predict", **headers):
        """A miss, then a hit that is equal."""
        first, was = self.ask(body, path, **headers)
        self.assertEqual((first.status, was), (200, "miss"), first.body)
        self.assertIsNone(first.headers["Age"])
        again, was = self.ask(body, path, **headers)
        self.assertEqual((again.status, was), (200, "hit"))
        self.assertEqual(again.body, first.body)
        self.assertGreaterEqual(int(again.headers["Age"]), 0)
        for name in ("Content-Type", "Inference-Header-Content-Length", "Content-Encoding", "Vary"):
            self.assertEqual(again.headers[name], first.headers[name])
        return first

    def test_all_forms(self):
        self.assert_again(seven())
        self.assert_again(seven(), Accept="text/plain")
        self.assert_again(seven(), "/predict?format=image")
        self.assert_again(seven(), "/predict?format=png")
        self.assert_again(seven(), "/predict?top_k=2")
        self.assert_again(seven(), "/predict?top_k=3")
        self.assert_again(seven(), "/models/digits")
        self.assert_again(seven(), "/predictions/digits")
        self.assert_again(seven(), "/v2/models/digits/infer")
        self.assert_again(seven(), "/v2/models/digits/versions/1/infer")
        text = json.dumps({"instances": [[[[0.5] * 32] * 32] * 3]}).encode()
        self.assert_again(text, "/v1/models/digits:predict", Content_Type="application/json")

    def test_binary_tensors(self):
        request = json.dumps({"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32",
                                          "parameters": {"binary_data_size": 12288}}],
                              "parameters": {"binary_data_output": True}}).encode()
        first = self.assert_again(request + bytes(12288), "/v2/models/digits/infer",
                                  Inference_Header_Content_Length=str(len(request)))
        self.assertGreater(int(first.headers["Inference-Header-Content-Length"]), 0)

    def test_large_bodies_and_answers(self):
        """Hashed, and compressed, on an offload thread."""
        self.assert_again(png(700, 500, 1) + bytes(200000))
        kind, body = MANY
        path = "/predict?top_k=10"
        plain = self.assert_again(body, path, Content_Type=kind)
        self.assertGreater(len(plain.body), 64 << 10)
        packed, was = self.ask(body, path, Content_Type=kind, Accept_Encoding="gzip")
        self.assertEqual((was, packed.headers["Content-Encoding"]), ("hit", "gzip"))
        self.assertEqual(gzip.decompress(packed.body), plain.body)

    def test_parameters_of_forms(self):
        """The boundary is chosen at random and says nothing; names and values do."""
        def form(boundary, *parts):
            kind, body = multipart(parts, boundary)
            answer, was = self.ask(body, Content_Type=kind)
            self.assertEqual(answer.status, 200, answer.body)
            return was
        photo = drawn(3)
        self.assertEqual(form("A", ("image", "a.png", photo)), "miss")
        self.assertEqual(form("B", ("image", "a.png", photo)), "hit")
        self.assertEqual(form("B", ("image", "b.png", photo)), "miss")
        self.assertEqual(form("B", ("image", "a.png", photo), ("top_k", None, b"2")), "miss")
        self.assertEqual(form("B", ("image", "a.png", photo), ("top_k", None, b"1")), "miss")

    def test_a_photo_before_a_form(self):
        """Read as the photo that it is: its answer must not be given to who sends the form alone."""
        kind, form = multipart([("image", "a.png", drawn(4))])
        answer, was = self.ask(drawn(5) + b"\r\n" + form, Content_Type=kind)
        self.assertEqual((answer.json()["predictions"][0]["label"], was), ("5", "miss"))
        answer, was = self.ask(form, Content_Type=kind)
        self.assertEqual((answer.json()["predictions"][0]["label"], was), ("4", "miss"))

    def test_what_is_not_kept(self):
        for _ in range(2):
            answer, was = self.ask(b"no photo")
            self.assertEqual((answer.status, was), (415, None))
            kind, body = multipart([("a", "a.png", drawn(6)), ("b", "b.png", b"broken")])
            answer, was = self.ask(body, Content_Type=kind)
            self.assertEqual((answer.status, was), (200, None))  # one of its images failed
        first, _ = self.ask(drawn(6), "/infer/classification?model_id=digits/1")
        again, was = self.ask(drawn(6), "/infer/classification?model_id=digits/1")
        self.assertEqual((first.status, was), (200, None), first.body)
        self.assertNotEqual(first.json()["inference_id"], again.json()["inference_id"])

    def test_clients_that_want_no_cache(self):
        photo = drawn(8)
        self.assertEqual(self.ask(photo, Cache_Control="no-store")[1], None)
        self.assertEqual(self.ask(photo)[1], "miss")
        self.assertEqual(self.ask(photo, Cache_Control="max-age=0, no-cache")[1], "miss")
        self.assertEqual(self.ask(photo)[1], "hit")

    def test_many_at_once(self):
        """Those that come while the first is computed are misses as well; one answer remains."""
        photo = flat_png(77, 28)
        hits, misses = (self.server.metric(f"lensd_response_cache_{what}_total") for what in ("hits", "misses"))
        answers = together(128, lambda _: self.ask(photo))  # fewer than one client may have in the queue
        self.assertEqual({answer.status for answer, _ in answers}, {200})
        said = [was for _, was in answers]
        self.assertEqual(said.count("hit") + said.count("miss"), 128)
        self.server.wait_metric("lensd_response_cache_hits_total", hits + said.count("hit"))
        self.server.wait_metric("lensd_response_cache_misses_total", misses + said.count("miss"))
        answer, was = self.ask(photo)
        self.assertEqual(was, "hit")
        self.assertIn(answer.body, [kept.body for kept, _ in answers])

    def test_statistics(self):
        """As Triton counts: a hit is a success, but no inference."""
        def read():
            return self.server.get("/v2/models/digits/stats").json()["model_stats"][0]
        self.ask(flat_png(11, 28))
        before = read()
        self.assertEqual(self.ask(flat_png(11, 28))[1], "hit")
        after = read()
        self.assertEqual(after["inference_stats"]["cache_hit"]["count"],
                         before["inference_stats"]["cache_hit"]["count"] + 1)
        self.assertEqual(after["inference_stats"]["cache_miss"], before["inference_stats"]["cache_miss"])
        self.assertEqual(after["inference_stats"]["success"]["count"],
                         before["inference_stats"]["success"]["count"] + 1)
        self.assertEqual(after["inference_count"], before["inference_count"])
        self.server.wait_log("cache=hit")


class Apart(FolderCase):
    """Servers of their own."""

    def test_off_by_default(self):
        server = self.serve()
        for _ in range(2):
            self.assertIsNone(server.predict(seven()).headers["X-Cache"])
        self.assertNotIn("lensd_response_cache_bytes", server.get("/metrics").body.decode())

    def test_a_reload_forgets(self):
        def put(scale):
            small_onnx.doubled_image(self.path(".new"), 2, scale)
            os.rename(self.path(".new"), os.path.join(self.path("models"), "m.onnx"))
        os.mkdir(self.path("models"))
        put(2)
        body = json.dumps({"inputs": [{"name": "image", "shape": [1, 3, 2, 2], "datatype": "FP32",
                                       "data": [1] * 12}]}).encode()
        server = self.serve("--models", self.path("models"), "--watch", "--response-cache", "1M")

        def ask():
            answer = server.predict(body, "/v2/models/m/infer")
            return answer.json()["outputs"][0]["data"][0], answer.headers["X-Cache"]
        self.assertEqual([ask(), ask()], [(2, "miss"), (2, "hit")])
        put(3)
        server.wait_for(lambda: ask()[0] == 3, "the new file")
        self.assertEqual(ask(), (3, "hit"))
        os.remove(os.path.join(self.path("models"), "m.onnx"))
        server.wait_for(lambda: server.predict(body, "/v2/models/m/infer").status != 200, "the end of the model")

    def test_old_answers_go_first(self):
        limit = 65536
        server = self.serve("--response-cache", str(limit), "--precision", "fp32")

        def ask(shade):
            return server.predict(flat_png(shade, 28)).headers["X-Cache"]
        self.assertEqual(ask(0), "miss")
        for shade in range(1, 256):
            self.assertEqual(ask(shade), "miss")
            self.assertEqual(ask(0), "hit")  # used again and again
            self.assertLessEqual(server.metric("lensd_response_cache_bytes"), limit)
        self.assertGreater(server.metric("lensd_response_cache_evictions_total"), 0)
        self.assertEqual(ask(1), "miss")
        self.assertEqual(ask(255), "hit")
        # Larger than half of the cache: not kept, and nothing goes because of it.
        kind, body = MANY
        for _ in range(2):
            answer = server.predict(body, "/predict?top_k=10", {"Content-Type": kind})
            self.assertEqual((answer.status, answer.headers["X-Cache"]), (200, "miss"))
        self.assertGreater(len(answer.body), limit // 2)
        self.assertEqual(ask(255), "hit")

    def test_keys(self):
        """Answers are not shared between keys, whose names would tell what others have sent."""
        keys = {}
        with open(self.path("keys"), "w") as file:
            for name in ("alice", "bob"):
                made = run_lensd("key", name)
                keys[name] = made.stderr.split("\n\n    ")[1].split("\n")[0]
                file.write(made.stdout)
        server = self.serve("--api-keys", self.path("keys"), "--response-cache", "1M")

        def ask(key):
            answer = server.predict(seven(), headers={"Authorization": f"Bearer {key}"})
            return answer.status, answer.headers["X-Cache"]
        self.assertEqual([ask(keys["alice"]), ask(keys["alice"]), ask(keys["bob"])],
                         [(200, "miss"), (200, "hit"), (200, "miss")])
        self.assertEqual(ask("unknown"), (401, None))

    def test_traces(self):
        collector = Collector()
        self.addCleanup(collector.close)
        server = self.serve("--response-cache", "1M", "--trace-endpoint", collector.url)
        for _ in range(2):
            server.predict(seven())
        server.wait_for(lambda: len([span for span in collector.spans() if span["kind"] == 2]) == 2, "two traces")
        said = [attributes(span).get("lensd.cache") for span in collector.spans() if span["kind"] == 2]
        self.assertEqual(sorted(said, key=str), [None, "hit"])

    def test_too_small(self):
        ended = run_lensd("serve", "--port", "0", "--response-cache", "1000")
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn("--response-cache is 1000 bytes; it must be at least 65536", ended.stderr)


if __name__ == "__main__":
    unittest.main()
