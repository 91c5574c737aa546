"""The Open Inference Protocol over a real socket, with nothing but bytes: what every client sends, and
what none should."""

import gzip
import json
import os
import random
import shutil
import struct
import tempfile
import threading
import unittest

import harness
import small_onnx
from harness import ServedCase, Server, drawn, seven

INFER = "/v2/models/digits/infer"


def post(server, path, header, binary=b"", length=True):
    """A JSON header with binary tensors behind it."""
    text = json.dumps(header).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))} if length else {}
    return server.request("POST", path, text + binary, headers)


def parse(answer):
    """The JSON of an answer, and {output: bytes} of its binary tensors."""
    size = answer.headers.get("Inference-Header-Content-Length")
    if size is None:
        return json.loads(answer.body), {}
    text, rest = json.loads(answer.body[:int(size)]), answer.body[int(size):]
    binary = {}
    for output in text["outputs"]:
        count = output.get("parameters", {}).get("binary_data_size")
        if count is not None:
            binary[output["name"]], rest = rest[:count], rest[count:]
    assert not rest
    return text, binary


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def element(data):
    return struct.pack("<I", len(data)) + data


class Digits(ServedCase):
    """An image classifier."""
    arguments = ("--precision", "fp32")  # a trial that is won in between would change the numbers

    def image_input(self, images, data, shape=None):
        return {"name": "image", "shape": shape or [images], "datatype": "BYTES",
                "parameters": {"binary_data_size": len(data)}}

    def test_documents(self):
        get = lambda path: self.server.get(path).json()
        self.assertEqual(get("/v2")["name"], "lensd")
        for extension in ("binary_tensor_data", "classification", "model_repository", "statistics",
                          "model_configuration", "schedule_policy"):
            self.assertIn(extension, get("/v2")["extensions"])
        model = get("/v2/models/digits")
        self.assertEqual(model["versions"], ["1"])
        self.assertEqual(model["inputs"],
                         [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 32, 32]}])
        self.assertEqual(model["outputs"],
                         [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}])
        self.assertEqual(get("/v2/models/digits/versions/1"), model)
        labels = get("/models/digits/labels")
        self.assertEqual(labels, {"model": "digits", "version": "1", "labels": [str(digit) for digit in range(10)]})
        config = get("/v2/models/digits/config")
        self.assertEqual(config["max_batch_size"], 8)
        self.assertEqual(config["input"][0]["format"], "FORMAT_NCHW")
        self.assertEqual(config["input"][0]["dims"], [3, 32, 32])
        self.assertEqual(config["output"][0]["dims"], [10])
        index = self.server.request("POST", "/v2/repository/index", b'""').json()
        self.assertEqual(index, [{"name": "digits", "version": "1", "state": "READY", "reason": ""}])

    def test_health(self):
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready",
                     "/v2/models/digits/versions/1/ready"):
            self.assertEqual(self.server.get(path).status, 200, path)
        for path in ("/v2/models/nobody", "/v2/models/nobody/ready", "/v2/models/digits/versions/9",
                     "/v2/models/digits/versions/9/ready", "/v2/models/nobody/config", "/models/nobody/labels",
                     "/v2/models/nobody/stats", "/v2/nothing"):
            answer = self.server.get(path)
            self.assertEqual(answer.status, 404, path)
            self.assertEqual(answer.json()["code"], "not_found", path)
        self.assertEqual(self.server.get(INFER).status, 405)
        self.assertIn("POST", self.server.get(INFER).headers["Allow"])

    def test_image_and_tensor_agree_with_predict(self):
        image = seven()
        predicted = self.server.predict(image).json()["predictions"][0]["index"]
        for body in (image, element(image)):
            answer = self.server.request("POST", INFER, body,
                                         {"Inference-Header-Content-Length": "0"})
            self.assertEqual(answer.status, 200, answer.body)
            text, binary = parse(answer)
            scores = floats(binary["logits"])
            self.assertEqual(scores.index(max(scores)), predicted)

    def test_images_in_elements(self):
        images = [drawn(d) for d in (3, 7, 1)]
        data = b"".join(map(element, images))
        for shape in ([3], [3, 1]):
            answer = post(self.server, INFER,
                          {"id": "abc", "inputs": [self.image_input(3, data, shape)],
                           "outputs": [{"name": "logits", "parameters": {"classification": 2}}]}, data)
            text, _ = parse(answer)
            self.assertEqual((text["id"], text["model_name"], text["model_version"]),
                             ("abc", "digits", "1"))
            output = text["outputs"][0]
            self.assertEqual((output["datatype"], output["shape"]), ("BYTES", [3, 2]))
            best = output["data"][0::2]
            self.assertEqual([entry.split(":")[1:] for entry in best],
                             [["3", "3"], ["7", "7"], ["1", "1"]])
            self.assertRegex(best[0], r"^-?\d+\.\d{6}:")

    def test_base64_in_json(self):
        import base64
        answer = post(self.server, INFER,
                      {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES",
                                   "data": [base64.b64encode(seven()).decode()]}]}, length=False)
        scores = parse(answer)[0]["outputs"][0]["data"]
        self.assertEqual(scores.index(max(scores)), 7)

    def test_json_and_binary_are_the_same(self):
        values = [((i * 37) % 256) / 255 - 0.5 for i in range(3 * 32 * 32)]
        raw = struct.pack(f"<{len(values)}f", *values)
        values = floats(raw)  # as float32 has them
        tensor = {"name": "image", "shape": [2, 3, 32, 32], "datatype": "FP32"}
        nested = [[[[values[c * 1024 + y * 32 + x] for x in range(32)] for y in range(32)]
                   for c in range(3)]] * 2
        as_json = post(self.server, INFER, {"inputs": [{**tensor, "data": nested}]}, length=False)
        flat = post(self.server, INFER, {"inputs": [{**tensor, "data": list(values) * 2}]})
        binary = post(self.server, INFER,
                      {"inputs": [{**tensor, "parameters": {"binary_data_size": 2 * len(raw)}}],
                       "parameters": {"binary_data_output": True}}, raw * 2)
        self.assertEqual(as_json.headers["Content-Type"], "application/json")
        self.assertEqual(binary.headers["Content-Type"], "application/octet-stream")
        first = parse(as_json)[0]["outputs"][0]
        self.assertEqual(first["shape"], [2, 10])
        rows = floats(parse(binary)[1]["logits"])
        # Two rows may run in one pass or in two, which round differently.
        for others in (parse(flat)[0]["outputs"][0]["data"], rows, rows[10:] + rows[:10]):
            for a, b in zip(first["data"], others):
                self.assertAlmostEqual(a, b, places=4)

    def test_statistics_count(self):
        before = self.server.get("/v2/models/digits/stats").json()["model_stats"][0]
        self.server.request("POST", INFER, seven(), {"Inference-Header-Content-Length": "0"})
        self.server.request("POST", INFER, b"\xff\xd8\xff broken",
                            {"Inference-Header-Content-Length": "0"})
        after = self.server.get("/v2/models/stats").json()["model_stats"][0]
        self.assertEqual(after["inference_count"], before["inference_count"] + 1)
        self.assertEqual(after["execution_count"], before["execution_count"] + 1)
        for key in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
            self.assertEqual(after["inference_stats"][key]["count"],
                             before["inference_stats"][key]["count"] + 1, key)
        self.assertGreater(after["last_inference"], 0)
        self.assertGreater(after["inference_stats"]["success"]["ns"], 0)
        self.assertGreater(after["batch_stats"][0]["compute_infer"]["count"], 0)

    def test_shared_memory_is_off(self):
        for kind in ("system", "cuda"):
            self.assertEqual(self.server.get(f"/v2/{kind}sharedmemory/status").json(), [])
            answer = self.server.request("POST", f"/v2/{kind}sharedmemory/region/r/register", b"{}")
            self.assertEqual((answer.status, answer.json()["code"]), (501, "not_implemented"))
            self.assertEqual(
                self.server.request("POST", f"/v2/{kind}sharedmemory/unregister").status, 200)

    def test_bodies_that_are_no_json(self):
        answer = self.server.request("POST", INFER, struct.pack("<4f", 1, 2, 3, 4))
        self.assertEqual(answer.status, 400)
        self.assertIn("Inference-Header-Content-Length", answer.json()["error"])

    def test_a_picture_needs_no_header(self):
        answer = self.server.request("POST", INFER, seven())
        self.assertEqual(answer.status, 200, answer.body)
        known = self.server.request("POST", INFER, seven(), {"Inference-Header-Content-Length": "0"})
        self.assertEqual(parse(answer)[1], parse(known)[1])
        answer = self.server.get("/v2/models/digits/versions/9")
        self.assertEqual(answer.status, 404)
        self.assertIn("has no version '9'; it has: 1", answer.json()["error"])

    def test_refusals(self):
        good = {"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0] * 3072}
        cases = [
            ({}, '"inputs" is missing'),
            ({"inputs": [good], "outputs": [{"name": "nope"}]}, "it has: logits"),
            ({"inputs": []}, "missing"),
            ([], "object"),
            ({"inputs": [good], "id": 7}, "id"),
            ({"inputs": [{**good, "name": "nothing"}]}, "nothing"),
            ({"inputs": [good, good]}, "twice"),
            ({"inputs": [{**good, "shape": [1, 32, 32, 3]}]}, "[-1, 3, 32, 32]"),
            ({"inputs": [{**good, "shape": [3, 32, 32]}]}, "[-1, 3, 32, 32]"),
            ({"inputs": [{**good, "shape": [0, 3, 32, 32], "data": []}]}, "[0, 3, 32, 32]"),
            ({"inputs": [{**good, "shape": [-1, 3, 32, 32]}]}, "dimension"),
            ({"inputs": [{**good, "shape": [1.5, 3, 32, 32]}]}, "dimension"),
            ({"inputs": [{**good, "shape": [2**31, 2**31, 2**31]}]}, "dimension"),
            ({"inputs": [{**good, "shape": [2**30, 2**30, 2**30]}]}, "shape"),
            ({"inputs": [{**good, "shape": [1000000, 3, 32, 32]}]}, "data"),
            ({"inputs": [{**good, "datatype": "FP64"}]}, "FP64"),
            ({"inputs": [{**good, "datatype": "FP33"}]}, "FP33"),
            ({"inputs": [{**good, "datatype": "FP16"}]}, "binary"),
            ({"inputs": [{**good, "data": [0] * 3071}]}, "3071"),
            ({"inputs": [{**good, "data": [0] * 3073}]}, "more than"),
            ({"inputs": [{**good, "data": ["0"] * 3072}]}, "number"),
            ({"inputs": [{**good, "data": "x"}]}, "data"),
            ({"inputs": [{**good, "data": [[[[[0] * 3072]]]]}]}, "nest as the shape does"),
            ({"inputs": [{k: v for k, v in good.items() if k != "data"}]}, "data"),
            ({"inputs": [{**good, "parameters": {"binary_data_size": 5}}]}, "binary_data_size"),
            ({"inputs": [good], "outputs": [{"name": "nothing"}]}, "nothing"),
            ({"inputs": [good], "outputs": [{"name": "logits"}] * 2}, "'logits' is given twice"),
            # Elements of an array have no names.
            ({"inputs": [], "parameters": [1]}, "\"parameters\" must be an object"),
            ({"inputs": [good], "parameters": [1]}, "\"parameters\" must be an object"),
            ({"inputs": [good], "parameters": "x"}, "\"parameters\" must be an object"),
            ({"inputs": [{**good, "parameters": [1]}]}, "\"parameters\" must be an object"),
            ({"inputs": [], "outputs": [{"name": "y", "parameters": [1]}]}, "\"parameters\" must be"),
            ({"inputs": [good], "outputs": [{"name": "logits", "parameters": [1]}]},
             "\"parameters\" must be an object"),
            ({"inputs": [good], "outputs": [{"name": "logits", "parameters":
                                             {"classification": -1}}]}, "classification"),
            ({"inputs": [good], "parameters": {"binary_data_output": 1}}, "binary_data_output"),
            ({"inputs": [{**good, "shape": [1000], "datatype": "BYTES"}]}, "images"),
            ({"inputs": [{**good, "shape": [0], "datatype": "BYTES"}]}, "images"),
            ({"inputs": [{**good, "name": "imgae", "shape": [1], "datatype": "BYTES"}]}, "has no input 'imgae'; it has: image"),
            ({"inputs": [{**good, "parameters": {"shared_memory_region": "r"}}]}, "shared memory"),
        ]
        for body, word in cases:
            answer = post(self.server, INFER, body, length=False)
            self.assertIn(answer.status, (400, 413), (body if len(str(body)) < 500 else word))
            self.assertIn(word, answer.json()["error"])
        for text in (b"", b"{", b"nonsense", b'{"inputs":[{"data":[1,]}]}', b'{"inputs":[{"data":[[]}]}',
                     b'{"inputs":[{"data":[1 2]}]}', b'{"inputs":[{"data":[}]}', b'"\\',
                     b'{"inputs":[{"name":"image","shape":[1,3,32,32],"datatype":"FP32","data":[1'):
            answer = self.server.request("POST", INFER, text)
            self.assertEqual(answer.status, 400, text)
            self.assertTrue(answer.json()["error"], text)
        # Brackets without end, in arrays of numbers and of texts.
        for kind, shape, depth in (("FP32", "[1,3,32,32]", 4), ("BYTES", "[1]", 1)):
            text = f'{{"inputs":[{{"name":"image","shape":{shape},"datatype":"{kind}","data":'
            answer = self.server.request("POST", INFER, text + "[" * 10**6 + "]" * 10**6 + "}]}")
            self.assertEqual(answer.status, 400)
            self.assertIn(f"more than {depth} deep", answer.json()["error"])
        for length in ("-1", "x", "99999999999999999999", "5 ", ""):
            answer = self.server.request("POST", INFER, b"{}",
                                         {"Inference-Header-Content-Length": length})
            self.assertEqual(answer.status, 400, length)
        answer = self.server.request("POST", INFER, b"\xff\xd8\xff broken",
                                     {"Inference-Header-Content-Length": "0"})
        self.assertEqual((answer.status, answer.json()["code"]), (400, "bad_image"))

    def test_broken_elements(self):
        for data, count in ((struct.pack("<I", 100) + b"short", 2), (b"abc", 1), (element(b"x") + b"y", 1),
                            (b"", 1), (struct.pack("<I", 0xFFFFFFFF), 1)):
            answer = post(self.server, INFER, {"inputs": [self.image_input(count, data)]}, data)
            self.assertEqual(answer.status, 400, data)
        data = element(seven()) + element(b"no image")
        answer = post(self.server, INFER, {"inputs": [self.image_input(2, data)]}, data)
        self.assertEqual(answer.status, 415)
        self.assertIn("element 1", answer.json()["error"])

    def test_photos_and_rows_at_the_same_time(self):
        raw = struct.pack("<3072f", *([0.25] * 3072))
        header = {"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32",
                              "parameters": {"binary_data_size": len(raw)}}]}
        expected = parse(post(self.server, INFER, header, raw))[0]["outputs"][0]["data"]
        wrong = []

        def rows():
            for _ in range(20):
                got = parse(post(self.server, INFER, header, raw))[0]["outputs"][0]["data"]
                if any(abs(a - b) > 1e-3 for a, b in zip(got, expected)):
                    wrong.append(got)

        def photos():
            for _ in range(20):
                if self.server.predict(seven()).json()["predictions"][0]["label"] != "7":
                    wrong.append("photo")

        threads = [threading.Thread(target=f) for f in (rows, photos) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class OtherModels(unittest.TestCase):
    """Models that are no classifiers."""

    def serve(self, make, *arguments):
        folder = tempfile.mkdtemp(prefix="lensd-v2-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "m.onnx")
        make(path, *arguments)
        server = Server("--model", path)
        self.addCleanup(server.stop)
        return server

    def test_two_inputs_two_outputs(self):
        server = self.serve(small_onnx.sum_and_difference)
        model = server.get("/v2/models/m").json()
        self.assertEqual([i["shape"] for i in model["inputs"]], [[-1, 4], [-1, 4]])
        tensor = lambda name, values: {"name": name, "shape": [len(values) // 4, 4],
                                       "datatype": "FP32", "data": values}
        a, b = list(range(12)), [100 + i for i in range(12)]
        text, _ = parse(post(server, "/v2/models/m/infer",
                             {"inputs": [tensor("b", b), tensor("a", a)]}, length=False))
        outputs = {o["name"]: o for o in text["outputs"]}
        self.assertEqual(outputs["sum"]["data"], [x + y for x, y in zip(a, b)])
        self.assertEqual((outputs["copy"]["data"], outputs["copy"]["shape"]), (a, [3, 4]))
        text, binary = parse(post(server, "/v2/models/m/infer",
                                  {"inputs": [tensor("b", b), tensor("a", a)],
                                   "outputs": [{"name": "sum", "parameters": {"binary_data": True}}]},
                                  length=False))
        self.assertEqual([o["name"] for o in text["outputs"]], ["sum"])
        self.assertEqual(floats(binary["sum"])[0], 100)
        answer = post(server, "/v2/models/m/infer", {"inputs": [tensor("a", a), tensor("b", b[:4])]},
                      length=False)
        self.assertIn("differ", answer.json()["error"])
        answer = server.predict(seven())
        self.assertEqual(answer.status, 400)
        self.assertIn("/v2/models/m/infer", answer.json()["error"])
        answer = server.request("POST", "/v2/models/m/infer", seven())
        self.assertEqual(answer.status, 400)
        self.assertIn("GET /v2/models/m lists its inputs", answer.json()["error"])

    def test_a_shape_that_depends_on_the_picture(self):
        """As detectors with non-maximum suppression have it: the file tells the shape, or a part."""
        for declared in (1, 32, 6), (1, "boxes", 6):
            with self.subTest(declared=declared):
                server = self.serve(small_onnx.boxes_of_data, declared)
                outputs = server.get("/v2/models/m").json()["outputs"]
                self.assertEqual(outputs[0]["shape"], [d if isinstance(d, int) else -1 for d in declared])
                answer = server.predict(seven())
                self.assertEqual(answer.status, 400)
                self.assertIn("not one score per class", answer.json()["error"])

    def test_what_photos_cannot_ask_is_said_at_the_start(self):
        def make(path, told=False):
            small_onnx.always(path, [("out", [1, 7, 13], list(range(91)))])
            if told:
                with open(os.path.join(os.path.dirname(path), "lensd.json"), "w") as file:
                    file.write('{"task": "tensors"}')
        server = self.serve(make)
        (line,) = server.wait_log("/predict refuses photos: output 'out'")
        self.assertIn('{\\"task\\": \\"tensors\\"} into lensd.json', line)
        server = self.serve(make, True)
        self.assertEqual(server.predict(seven()).status, 400)
        self.assertNotIn("/predict refuses photos", server.whole_log())

    def test_every_datatype(self):
        # name: (number of TensorProto.DataType, struct format, values)
        kinds = {"FP64": (11, "d", [0.1, -2.5, 1e300, 3]), "INT64": (7, "q", [-2**62, 2**62, 0, 5]),
                 "INT32": (6, "i", [-2**30, 7, 0, 2**30]), "UINT8": (2, "B", [0, 100, 50, 7]),
                 "INT8": (3, "b", [-60, 60, 0, 1]), "FP16": (10, "e", [0.5, -1.25, 8, 0])}
        for word, (number, code, values) in kinds.items():
            with self.subTest(word):
                server = self.serve(small_onnx.sum_and_difference, number)
                raw = struct.pack("<4" + code, *values)
                tensors = [{"name": name, "shape": [1, 4], "datatype": word,
                            "parameters": {"binary_data_size": len(raw)}} for name in "ab"]
                text, binary = parse(post(server, "/v2/models/m/infer",
                                          {"inputs": tensors, "parameters": {"binary_data_output": True}},
                                          raw + raw))
                self.assertEqual(text["outputs"][0]["datatype"], word)
                self.assertEqual(binary["copy"], raw)
                if word == "FP16":
                    continue
                tensors = [{"name": name, "shape": [1, 4], "datatype": word, "data": values}
                           for name in "ab"]
                text, _ = parse(post(server, "/v2/models/m/infer", {"inputs": tensors}, length=False))
                self.assertEqual(text["outputs"][1]["data"], values)
                if word not in ("FP64",):
                    tensors[0]["data"] = [2**64, 0, 0, 0]
                    answer = post(server, "/v2/models/m/infer", {"inputs": tensors}, length=False)
                    self.assertEqual(answer.status, 400)
                    tensors[0]["data"] = [0.5, 0, 0, 0]
                    answer = post(server, "/v2/models/m/infer", {"inputs": tensors}, length=False)
                    self.assertEqual(answer.status, 400)

    def test_numbers_to_the_last_bit(self):
        for number, word, values, over in (
                (13, "UINT64", [10**19, 2**64 - 1, 2**63, 9999999999999999999], [2**64, 10**20, -1, 1.0]),
                (7, "INT64", [-2**63, 2**63 - 1, 10**18, -1], [2**63, -2**63 - 1, 10**19, -10**19])):
            server = self.serve(small_onnx.sum_and_difference, number)
            tensors = [{"name": name, "shape": [1, 4], "datatype": word, "data": values}
                       for name in "ba"]
            tensors[0] = {**tensors[0], "data": [0] * 4}
            answer = post(server, "/v2/models/m/infer", {"inputs": tensors}, length=False)
            self.assertEqual(answer.status, 200, answer.body)
            outputs = {o["name"]: o["data"] for o in json.loads(answer.body)["outputs"]}
            self.assertEqual(outputs["copy"], values)
            for value in over:
                tensors[0] = {**tensors[0], "data": [value, 0, 0, 0]}
                answer = post(server, "/v2/models/m/infer", {"inputs": tensors}, length=False)
                self.assertEqual(answer.status, 400, value)
                self.assertIn(word, answer.json()["error"])

    def test_numbers_that_no_float_holds(self):
        server = self.serve(small_onnx.sum_and_difference)
        double = self.serve(small_onnx.sum_and_difference, 11)
        for which, datatype, number, most in ((server, "FP32", "1e400", "3.4e38"), (server, "FP32", "-1e39", "3.4e38"),
                                              (server, "FP32", "1" + "0" * 500, "3.4e38"),
                                              (double, "FP64", "1e400", "1.8e308"), (double, "FP64", "-2e308", "1.8e308")):
            data = ('{"inputs":[{"name":"a","shape":[1,4],"datatype":"%s","data":[1,%s,0,0]},'
                    '{"name":"b","shape":[1,4],"datatype":"%s","data":[0,0,0,0]}]}' % (datatype, number, datatype))
            answer = which.request("POST", "/v2/models/m/infer", data)
            self.assertEqual(answer.status, 400, (number, answer.body))
            for word in ("'a'", number[:40], "larger than the largest", datatype, most):
                self.assertIn(word, answer.json()["error"])
        for which, datatype, number in ((server, "FP32", "3.4028235e38"), (server, "FP32", "1e-400"),
                                        (double, "FP64", "1.7976931348623157e308"),
                                        (double, "FP64", "0." + "0" * 989 + "1e1010"),
                                        (double, "FP64", "0." + "0" * 1019 + "1e1010")):
            data = ('{"inputs":[{"name":"a","shape":[1,4],"datatype":"%s","data":[1,%s,0,0]},'
                    '{"name":"b","shape":[1,4],"datatype":"%s","data":[0,0,0,0]}]}' % (datatype, number, datatype))
            answer = which.request("POST", "/v2/models/m/infer", data)
            self.assertEqual((answer.status, answer.json()["outputs"][0]["data"][1]), (200, float(number)), number)

    def test_nesting(self):
        server = self.serve(small_onnx.sum_and_difference)
        for depth, status in ((1, 200), (2, 200), (3, 400), (100, 400)):
            data = [1, 2, 3, 4]
            for _ in range(depth - 1):
                data = [data]
            body = {"inputs": [{"name": name, "shape": [1, 4], "datatype": "FP32", "data": data}
                               for name in "ab"]}
            answer = post(server, "/v2/models/m/infer", body, length=False)
            self.assertEqual(answer.status, status, depth)

    def test_no_batch_dimension(self):
        server = self.serve(small_onnx.fixed_row)
        self.assertEqual(server.get("/v2/models/m/config").json()["max_batch_size"], 0)
        self.assertEqual(server.get("/v2/models/m").json()["inputs"][0]["shape"], [3])
        answer = server.request("POST", "/v2/models/m/infer", struct.pack("<3f", -1, 2, 3),
                                {"Inference-Header-Content-Length": "0"})
        text, binary = parse(answer)
        self.assertEqual((floats(binary["y"]), text["outputs"][0]["shape"]), ((0, 2, 3), [3]))

    def test_rows_that_depend_on_the_picture(self):
        """A detector's boxes are no class scores, whatever their number; tensors get them."""
        for batch, why in ((1, "is not one score per class"), ("N", "is unusual for class scores")):
            with self.subTest(batch=batch):
                server = self.serve(lambda path: small_onnx.places_of_light(path, batch))
                answer = server.predict(seven())
                self.assertEqual(answer.status, 400)
                self.assertIn(why, answer.json()["error"])
                data = [0.0] * 192
                data[5] = data[64] = data[191] = 1.0
                text, _ = parse(post(server, "/v2/models/m/infer", {"inputs": [
                    {"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": data}]}, length=False))
                self.assertEqual(text["outputs"][0]["shape"], [3, 4])
                self.assertEqual(text["outputs"][0]["data"], [0, 0, 0, 5, 0, 1, 0, 0, 0, 2, 7, 7])
                if batch == 1:
                    self.assertEqual(server.get("/v2/models/m/config").json()["max_batch_size"], 0)
                    self.assertEqual(server.get("/v2/models/m").json()["inputs"][0]["shape"], [1, 3, 8, 8])

    def test_image_in_tensor_out(self):
        server = self.serve(small_onnx.doubled_image)
        values = list(range(3 * 64))
        text, _ = parse(post(server, "/v2/models/m/infer",
                             {"inputs": [{"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32",
                                          "data": values}]}, length=False))
        self.assertEqual(text["outputs"][0]["data"], [2 * v for v in values])
        self.assertEqual(text["outputs"][0]["shape"], [1, 3, 8, 8])
        answer = server.request("POST", "/v2/models/m/infer", seven(),
                                {"Inference-Header-Content-Length": "0"})
        self.assertEqual(len(parse(answer)[1]["doubled"]), 4 * 3 * 64)
        answer = server.predict(seven())
        self.assertEqual(answer.status, 400)
        self.assertIn("[1, 3, 8, 8]", answer.json()["error"])


class Large(unittest.TestCase):
    """Megabytes of JSON numbers both ways: their thread is not the one that serves all connections."""

    ROWS, SIDE = 256, 18

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lensd-v2-")
        self.addCleanup(self.folder.cleanup)
        path = os.path.join(self.folder.name, "large.onnx")
        small_onnx.doubled_image(path, self.SIDE)
        # Others may look into its /proc only with --core-dumps.
        self.server = Server(path, "--max-queue", "4096", "--max-queue-ms", "0", "--core-dumps", "--log-level", "warn",
                             "--grace", "3600", "--body-timeout", "3600")
        self.addCleanup(lambda: self.server.process.poll() is None and self.server.process.kill())
        count = self.ROWS * 3 * self.SIDE * self.SIDE
        self.numbers = [round((i * 2654435761 % 1000003) / 1000003, 6) for i in range(count)]
        self.body = json.dumps({"inputs": [{"name": "image", "datatype": "FP32", "data": self.numbers,
                                            "shape": [self.ROWS, 3, self.SIDE, self.SIDE]}]}).encode()

    def infer(self, headers=None):
        return self.server.request("POST", "/v2/models/large/infer", self.body, headers)

    def cpu_seconds(self):
        """{a thread's name: seconds on a CPU so far}"""
        folder, found = f"/proc/{self.server.process.pid}/task", {}
        for thread in os.listdir(folder):
            name = harness.read(f"{folder}/{thread}/comm").decode().strip()
            spent = int(harness.read(f"{folder}/{thread}/schedstat").split()[0]) * 1e-9
            found[name] = found.get(name, 0) + spent
        return found

    def stop(self):
        code, log = self.server.stop()
        self.assertEqual(code, 0, log[-3000:])

    def test_numbers_and_threads(self):
        before = self.cpu_seconds()
        answer = self.infer({"Accept-Encoding": "gzip"})
        after = self.cpu_seconds()
        self.assertEqual(answer.status, 200, answer.body[:500])
        data = json.loads(gzip.decompress(answer.body))["outputs"][0]["data"]
        self.assertEqual(len(data), len(self.numbers))
        for found, number in zip(data[::101], self.numbers[::101]):
            single = struct.unpack("<f", struct.pack("<f", number))[0]
            self.assertEqual(struct.pack("<f", found), struct.pack("<f", 2 * single))
        spent = {name: after[name] - before.get(name, 0) for name in after}
        serving = sum(seconds for name, seconds in spent.items() if name.startswith("MHD"))
        self.assertGreater(spent["offload"], 0)
        self.assertLess(serving, spent["offload"] / 2, spent)
        self.stop()

    def test_a_drain_waits_for_them(self):
        connections = [self.server.connect() for _ in range(4)]
        request = harness.post("/v2/models/large/infer", self.body)
        for connection in connections:
            connection.sendall(request)
        self.server.wait_admitted(1)
        self.server.signal()
        for connection in connections:
            with connection:
                self.assertEqual(harness.read_answer(connection)[0].status, 200)
        self.assertEqual(self.server.wait(), 0)
        self.stop()

    def test_who_hangs_up_leaves_nothing_behind(self):
        request = harness.post("/v2/models/large/infer", self.body)
        for _ in range(6):
            with self.server.connect() as connection:
                connection.sendall(request)
        self.server.wait_metric("lensd_http_upload_bytes", 0)
        self.server.wait_for(lambda: self.server.metric("lensd_queue_images{") +
                             self.server.metric("lensd_in_flight_images{") == 0, "an empty queue")
        self.assertEqual(self.infer().status, 200)
        self.stop()

    def test_what_is_wrong_is_said(self):
        wrong = self.body.replace(b"0.5", b"0.x", 1)
        answer = self.server.request("POST", "/v2/models/large/infer", wrong)
        self.assertEqual(answer.status, 400)
        self.assertIn("digit after the point", answer.json()["error"])
        answer = self.server.request("POST", "/v2/models/nobody/infer", self.body)
        self.assertEqual(answer.status, 404)
        self.stop()


class Batches(unittest.TestCase):
    """tests/data/batches: images that find themselves by number or place. Rows that are asked for together, or
    at once by many clients, are those of single runs, bit for bit."""

    FOLDER = os.path.join(harness.ROOT, "tests", "data", "batches")

    def setUp(self):
        self.random = random.Random(33)

    def image(self):
        return struct.pack("<192f", *(self.random.random() for _ in range(192)))

    def ask(self, server, name, images):
        header = {"inputs": [{"name": "image", "shape": [len(images), 3, 8, 8], "datatype": "FP32",
                              "parameters": {"binary_data_size": 768 * len(images)}}],
                  "parameters": {"binary_data_output": True}}
        return post(server, f"/v2/models/{name}/infer", header, b"".join(images))

    def serve(self, name):
        server = Server(os.path.join(self.FOLDER, name + ".onnx"), "--precision", "fp32")
        self.addCleanup(server.stop)
        return server

    def test_rows_of_a_batch_are_those_of_single_runs(self):
        for name in "inplace", "inplace_traced", "ownrows", "ownrows_traced", "bins_traced", "queries_traced", "oddpool":
            with self.subTest(name=name):
                server = self.serve(name)
                self.assertTrue(server.get("/devices").json()["devices"][0]["models"][0]["batched"])
                images = [self.image() for _ in range(3)]
                single = [parse(self.ask(server, name, [image]))[1]["out"] for image in images]
                self.assertEqual(len(set(single)), 3)
                self.assertEqual(parse(self.ask(server, name, images))[1]["out"], b"".join(single))
                answers = harness.together(150, lambda i: self.ask(server, name, [images[i % 3]]))
                self.assertEqual([parse(a)[1]["out"] for a in answers], [single[i % 3] for i in range(150)])

    def test_what_is_not_proven_is_said(self):
        path = os.path.join(self.FOLDER, "nextrows_traced.onnx")
        note = json.loads(harness.run_lensd("inspect", path, "--json").stdout)["note"]
        self.assertIn("run one by one", note)
        self.assertIn("(Add '/Add_1'", note)
        server = self.serve("nextrows_traced")
        server.wait_log("run one by one")
        answer = self.ask(server, "nextrows_traced", [self.image()] * 3)
        self.assertEqual(answer.status, 400, answer.body[:300])
        self.assertIn("one by one", answer.json()["error"])


if __name__ == "__main__":
    unittest.main()
