"""Clients that people already have, unmodified, against the real binary: `./dev test clients`.

Packages come from the Python registry (./dev); what is not there is skipped. LENSD names the binary,
PERF_ANALYZER NVIDIA's load tool, which is no package of the registry that starts on Debian 12.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "http"))
import http2  # noqa: E402
import test_dialects  # noqa: E402
from harness import PATIENCE, Server, drawn, png, run_lensd, seven  # noqa: E402
sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import totals  # noqa: E402


def has(*names):
    return all(importlib.util.find_spec(name) for name in names)


def has_grpc():
    """Does the program under test serve it?"""
    return "has no gRPC" not in run_lensd("serve", "--check", "--grpc-port", "1").stderr


PERF_ANALYZER = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")


def can_run(program):
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=20).returncode in (0, 1)
    except (OSError, TypeError, subprocess.TimeoutExpired):
        return False


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.address = f"127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


@unittest.skipUnless(has("opentelemetry") and has("opentelemetry.proto"),
                     "the package opentelemetry-proto is not installed")
class OpenTelemetry(unittest.TestCase):
    def test_traces_have_the_form_of_its_schema(self):
        import base64
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        from test_traces import Collector
        collector = Collector()
        server = Server("--trace-endpoint", collector.url)
        server.predict(seven())
        server.predict(b"no photo")
        server.stop()
        collector.close()
        spans = 0
        for _, _, post, _ in collector.posts:
            for span in post["resourceSpans"][0]["scopeSpans"][0]["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):  # the protocol writes them in hexadecimal
                    span[key] = base64.b64encode(bytes.fromhex(span.get(key, ""))).decode()
            request = json_format.ParseDict(post, ExportTraceServiceRequest())
            for span in request.resource_spans[0].scope_spans[0].spans:
                self.assertEqual((len(span.trace_id), len(span.span_id)), (16, 8))
                self.assertLess(span.start_time_unix_nano, span.end_time_unix_nano)
                spans += 1
        self.assertGreaterEqual(spans, 2 + 5)


@unittest.skipUnless(has("rotel"), "the package rotel is not installed")
class Collector(unittest.TestCase):
    """A collector for OpenTelemetry that is not ours. It prints what it receives."""

    TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

    def start(self, folder):
        """Returns its process and its port."""
        program = os.path.join(os.path.dirname(importlib.util.find_spec("rotel").origin), "rotel-agent")
        os.chmod(program, 0o755)
        with contextlib.ExitStack() as stack:  # both at once, so that they differ
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
            http, grpc = (made.getsockname()[1] for made in sockets)
        self.output = os.path.join(folder, "collector")
        with open(self.output, "wb") as output:
            process = subprocess.Popen(
                [program, "start", "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint",
                 f"127.0.0.1:{grpc}", "--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity",
                 "detailed"], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, http

    def wait_for(self, process, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            with open(self.output, encoding="utf-8") as file:
                self.assertTrue(process.poll() is None and time.monotonic() < end, file.read())
            time.sleep(0.05)

    def test_spans_arrive(self):
        with tempfile.TemporaryDirectory() as folder:
            process, port = self.start(folder)

            def listens():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
                    return True

            def shows():
                with open(self.output, encoding="utf-8") as file:
                    return re.split(r"Span #\d+\n", file.read())[1:]
            self.wait_for(process, listens)
            server = Server("--trace-endpoint", f"http://127.0.0.1:{port}")
            answer = server.predict(seven(), headers={"traceparent": f"00-{self.TRACE}-{self.SPAN}-01"})
            server.wait_metric("lensd_traces_sent_total", 1)
            self.assertEqual(server.stop()[0], 0)
            self.wait_for(process, lambda: shows() and "Name           : write\n" in shows()[-1])
            first, *phases = shows()
            own = answer.headers["traceparent"].split("-")[2]
            for line in (f"Trace ID       : {self.TRACE}", f"Parent ID      : {self.SPAN}", f"ID             : {own}",
                         "Name           : POST /predict", "Kind           : SPAN_KIND_SERVER",
                         "-> http.response.status_code: Int(200)", "-> lensd.model: Str(digits)"):
                self.assertIn(line, first)
            for span in phases:
                self.assertIn(f"Parent ID      : {own}", span)
            self.assertIn("Name           : forward", "".join(phases))


@unittest.skipUnless(has("tritonclient", "numpy"), "the package tritonclient[http] is not installed")
class TritonClient(Clients):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import numpy
        import tritonclient.http as http
        cls.numpy, cls.http = numpy, http
        cls.client = http.InferenceServerClient(cls.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def tensor(self, rows, binary=True):
        values = self.numpy.linspace(-1, 1, rows * 3072, dtype="float32").reshape(rows, 3, 32, 32)
        tensor = self.http.InferInput("image", list(values.shape), "FP32")
        tensor.set_data_from_numpy(values, binary_data=binary)
        return tensor

    def photos(self, *images):
        tensor = self.http.InferInput("image", [len(images)], "BYTES")
        tensor.set_data_from_numpy(self.numpy.array(images, dtype=object))
        return tensor

    def test_documents(self):
        c = self.client
        self.assertTrue(c.is_server_live() and c.is_server_ready())
        self.assertTrue(c.is_model_ready("digits") and c.is_model_ready("digits", "1"))
        self.assertFalse(c.is_model_ready("nobody"))
        self.assertEqual(c.get_server_metadata()["name"], "lensd")
        self.assertEqual(c.get_model_metadata("digits")["inputs"][0]["shape"], [-1, 3, 32, 32])
        self.assertEqual(c.get_model_config("digits", "1")["max_batch_size"], 8)
        self.assertEqual(c.get_model_repository_index()[0]["state"], "READY")
        self.assertEqual(c.get_inference_statistics()["model_stats"][0]["name"], "digits")
        self.assertEqual(c.get_system_shared_memory_status(), [])
        self.assertEqual(c.get_cuda_shared_memory_status(), [])
        c.unregister_system_shared_memory()
        self.assertEqual(c.get_trace_settings()["trace_level"], ["OFF"])
        self.assertIn("log_info", c.get_log_settings())

    def test_tensors(self):
        expected = self.client.infer("digits", [self.tensor(2)]).as_numpy("logits")
        self.assertEqual(expected.shape, (2, 10))
        outputs = [self.http.InferRequestedOutput("logits", binary_data=False)]
        for keywords in ({"outputs": outputs}, {"model_version": "1", "request_id": "id"},
                         {"priority": 2, "timeout": 5000000},
                         {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"},
                         {"request_compression_algorithm": "deflate",
                          "response_compression_algorithm": "deflate"}):
            for binary in (True, False):
                result = self.client.infer("digits", [self.tensor(2, binary)], **keywords)
                self.numpy.testing.assert_allclose(result.as_numpy("logits"), expected, atol=1e-3)
                self.assertEqual(result.get_response().get("id", ""), keywords.get("request_id", ""))

    def test_errors_are_understood(self):
        from tritonclient.utils import InferenceServerException
        wrong = self.http.InferInput("nothing", [1, 3, 32, 32], "FP32")
        wrong.set_data_from_numpy(self.numpy.zeros((1, 3, 32, 32), "float32"))
        with self.assertRaisesRegex(InferenceServerException, "nothing"):
            self.client.infer("digits", [wrong])
        with self.assertRaisesRegex(InferenceServerException, "nobody"):
            self.client.infer("nobody", [self.tensor(1)])
        with self.assertRaisesRegex(InferenceServerException, "admin"):
            self.client.load_model("digits")

    def test_image_client(self):
        """What NVIDIA's image_client does: read metadata and configuration, prepare, classify."""
        metadata = self.client.get_model_metadata("digits")
        config = self.client.get_model_config("digits")
        self.assertEqual((len(metadata["inputs"]), len(metadata["outputs"])), (1, 1))
        self.assertEqual((len(config["input"]), len(config["input"][0]["dims"])), (1, 3))
        self.assertGreater(config["max_batch_size"], 0)
        self.assertIn(config["input"][0]["format"], ("FORMAT_NCHW", "FORMAT_NHWC"))
        self.assertEqual(len(metadata["inputs"][0]["shape"]), 4)
        name, output = metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]
        self.assertEqual(name, "image")
        wanted = [self.http.InferRequestedOutput(output, class_count=3)]
        result = self.client.infer("digits", [self.photos(drawn(3), seven())], outputs=wanted)
        rows = result.as_numpy(output)
        self.assertEqual(rows.shape, (2, 3))
        self.assertEqual([row[0].decode().split(":")[1:] for row in rows], [["3", "3"], ["7", "7"]])

    def test_asyncio(self):
        import tritonclient.http.aio as aio

        async def ask():
            client = aio.InferenceServerClient(self.address)
            self.assertTrue(await client.is_server_ready())
            results = await asyncio.gather(*(client.infer("digits", [self.photos(drawn(d))])
                                             for d in range(10)))
            await client.close()
            return [int(result.as_numpy("logits").argmax()) for result in results]
        self.assertEqual(asyncio.run(ask()), list(range(10)))


@unittest.skipUnless(has("tritonclient", "grpc", "google"), "the package tritonclient[grpc] is not installed")
@unittest.skipUnless(has_grpc(), "this build has no gRPC")
class TritonGrpc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import numpy
        import tritonclient.grpc as grpc
        cls.numpy, cls.grpc = numpy, grpc
        cls.server = http2.serve()
        cls.address = f"127.0.0.1:{cls.server.grpc_port}"
        cls.client = grpc.InferenceServerClient(cls.address)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def tensor(self, rows):
        values = self.numpy.linspace(-1, 1, rows * 3072, dtype="float32").reshape(rows, 3, 32, 32)
        tensor = self.grpc.InferInput("image", list(values.shape), "FP32")
        tensor.set_data_from_numpy(values)
        return tensor

    def photos(self, *images):
        tensor = self.grpc.InferInput("image", [len(images)], "BYTES")
        tensor.set_data_from_numpy(self.numpy.array(images, dtype=object))
        return tensor

    def test_documents(self):
        c = self.client
        self.assertTrue(c.is_server_live() and c.is_server_ready())
        self.assertTrue(c.is_model_ready("digits") and c.is_model_ready("digits", "1"))
        self.assertFalse(c.is_model_ready("nobody"))
        self.assertEqual(c.get_server_metadata().name, "lensd")
        self.assertEqual(list(c.get_model_metadata("digits").inputs[0].shape), [-1, 3, 32, 32])
        config = c.get_model_config("digits", "1", as_json=True)["config"]
        self.assertEqual((config["max_batch_size"], config["input"][0]["format"]), (8, "FORMAT_NCHW"))
        self.assertEqual(config["instance_group"][0]["kind"], "KIND_CPU")
        self.assertEqual(c.get_model_repository_index().models[0].state, "READY")
        self.assertEqual(c.get_inference_statistics().model_stats[0].name, "digits")

    def test_inference(self):
        result = self.client.infer("digits", [self.tensor(2)], request_id="id", priority=2, timeout=60000000)
        self.assertEqual(result.as_numpy("logits").shape, (2, 10))
        self.assertEqual(result.get_response().id, "id")
        wanted = [self.grpc.InferRequestedOutput("logits", class_count=3)]
        rows = self.client.infer("digits", [self.photos(drawn(3), seven())], outputs=wanted).as_numpy("logits")
        self.assertEqual([row[0].decode().split(":")[1:] for row in rows], [["3", "3"], ["7", "7"]])
        self.assertEqual(self.client.infer("digits", [self.tensor(200)]).as_numpy("logits").shape, (200, 10))

    def test_errors_are_understood(self):
        from tritonclient.utils import InferenceServerException
        for words, ask in (("NOT_FOUND.*nobody", lambda: self.client.infer("nobody", [self.tensor(1)])),
                           ("DEADLINE_EXCEEDED", lambda: self.client.infer("digits", [self.tensor(1)], timeout=1)),
                           ("UNIMPLEMENTED.*compressed", lambda: self.client.infer("digits", [self.tensor(1)],
                                                                                   compression_algorithm="gzip")),
                           ("UNIMPLEMENTED", self.client.get_trace_settings),
                           ("PERMISSION_DENIED.*admin", lambda: self.client.load_model("digits"))):
            with self.subTest(words), self.assertRaisesRegex(InferenceServerException, words):
                ask()

    def test_callbacks_and_streams(self):
        answers = queue.Queue()
        for digit in range(10):
            self.client.async_infer("digits", [self.photos(drawn(digit))], lambda result, error: answers.put(error))
        self.assertEqual([answers.get(timeout=60) for _ in range(10)], [None] * 10)
        self.client.start_stream(lambda result, error: answers.put((result, error)))
        for digit in range(10):
            self.client.async_stream_infer("digits" if digit != 4 else "nobody", [self.photos(drawn(digit))])
        for digit in range(10):
            result, error = answers.get(timeout=60)
            if digit == 4:
                self.assertIn("nobody", str(error))
            else:
                self.assertEqual(int(result.as_numpy("logits").argmax()), digit)
        self.client.stop_stream()

    def test_asyncio(self):
        import tritonclient.grpc.aio as aio

        async def ask():
            client = aio.InferenceServerClient(self.address)
            results = await asyncio.gather(*(client.infer("digits", [self.photos(drawn(d))]) for d in range(10)))

            async def requests():
                for digit in range(10):
                    yield {"model_name": "digits", "inputs": [self.photos(drawn(digit))]}
            streamed = [result async for result, _ in client.stream_infer(requests())]
            await client.close()
            return [int(result.as_numpy("logits").argmax()) for result in results + streamed]
        self.assertEqual(asyncio.run(ask()), list(range(10)) * 2)


@unittest.skipUnless(has("aiohttp"), "the package aiohttp is not installed")
class Aiohttp(Clients):
    def test_many_at_once(self):
        import aiohttp

        async def ask():
            async with aiohttp.ClientSession(f"http://{self.address}") as session:
                async def one(digit):
                    form = aiohttp.FormData()
                    form.add_field("data", drawn(digit), filename="photo.png")
                    async with session.post("/predictions/digits", data=form) as answer:
                        return answer.status, next(iter(await answer.json()))
                return await asyncio.gather(*(one(i % 10) for i in range(100)))
        self.assertEqual(asyncio.run(ask()), [(200, str(i % 10)) for i in range(100)])


class Tasks(unittest.TestCase):
    """A server with a model for each task, of test_dialects.py, and a photo of 64 x 64 pixels."""

    @classmethod
    def setUpClass(cls):
        cls.server = test_dialects.Dialects.start.__func__(cls)
        cls.addClassCleanup(cls.server.stop)
        cls.url = f"http://127.0.0.1:{cls.server.port}"
        cls.photo = os.path.join(cls.folder, "photo.png")
        with open(cls.photo, "wb") as file:
            file.write(png(64, 64))


@unittest.skipUnless(has("inference_sdk"), "the package inference-sdk is not installed")
class InferenceSdk(Tasks):
    def check(self, client):
        found = client.infer(self.photo, model_id="detect/1")["predictions"]
        self.assertEqual([(f["class"], f["x"], f["y"], f["width"], f["height"]) for f in found[:1]], [("a dog", 32, 32, 16, 24)])
        (found,) = client.infer(self.photo, model_id="masks/1")["predictions"]
        self.assertEqual(found["points"][0], {"x": 16, "y": 16})
        (found,) = client.infer(self.photo, model_id="pose/1")["predictions"]
        self.assertEqual(found["keypoints"][0]["class"], "nose")
        self.assertEqual(client.infer(self.photo, model_id="classes/1")["top"], "green")
        self.assertEqual(len(client.infer([self.photo] * 2, model_id="detect/1")), 2)

    def test_both_forms_of_the_api(self):
        import inference_sdk
        for version in ("v0", "v1"):
            with self.subTest(version):
                client = inference_sdk.InferenceHTTPClient(api_url=self.url, api_key="none")
                self.check(client.select_api_v1() if version == "v1" else client.select_api_v0())
        self.assertEqual(client.get_server_info().name, "lensd")
        client = client.select_api_v1()
        self.assertIn("detect", [model.model_id for model in client.load_model("detect").models])
        self.assertEqual(client.infer(self.photo, model_id="detect")["predictions"][0]["class"], "a dog")
        with self.assertRaises(inference_sdk.http.errors.ModelNotInitializedError):
            client.infer(self.photo, model_id="nobody")
        with self.assertRaises(inference_sdk.http.errors.HTTPCallErrorError) as raised:
            client.unload_model("detect/1")
        self.assertIn("/v2/repository", str(raised.exception))
        client.configure(inference_sdk.InferenceConfiguration(confidence_threshold=0.56))
        self.assertEqual(len(client.infer(self.photo, model_id="detect/1")["predictions"]), 1)
        with self.assertRaises(inference_sdk.http.errors.HTTPCallErrorError) as raised:
            client.select_api_v0().infer(self.photo, model_id="nobody/1")
        self.assertIn("nobody", str(raised.exception))


@unittest.skipUnless(has("huggingface_hub", "PIL"), "the packages huggingface_hub and pillow are not installed")
class HuggingFaceHub(Tasks):
    def test_tasks(self):
        import huggingface_hub
        client = huggingface_hub.InferenceClient()
        (dog, cat) = client.object_detection(self.photo, model=self.url + "/models/detect")
        self.assertEqual((dog.label, dog.box.xmin, dog.box.ymax, cat.label), ("a dog", 24, 44, "a cat"))
        self.assertEqual(len(client.object_detection(self.photo, model=self.url + "/models/detect", threshold=0.56)), 1)
        best = client.image_classification(self.photo, model=self.url + "/models/classes", top_k=1)
        self.assertEqual([b.label for b in best], ["green"])
        for name, count in (("masks", 1), ("areas", 2)):
            found = client.image_segmentation(self.photo, model=f"{self.url}/models/{name}")
            self.assertEqual(([f.mask.size for f in found]), [(64, 64)] * count)
        client = huggingface_hub.InferenceClient(base_url=self.url + "/models/classes")
        self.assertEqual(client.image_classification(self.photo)[0].label, "green")
        client = huggingface_hub.InferenceClient(base_url=self.url)  # of no model: it says where to
        with self.assertRaises(huggingface_hub.errors.HfHubHTTPError) as raised:
            client.image_classification(self.photo)
        self.assertIn("/models/NAME", raised.exception.response.text)
        with self.assertRaises(huggingface_hub.errors.HfHubHTTPError):
            client.object_detection(b"no picture", model=self.url + "/models/detect")


@unittest.skipUnless(has("openai"), "the package openai is not installed")
class OpenAi(Tasks):
    def test_embeddings(self):
        import openai
        client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)
        uri = test_dialects.uri()
        answer = client.embeddings.create(model="embed", input=[uri, uri])
        self.assertEqual([d.embedding for d in answer.data], [[3, 0, 0, -4]] * 2)
        self.assertEqual(client.embeddings.create(model="embed", input=uri, encoding_format="float").data[0].embedding, [3, 0, 0, -4])
        with self.assertRaises(openai.BadRequestError) as raised:
            client.embeddings.create(model="embed", input="a text")
        self.assertIn("takes no texts", str(raised.exception))
        names = [model.id for model in client.models.list()]
        self.assertEqual(sorted(names), ["areas", "classes", "detect", "embed", "masks", "pose"])
        self.assertEqual(client.models.retrieve("embed").id, "embed")
        with self.assertRaises(openai.NotFoundError):
            client.embeddings.create(model="nobody", input=uri)


@unittest.skipUnless(has("deepstack_sdk", "cv2", "validators"), "the package deepstack-sdk is not installed")
class DeepStackSdk(unittest.TestCase):
    def test_every_class(self):
        from deepstack_sdk import Detection, Face, ServerConfig
        from test_apps import Answers
        case = Answers("test_plates")
        case.setUp()
        self.addCleanup(case.doCleanups)
        server = case.start()
        config, photo = ServerConfig(f"http://127.0.0.1:{server.port}"), png(64, 64, 200)
        found = Detection(config, name="ipcam-general").detectObject(photo)
        self.assertEqual([item.label for item in found], ["a dog", "a cat", "a dog"])
        face = Face(config)
        self.assertEqual(len(face.detectFace(photo)), 2)
        self.assertTrue(face.registerFace([photo, photo], "Jane"))
        self.assertEqual(list(face.listFaces()), ["Jane"])
        self.assertEqual([item.userid for item in face.recognizeFace(photo)], ["Jane", "Jane"])
        self.assertTrue(face.deleteFace("Jane"))
        self.assertEqual(list(face.listFaces()), [])


@unittest.skipUnless(has("pydoods"), "the package pydoods is not installed")
class PyDoods(unittest.TestCase):
    def test_as_home_assistant_asks(self):
        """homeassistant/components/doods/image_processing.py"""
        from pydoods import PyDOODS
        from test_doors import Doors
        case = Doors("send")
        case.setUp()
        self.addCleanup(case.doCleanups)
        doods = PyDOODS(f"http://127.0.0.1:{case.server.port}", "a key")
        (detector,) = [one for one in doods.get_detectors()["detectors"] if one["name"] == "ipcam-general"]
        self.assertEqual((detector["labels"], detector["width"]), (["a cat", "a dog"], 64))
        found = doods.detect(png(64, 64, 200), dconfig={"a dog": 60}, detector_name="ipcam-general")["detections"]
        self.assertEqual([(one["label"], round(one["confidence"])) for one in found], [("a dog", 90)])
        self.assertEqual(doods.detect(png(64, 64), dconfig={"*": 40})["detections"][0]["left"], 24 / 64, "its detector 'default'")


@unittest.skipUnless(has("requests"), "the package requests is not installed")
class DeepStack(Tasks):
    def test_as_frigate_asks(self):
        """frigate/detectors/plugins/deepstack.py: a form with "image", the answer within its timeout."""
        import requests
        with open(self.photo, "rb") as file:
            photo = file.read()
        answer = requests.post(self.url + "/v1/vision/custom/detect", data={"api_key": ""}, files={"image": photo}, timeout=20)
        found = answer.json()
        scores = [p["confidence"] for p in found["predictions"]]
        self.assertTrue(found["success"] and scores == sorted(scores, reverse=True) and scores[0] > 0.4)
        self.assertEqual(set(found["predictions"][0]), {"label", "confidence", "x_min", "y_min", "x_max", "y_max"})


@unittest.skipUnless(can_run(PERF_ANALYZER), "perf_analyzer is not here, or does not start (PERF_ANALYZER)")
class PerfAnalyzer(Clients):
    def measure(self, *arguments):
        run = subprocess.run([PERF_ANALYZER, "-m", "digits", "-u", self.address, "-p", "1000", "-s", "999",
                              *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=100)
        self.assertEqual(run.returncode, 0, run.stdout[-2000:])
        self.assertRegex(run.stdout, r"throughput: [1-9]")
        return run.stdout

    def test_native(self):
        report = self.measure("-i", "http")
        self.assertRegex(report, r"Execution count: [1-9]")
        self.measure("-i", "http", "-b", "4", "--concurrency-range", "3")

    def test_torchserve(self):
        with tempfile.TemporaryDirectory() as folder:
            photo, data = os.path.join(folder, "seven.png"), os.path.join(folder, "data.json")
            with open(photo, "wb") as file:
                file.write(seven())
            with open(data, "w") as file:
                json.dump({"data": [{"TORCHSERVE_INPUT": [photo]}]}, file)
            self.measure("--service-kind", "torchserve", "--input-data", data)


@unittest.skipUnless(has("schemathesis"), "the package schemathesis is not installed")
class Schemathesis(Clients):
    def test_every_path(self):
        """Made-up requests for every path of openapi.yaml: none may crash the server, end with a
        status or a type that is not described, or break the form of its answer."""
        run = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run",
                              f"http://{self.address}/openapi.json", "--max-examples", "8", "--phases", "fuzzing",
                              "--exclude-path-regex", "logging|region|:explain|model/(remove|clear)", "--seed", "7", "--no-color",
                              "--checks", "not_a_server_error,status_code_conformance,"
                              "content_type_conformance,response_schema_conformance"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        self.assertEqual(run.returncode, 0, run.stdout[-4000:])
        self.assertEqual(self.server.get("/readyz").status, 200)


if __name__ == "__main__":
    totals.main()
