"""Model repositories: folders of models and versions, loaded, replaced and dropped while clients go
on asking."""

import base64
import http.client
import json
import os
import shutil
import tempfile
import threading
import unittest
import urllib.parse

import small_onnx
from harness import PATIENCE, ROOT, Server, multipart, run_lensd, seven

INFER = {"inputs": [{"name": "image", "shape": [1, 3, 2, 2], "datatype": "FP32", "data": [1] * 12}]}


class Repository(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="lensd-repository-")
        self.addCleanup(shutil.rmtree, self.root)

    def put(self, name, version, scale, make=small_onnx.doubled_image):
        """A model that multiplies by `scale`, put in place at once."""
        folder = os.path.join(self.root, name, version) if version else os.path.join(self.root, name)
        os.makedirs(folder, exist_ok=True)
        aside = os.path.join(self.root, ".aside.onnx")
        make(aside, 2, scale)
        os.rename(aside, os.path.join(folder, "model.onnx"))

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def serve(self, *arguments, **keywords):
        server = Server("--models", self.root, *arguments, **keywords)
        self.addCleanup(server.stop)
        return server

    def serve_to_the_end(self, *arguments, **keywords):
        """For tests that stop it themselves."""
        server = Server("--models", self.root, *arguments, **keywords)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server

    def ask(self, server, model, version=None):
        """The factor that answers, or the status of an error."""
        path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
        answer = server.request("POST", path, json.dumps(INFER).encode())
        return answer.json()["outputs"][0]["data"][0] if answer.status == 200 else answer.status

    def states(self, server):
        index = server.request("POST", "/v2/repository/index").json()
        return {(e["name"], e["version"]): (e["state"], e["reason"]) for e in index}

    def test_layouts(self):
        self.put("plain", None, 2)
        self.put("numbered", "1", 3)
        self.put("numbered", "12", 4)
        self.put("numbered", "9", 5)
        self.put("every", "1", 6)
        self.put("every", "2", 7)
        self.write("every/config.pbtxt", "version_policy: { all { } }\nmax_batch_size: 4\n")
        self.put("some", "1", 8)
        self.put("some", "2", 9)
        self.put("some", "3", 10)
        self.write("some/config.pbtxt", 'name: "some"\nversion_policy { specific { versions: [1, 2] } }')
        small_onnx.doubled_image(os.path.join(self.root, "alone.onnx"), 2, 11)
        os.makedirs(os.path.join(self.root, ".hidden"))
        server = self.serve()
        self.assertEqual([self.ask(server, m) for m in ("plain", "numbered", "every", "some", "alone")],
                         [2, 4, 7, 9, 11])
        self.assertEqual((self.ask(server, "numbered", "12"), self.ask(server, "numbered", "9")),
                         (4, 404))
        self.assertEqual((self.ask(server, "every", "1"), self.ask(server, "some", "1")), (6, 8))
        self.assertEqual(server.get("/v2/models/every").json()["versions"], ["1", "2"])
        self.assertEqual(server.get("/v2/models/every/config").json()["max_batch_size"], 4)
        self.assertEqual(len(self.states(server)), 7)
        self.assertEqual(server.get("/v1/models").json()["models"],
                         ["alone", "every", "numbered", "plain", "some"])

    def test_a_name_that_is_too_long(self):
        most = "ü" * 63 + "n"
        for name in (most, most + "x", "y" * 200):
            self.put(name, None, 2)
        server = self.serve("--watch")
        self.assertEqual(self.ask(server, urllib.parse.quote(most)), 2)
        self.put("z" * 128, None, 2)
        def names():
            return sorted(model["name"] for model in server.get("/health").json()["models"])
        server.wait_for(lambda: "z" * 120 + "…" in names(), "the new model")
        self.assertEqual(names(), sorted([most, "ü" * 60 + "…", "y" * 120 + "…", "z" * 120 + "…"]))
        server.wait_log("the name has 200 bytes, and at most 127 are allowed; rename the folder or file")

    def put_digits(self, *names):
        for name in names:
            shutil.copytree(os.path.join(ROOT, "models", "digits"), os.path.join(self.root, name),
                            ignore=shutil.ignore_patterns("*.py", "*.md", "__pycache__"))

    def unnamed(self, server, path="/predict"):
        """Who answers a photo that names no model, or the status and the sentence."""
        answer = server.predict(seven(), path)
        return answer.json()["model"] if answer.status == 200 else (answer.status, answer.json()["error"])

    @staticmethod
    def readiness(server):
        answer = server.get("/readyz")
        return answer.status, answer.json()["status"]

    def test_no_default_among_several(self):
        """A folder that sorts earlier does not take the place of the only model."""
        self.put_digits("m")
        server = self.serve_to_the_end("--watch")
        self.assertEqual(self.unnamed(server), "m")
        self.put_digits("a")
        server.wait_for(lambda: ("a", "1") in self.states(server), "the second model")
        self.assertRegex(server.wait_log("default model changed")[0], "(?i)warn.* model=none before=m ")
        server.stop()
        server = self.serve_to_the_end()
        for path, headers in (("/predict", {}), ("/predict", {"Content-Type": "application/json"})):
            body = seven() if not headers else json.dumps({"image": {"b64": base64.b64encode(seven()).decode()}})
            answer = server.predict(body, path, headers)
            self.assertEqual(answer.status, 400, answer.body)
            self.assertIn("this server has several: a, m; name one", answer.json()["error"])
            self.assertIn("--default-model", answer.json()["error"])
        kind, form = multipart([("image", "a.png", seven())])
        answer = server.predict(form, "/v1/vision/detection", {"Content-Type": kind})
        self.assertEqual((answer.status, answer.json()["success"]), (400, False))
        self.assertEqual(self.unnamed(server, "/predict?model=a"), "a")
        self.assertEqual({m["default"] for m in server.get("/health").json()["models"]}, {False})
        page = server.request("GET", "/", headers={"Accept": "text/html"}).body.decode()
        self.assertIn("/predict?model=a", page)
        server.stop()
        first, second = server.output.splitlines()
        self.assertRegex(first, r"^lensd serves 2 models at \S+ on cpu with \d+ threads?; requests must name a model \(\?model=NAME\); try it:$")
        self.assertEqual(second, f"  curl --data-binary @photo.jpg 'http://127.0.0.1:{server.port}/predict?model=a'")

    def test_a_broken_folder_is_no_second_model(self):
        self.put_digits("m")
        server = self.serve_to_the_end("--watch")
        self.write("a/model.onnx", "no model")
        server.wait_for(lambda: self.states(server).get(("a", "1"), ("", ""))[1], "its failure")
        self.assertEqual(self.unnamed(server), "m")
        self.assertEqual([m["name"] for m in server.get("/health").json()["models"] if m["default"]], ["m"])
        os.remove(os.path.join(self.root, "a/model.onnx"))
        self.put_digits("b")
        server.wait_for(lambda: self.states(server).get(("b", "1"), ("", ""))[0] == "READY", "a second model")
        server.wait_for(lambda: self.unnamed(server)[0] == 400, "the refusal")
        server.stop()
        # A start knows of no model that was ready before.
        self.write("b/model.onnx", "no model")
        self.assertEqual(self.unnamed(self.serve())[0], 400)

    def test_a_model_that_is_removed_beside_a_failed_one(self):
        self.put_digits("m")
        self.write("a/model.onnx", "no model")
        server = self.serve("--watch")
        self.assertEqual(self.unnamed(server, "/predict?model=m"), "m")
        shutil.rmtree(os.path.join(self.root, "m"))
        server.wait_for(lambda: ("m", "1") not in self.states(server), "its end")
        self.assertEqual(self.readiness(server), (503, "failed"))
        status, sentence = self.unnamed(server, "/predict?model=m")
        self.assertEqual((status, sentence), (404, "there is no model 'm'; this server has: a (failed)"))
        for path in ("/predict?model=a", "/predict"):
            status, sentence = self.unnamed(server, path)
            self.assertEqual(status, 503)
            self.assertIn("model 'a' could not be loaded", sentence)

    def test_a_default_that_is_named(self):
        self.put_digits("a", "m")
        server = self.serve_to_the_end("--default-model", "m", "--watch", "--admin-key-file", self.admin_key())
        self.assertEqual(self.unnamed(server), "m")
        self.assertEqual([m["name"] for m in server.get("/health").json()["models"] if m["default"]], ["m"])
        self.assertEqual(self.admin(server, "m", "unload").status, 200)
        self.assertEqual(self.unnamed(server), (503, "model 'm' has been unloaded"))
        self.assertEqual(self.admin(server, "m", "load").status, 200)
        self.assertEqual(self.unnamed(server), "m")
        shutil.rmtree(os.path.join(self.root, "m"))
        server.wait_for(lambda: self.unnamed(server) == (404, "there is no model 'm', which --default-model names; "
                                                              "this server has: a"), "its end")
        self.assertNotIn("default model changed", server.whole_log())
        self.put_digits("m")
        server.wait_for(lambda: self.unnamed(server) == "m", "its return")
        server.stop()
        self.assertRegex(server.output, r"; requests that name no model go to m on cpu with \d+ threads?; try it:")
        self.write("m/model.onnx", "no model")
        server = self.serve("--default-model", "m")
        status, sentence = self.unnamed(server)
        self.assertEqual(status, 503)
        self.assertIn("model 'm' could not be loaded", sentence)

    def test_a_default_that_is_not_there(self):
        self.put_digits("a", "b")
        for arguments, names in ((("--models", self.root), "a, b"), ((os.path.join(self.root, "a"),), "a"),
                                 (("digits",), "digits"), ((), "digits")):
            ended = run_lensd("serve", *arguments, "--default-model", "nobody", "--port", "0")
            self.assertEqual(ended.returncode, 2)
            self.assertIn(f"--default-model 'nobody': there is no such model; the server has: {names}\n", ended.stderr)
        server = Server("--default-model", "digits")
        self.addCleanup(server.stop)
        self.assertEqual(self.unnamed(server), "digits")

    def test_failed_models_are_marked_in_sentences(self):
        self.put_digits("a", "m")
        self.write("broken/model.onnx", "no model")
        server = self.serve()
        for path, status in (("/predict", 400), ("/predict?model=nobody", 404)):
            found = self.unnamed(server, path)
            self.assertEqual(found[0], status)
            self.assertIn(": a, broken (failed), m", found[1])

    def test_the_banner_tells_what_failed(self):
        self.put("a", None, 2)
        self.put("b", None, 3)
        self.write("broken/model.onnx", "no model")
        self.write("worse/model.onnx", "no model")
        server = self.serve_to_the_end()
        server.wait_log('model="2 of 4 models (failed: broken, worse)" default=- ')
        server.stop()
        self.assertIn("lensd serves 2 of 4 models (failed: broken, worse) at ", server.output)

    def test_a_precision_that_a_model_has_not(self):
        self.put("a", None, 2)
        ended = run_lensd("serve", "--models", self.root, "--port", "0", "--precision", "int8")
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn("lensd: a: the precision int8 needs", ended.stderr)

    def test_an_empty_folder(self):
        server = self.serve_to_the_end("--watch", wait_ready=False)
        server.wait_log(" ready ")
        self.assertEqual(self.readiness(server), (503, "unloaded"))
        answer = server.request("POST", "/predict", b"photo")
        self.assertEqual((answer.status, answer.json()["error"]),
                         (503, "this server has no model yet; GET /health lists those that are loading"))
        self.assertEqual(self.unnamed(server, "/predict?model=m"), (404, "there is no model 'm'; this server has: none yet"))
        self.put("m", None, 2)
        server.wait_for(lambda: self.ask(server, "m") == 2, "the model")
        self.assertEqual(self.readiness(server), (200, "ready"))
        server.stop()
        self.assertEqual(server.output,
                         f"lensd is at http://127.0.0.1:{server.port} and waits for models in {self.root}\n")

    def test_two_models_of_one_name(self):
        self.put("good", None, 2)
        self.put("dup", None, 3)
        small_onnx.doubled_image(os.path.join(self.root, "dup.onnx"), 2, 4)
        server = self.serve("--watch")
        sentence = "there are two models 'dup', the folder dup/ and the file dup.onnx"
        self.assertEqual((self.ask(server, "good"), self.ask(server, "dup")), (2, 503))
        self.assertIn(sentence, str(self.states(server)))
        self.assertIn(sentence, server.get("/health").body.decode())
        os.remove(os.path.join(self.root, "dup.onnx"))
        server.wait_for(lambda: self.ask(server, "dup") == 3, "the one that is left")
        self.assertNotIn("two models", str(self.states(server)))
        # A second one that comes later changes nothing but what is said.
        small_onnx.doubled_image(os.path.join(self.root, "dup.onnx"), 2, 4)
        server.wait_for(lambda: sentence in str(self.states(server)), "the refusal")
        self.assertEqual(self.ask(server, "dup"), 3)
        os.remove(os.path.join(self.root, "dup.onnx"))
        server.wait_for(lambda: "two models" not in str(self.states(server)), "the end of it")
        self.assertEqual(self.ask(server, "dup"), 3)
        server.wait_log(sentence)

    def test_a_policy_that_is_mended(self):
        self.put("m", "1", 2)
        server = self.serve("--watch")
        self.write("m/config.pbtxt", "version_policy { specific { versions: [7] } }")
        server.wait_for(lambda: "version_policy" in self.states(server)["m", "1"][1], "the failure")
        self.assertEqual(self.ask(server, "m"), 2)
        os.remove(os.path.join(self.root, "m/config.pbtxt"))
        server.wait_for(lambda: self.states(server)["m", "1"] == ("READY", ""), "the end of the failure")
        self.assertEqual(self.ask(server, "m"), 2)

    def test_a_version_that_stands_in_follows_its_files(self):
        self.put("m", "2", 2)
        server = self.serve("--watch")
        self.write("m/3/model.onnx", "no model")
        server.wait_for(lambda: self.states(server).get(("m", "3"), ("", ""))[1], "the failure of 3")
        self.assertEqual(self.ask(server, "m"), 2)
        self.put("m", "2", 5)
        server.wait_for(lambda: self.ask(server, "m") == 5, "the new 2")
        self.write("m/2/model.onnx", "no model, either")
        server.wait_for(lambda: self.states(server)["m", "2"][1], "the failure of 2")
        self.assertEqual((self.states(server)["m", "2"][0], self.ask(server, "m")), ("READY", 5))
        self.assertIn("m/2/model.onnx", server.get("/health").body.decode())
        server.wait_log("m/2/model.onnx")
        self.put("m", "3", 7)
        server.wait_for(lambda: self.ask(server, "m") == 7, "the mended 3")
        server.wait_for(lambda: ("m", "2") not in self.states(server), "the end of 2")

    def test_two_models_of_one_name_alone(self):
        self.put("dup", None, 3)
        small_onnx.doubled_image(os.path.join(self.root, "dup.onnx"), 2, 4)
        ended = run_lensd("serve", "--models", self.root, "--port", "0")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("there are two models 'dup'", ended.stderr)

    def test_a_broken_model_does_not_stop_the_others(self):
        self.put("good", None, 2)
        self.write("bad/model.onnx", "no model")
        self.write("empty/readme.txt", "nothing")
        server = self.serve()
        self.assertEqual(self.ask(server, "good"), 2)
        self.assertEqual((self.ask(server, "bad"), self.ask(server, "nobody")), (503, 404))
        states = self.states(server)
        self.assertEqual(states["good", "1"], ("READY", ""))
        self.assertEqual(states["bad", "1"][0], "UNAVAILABLE")
        self.assertIn("model.onnx", states["bad", "1"][1])
        self.assertIn("no model", states["empty", ""][1])
        self.assertEqual(server.get("/v2/models/bad/ready").status, 400)
        failures = {m["name"]: m.get("error") for m in server.get("/health").json()["models"]}
        self.assertTrue(failures["bad"] and not failures["good"])

    def told(self, server, name, **labels):
        """The value of a series of /metrics; None: there is none."""
        return server.metric(name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}")

    @staticmethod
    def stale(server):
        return {model["name"]: model["stale"] for model in server.get("/health").json()["models"]}

    def test_states_are_counted(self):
        self.put("good", None, 2)
        self.write("bad/model.onnx", "no model")
        server = self.serve("--admin-key-file", self.admin_key())
        for model, now in (("good", "ready"), ("bad", "failed")):
            for state in ("loading", "ready", "failed", "unloading", "unloaded"):
                self.assertEqual(self.told(server, "lensd_model_state", model=model, version="1", state=state),
                                 int(state == now), (model, state))
        self.assertEqual(self.told(server, "lensd_model_stale", model="good", version="1"), 0)
        self.assertEqual(self.stale(server), {"good": False, "bad": False})
        self.write("good/model.onnx", "no model, either")
        self.assertEqual(self.admin(server, "good", "load").status, 500)
        self.assertEqual(self.ask(server, "good"), 2)
        self.assertEqual(self.told(server, "lensd_model_stale", model="good", version="1"), 1)
        self.assertEqual(self.stale(server), {"good": True, "bad": False})
        lines = server.wait_log(" model not loaded ", 2)
        self.assertEqual(["the version loaded before still answers (stale)" in line for line in lines], [False, True], lines)
        self.assertEqual(self.told(server, "lensd_model_state", model="good", version="1", state="ready"), 1)
        self.assertIn("model.onnx", self.states(server)["good", "1"][1])
        self.put("good", None, 3)
        self.assertEqual(self.admin(server, "good", "load").status, 200)
        self.assertEqual(self.told(server, "lensd_model_stale", model="good", version="1"), 0)
        self.assertEqual(self.admin(server, "good", "unload").status, 200)
        self.assertEqual(self.told(server, "lensd_model_state", model="good", version="1", state="unloaded"), 1)

    def test_ready_any_and_strict(self):
        self.put("good", None, 2)
        self.write("bad/model.onnx", "no model")
        probes = ("/readyz", "/health", "/ping")
        server = self.serve()
        self.assertEqual([server.get(path).status for path in probes], [200] * 3)
        self.assertEqual(server.get("/v2/health/ready").status, 200)
        strict = self.serve("--ready", "strict", "--watch", wait_ready=False)
        strict.wait_log("not ready")
        self.assertEqual([strict.get(path).status for path in probes], [503] * 3)
        self.assertEqual(strict.request("GET", "/v2/health/ready", headers={"X-Request-Id": "probe"}).status, 400)
        self.assertEqual(strict.get("/readyz").json()["status"], "failed")
        self.assertEqual(self.ask(strict, "good"), 2)  # whoever asks it by name is answered
        strict.wait_log(" path=/v2/models/good/")
        self.assertNotIn(" id=probe ", strict.whole_log())  # a probe is logged as debug, whatever it is told
        self.put("bad", None, 3)
        strict.wait_for(lambda: strict.get("/readyz").status == 200, "the mended model")
        # What comes later is not required.
        self.write("late/model.onnx", "no model")
        strict.wait_for(lambda: self.states(strict).get(("late", "1"), ("", ""))[0] == "UNAVAILABLE", "its failure")
        self.assertEqual(strict.get("/readyz").status, 200)
        # Neither is a model whose folder has gone.
        shutil.rmtree(os.path.join(self.root, "bad"))
        strict.wait_for(lambda: ("bad", "1") not in self.states(strict), "its end")
        self.assertEqual(strict.get("/readyz").status, 200)

    def test_ready_strict_and_an_unload(self):
        self.put("a", "1", 2)
        self.put("b", "1", 3)
        server = self.serve("--ready", "strict", "--watch", "--admin-key-file", self.admin_key())
        self.put("a", "2", 4)  # a new version takes the duty over
        server.wait_for(lambda: self.ask(server, "a") == 4 and ("a", "1") not in self.states(server), "version 2")
        self.assertEqual(self.admin(server, "a", "unload").status, 200)
        answer = server.get("/readyz")
        self.assertEqual((answer.status, answer.json()["status"]), (503, "unloaded"))
        self.assertEqual(self.admin(server, "a", "load").status, 200)
        self.assertEqual(server.get("/readyz").status, 200)

    def test_dimensions_of_the_configuration(self):
        small = os.path.join(self.root, "dims")
        os.makedirs(small)
        small_onnx.write(os.path.join(small, "model.onnx"),
                         [small_onnx.node("Relu", ["x"], ["y"])], [],
                         [small_onnx.tensor_info("x", "N", "L")], [small_onnx.tensor_info("y", "N", "L")])
        self.write("dims/config.pbtxt", 'max_batch_size: 4\ninput [ { name: "x" data_type: TYPE_FP32 '
                                        'dims: [ 5 ] } ]\noutput [ { name: "y" dims: [ 5 ] } ]')
        server = self.serve()
        self.assertEqual(server.get("/v2/models/dims").json()["inputs"][0]["shape"], [-1, 5])

    def test_nothing_to_serve(self):
        result = run_lensd("serve", "--models", os.path.join(self.root, "absent"), "--port", "0")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no such folder", result.stderr)
        result = run_lensd("serve", "--models", self.root, "--port", "0")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--watch", result.stderr)
        self.write("bad/model.onnx", "no model")
        result = run_lensd("serve", "--models", self.root, "--port", "0")
        self.assertEqual(result.returncode, 2)
        self.assertIn("model.onnx", result.stderr)
        result = run_lensd("serve", "digits", "--models", self.root, "--port", "0")
        self.assertIn("exclude each other", result.stderr)

    def test_watching(self):
        server = self.serve("--watch", wait_ready=False)
        self.assertEqual(self.states(server), {})
        self.put("m", "1", 2)
        server.wait_for(lambda: self.ask(server, "m") == 2, "version 1")
        self.put("m", "2", 3)
        server.wait_for(lambda: self.ask(server, "m") == 3, "version 2")
        server.wait_for(lambda: ("m", "1") not in self.states(server), "the end of version 1")
        self.put("m", "2", 4)  # the same version, changed in place
        server.wait_for(lambda: self.ask(server, "m") == 4, "version 2 anew")
        # A broken one leaves the old one serving, and says so.
        self.write("m/2/model.onnx", "broken in place")
        server.wait_for(lambda: self.states(server)["m", "2"][1], "the failure of version 2")
        self.assertEqual(self.states(server)["m", "2"][0], "READY")
        self.assertEqual(self.ask(server, "m"), 4)
        self.write("m/3/model.onnx", "no model")
        server.wait_for(lambda: self.states(server).get(("m", "3"), ("", ""))[0] == "UNAVAILABLE",
                        "the failure of version 3")
        self.assertEqual(self.ask(server, "m"), 4)
        server.wait_log("model not loaded")
        self.assertEqual(server.get("/readyz").status, 200)
        self.put("m", "3", 5)
        server.wait_for(lambda: self.ask(server, "m") == 5, "version 3, mended")
        shutil.rmtree(os.path.join(self.root, "m"))
        server.wait_for(lambda: self.ask(server, "m") == 404, "the end of the model")
        self.assertEqual(self.states(server), {})

    def test_no_request_fails_while_versions_change(self):
        self.put("m", "1", 1)
        server = self.serve("--watch", "--admin-key-file", self.admin_key(), "--max-queue", "1000")
        stop, wrong, answered = threading.Event(), [], [0]

        def ask_on():
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            body, last = json.dumps(INFER).encode(), 0
            while not stop.is_set():
                connection.request("POST", "/v2/models/m/infer", body)
                response = connection.getresponse()
                text = response.read()
                factor = json.loads(text)["outputs"][0]["data"][0] if response.status == 200 else 0
                if response.status != 200 or factor < last:
                    wrong.append((response.status, text))
                last = factor
                answered[0] += 1
            connection.close()

        threads = [threading.Thread(target=ask_on) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            for version in range(2, 6):
                self.put("m", str(version), version)
                server.wait_for(lambda: self.ask(server, "m") == version, f"version {version}")
            for factor in range(6, 26):  # by API: quicker than the watch
                self.put("m", "5", factor)
                self.assertEqual(self.admin(server, "m", "load").status, 200)
                self.assertEqual(self.ask(server, "m"), factor)
            server.wait_for(lambda: wrong or answered[0] > 100, "a hundred answers")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    def admin_key(self):
        made = run_lensd("key", "root")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.key = next(word for word in made.stderr.split() if word.startswith("lensd-"))
        path = os.path.join(self.root, ".admin-keys")
        with open(path, "w") as file:
            file.write(made.stdout)
        os.chmod(path, 0o600)
        return path

    def admin(self, server, model, what, body=None, key=True):
        headers = {"Authorization": f"Bearer {self.key}"} if key and self.key else {}
        return server.request("POST", f"/v2/repository/models/{model}/{what}", body, headers)

    def test_load_and_unload(self):
        self.put("a", None, 2)
        self.put("b", None, 3)
        server = self.serve("--admin-key-file", self.admin_key())
        self.assertIn(self.admin(server, "a", "unload", key=False).status, (401, 403))
        self.assertEqual(self.ask(server, "a"), 2)
        self.assertEqual(self.admin(server, "a", "unload").status, 200)
        self.assertEqual((self.ask(server, "a"), self.ask(server, "b")), (503, 3))
        self.assertEqual(self.states(server)["a", "1"], ("UNAVAILABLE", "unloaded"))
        self.assertEqual(self.admin(server, "a", "load").status, 200)
        self.assertEqual(self.ask(server, "a"), 2)
        self.put("c", None, 4)  # new since the start
        self.assertEqual(self.admin(server, "c", "load", b'{"parameters":{}}').status, 200)
        self.assertEqual(self.ask(server, "c"), 4)
        self.write("a/model.onnx", "broken")
        answer = self.admin(server, "a", "load")
        self.assertEqual(answer.status, 500)
        self.assertEqual(self.ask(server, "a"), 2)
        self.assertEqual(self.admin(server, "nobody", "load").status, 404)
        self.assertEqual(self.admin(server, "nobody", "unload").status, 404)
        self.assertEqual(self.admin(server, "a", "load", b'{"parameters":{"config":"{}"}}').status, 400)

    def test_unload_of_the_only_model(self):
        server = Server("--admin-key-file", self.admin_key())  # the digits, without a repository
        self.addCleanup(server.stop)
        self.assertEqual(self.admin(server, "digits", "unload").status, 200)
        for path in ("/predict", "/predict?model=digits", "/predictions/digits"):
            answer = server.request("POST", path, seven())
            self.assertEqual((answer.status, answer.json()["error"]), (503, "model 'digits' has been unloaded"))
        health, ready = server.request("GET", "/health"), server.request("GET", "/readyz")
        self.assertEqual((health.status, health.json()["status"]), (503, "unloaded"))
        self.assertEqual((ready.status, ready.json()["status"]), (503, "unloaded"))
        self.assertEqual(self.admin(server, "digits", "load").status, 200)
        self.assertEqual(server.request("GET", "/readyz").status, 200)
        self.assertEqual(server.predict(seven()).status, 200)

    def test_without_an_admin_key(self):
        self.put("a", None, 2)
        self.key = ""
        server = self.serve()
        for what in ("load", "unload"):
            answer = self.admin(server, "a", what)
            self.assertIn(answer.status, (401, 403))
            self.assertIn("--admin-key-file", answer.json()["error"])
        self.assertEqual(self.ask(server, "a"), 2)


if __name__ == "__main__":
    unittest.main()
