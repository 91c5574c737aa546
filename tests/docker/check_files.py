#!/usr/bin/env python3
"""The deployment files, each read by the program it is for, or by that program's own schema; and every metric
that a board, an alert or an autoscaler asks for is one that a running lensd gives.

What is missing on this machine is skipped, by name.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.join(HERE, os.pardir, "http"), os.path.join(HERE, os.pardir)]
import totals  # noqa: E402
from harness import ROOT, Server, drawn, free_port, multipart, run_lensd  # noqa: E402
from test_tls import OPENSSL, TlsServer, make_certificate  # noqa: E402

try:
    import jsonschema
    import yaml
except ImportError:
    jsonschema = yaml = None

DOCKER = os.path.join(ROOT, "docker")


def text_of(*names):
    with open(os.path.join(DOCKER, *names), encoding="utf-8") as file:
        return file.read()


def documents(*names):
    if yaml is None:
        raise unittest.SkipTest("python3-yaml and python3-jsonschema are missing")
    return [document for document in yaml.safe_load_all(text_of(*names)) if document]


def call(*words, folder=DOCKER, environment=None):
    if not shutil.which(words[0]):
        raise unittest.SkipTest(f"{words[0]} is missing")
    ended = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                           stderr=subprocess.STDOUT, timeout=300, env={**os.environ, **(environment or {})})
    if ended.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: exit {ended.returncode}\n{ended.stdout}")
    return ended.stdout


def validate_for_kubernetes(resource):
    try:
        import kubernetes_validate
    except ImportError:
        raise unittest.SkipTest("the Python package kubernetes-validate is missing") from None
    kubernetes_validate.validate(resource, "1.31", strict=True)


class Kubernetes(unittest.TestCase):
    files = ("deployment.yaml", "service.yaml", "horizontalpodautoscaler.yaml", "poddisruptionbudget.yaml",
             "persistentvolumeclaim.yaml")

    def test_every_manifest_fits_the_schema(self):
        for name in self.files:
            with self.subTest(file=name):
                for resource in documents("kubernetes", name):
                    validate_for_kubernetes(resource)

    def test_kustomize(self):
        built = call("kubectl", "kustomize", os.path.join(DOCKER, "kubernetes"))
        kinds = sorted(document["kind"] for document in yaml.safe_load_all(built))
        self.assertEqual(kinds, ["Deployment", "HorizontalPodAutoscaler", "PersistentVolumeClaim",
                                 "PodDisruptionBudget", "Service"])

    def test_they_speak_of_the_same_pods(self):
        found = {name: documents("kubernetes", name)[0] for name in self.files}
        labels = found["deployment.yaml"]["spec"]["template"]["metadata"]["labels"]
        for selector in (found["deployment.yaml"]["spec"]["selector"]["matchLabels"],
                         found["service.yaml"]["spec"]["selector"],
                         found["poddisruptionbudget.yaml"]["spec"]["selector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), labels.items())
        self.assertEqual(found["horizontalpodautoscaler.yaml"]["spec"]["scaleTargetRef"]["name"],
                         found["deployment.yaml"]["metadata"]["name"])

    def test_the_check_has_what_the_server_has(self):
        pod = documents("kubernetes", "deployment.yaml")[0]["spec"]["template"]["spec"]
        (check,), (server,) = pod["initContainers"], pod["containers"]
        for key in ("image", "env", "volumeMounts", "resources", "securityContext"):
            self.assertEqual(check[key], server[key], key)
        self.assertEqual(check["args"], [*server["args"], "--check"])

    def test_the_volumes(self):
        pod = documents("kubernetes", "deployment.yaml")[0]["spec"]["template"]["spec"]
        claim = documents("kubernetes", "persistentvolumeclaim.yaml")[0]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        self.assertEqual(volumes["models"]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"])
        (server,) = pod["containers"]
        environment = {entry["name"]: entry["value"] for entry in server["env"]}
        mounts = {mount["name"]: mount for mount in server["volumeMounts"]}
        self.assertEqual(sorted(mounts), sorted(volumes))
        self.assertEqual((mounts["models"]["mountPath"], mounts["models"]["readOnly"]), (environment["LENSD_MODELS"], True))
        self.assertEqual(mounts["cache"]["mountPath"], environment["LENSD_CACHE"])

    def test_the_settings_are_taken(self):
        """The daemon itself with the pod's settings: checked, then asked what the pod is asked."""
        pod = documents("kubernetes", "deployment.yaml")[0]["spec"]["template"]["spec"]
        (server,) = pod["containers"]
        with tempfile.TemporaryDirectory(prefix="lensd-pod-") as folder:
            models, cache, port = os.path.join(folder, "models"), os.path.join(folder, "cache"), free_port()
            for path in (models, cache):
                os.mkdir(path)
            here = {"LENSD_MODELS": models, "LENSD_CACHE": cache, "LENSD_ADMIN_PORT": str(port)}
            environment = {entry["name"]: here.get(entry["name"], entry["value"]) for entry in server["env"]}
            self.assertEqual(run_lensd("serve", "--check", "--port", "0", environment=environment).returncode, 1)  # nothing there yet
            shutil.copytree(os.path.join(ROOT, "models", "digits"), os.path.join(models, "digits"))
            checked = run_lensd("serve", "--check", "--port", "0", environment=environment)
            self.assertEqual(checked.returncode, 0, checked.stderr)
            running = Server(environment=environment)
            try:
                self.assertEqual(running.predict(drawn(4)).json()["model"], "digits")
                running.port = port
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    self.assertEqual(server[probe]["httpGet"]["port"], "admin")
                    self.assertEqual(running.get(server[probe]["httpGet"]["path"]).status, 200, probe)
            finally:
                self.assertEqual(running.stop()[0], 0)

    def test_the_drain_fits_the_grace_period(self):
        pod = documents("kubernetes", "deployment.yaml")[0]["spec"]["template"]["spec"]
        environment = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
        drain = sum(int(environment[name].rstrip("s")) for name in ("LENSD_DRAIN_DELAY", "LENSD_GRACE"))
        self.assertLess(drain, pod["terminationGracePeriodSeconds"])

    def test_kserve(self):
        with open(os.path.join(HERE, "kserve.schema.json"), encoding="utf-8") as file:
            schema = json.load(file)
        for name in ("servingruntime.yaml", "inferenceservice.yaml"):
            for resource in documents("kserve", name):
                jsonschema.validate(resource, schema)
        runtime = documents("kserve", "servingruntime.yaml")[0]
        deployment = documents("kubernetes", "deployment.yaml")[0]
        deployment["spec"]["template"]["spec"] = {"containers": runtime["spec"]["containers"]}
        validate_for_kubernetes(deployment)

    def test_kserve_arguments_are_taken(self):
        """The daemon itself, started with the runtime's arguments, the variables filled in."""
        (container,) = documents("kserve", "servingruntime.yaml")[0]["spec"]["containers"]
        arguments = [word.replace("{{.Name}}", "numbers").replace("/mnt/models",
                     os.path.join(ROOT, "models", "digits")) for word in container["args"]]
        self.assertEqual(arguments.pop(0), "serve")
        port = [word for word in arguments if word.startswith("--rest_port=")]
        self.assertEqual(port, ["--rest_port=8080"])
        server = Server(*[word for word in arguments if word not in port])
        try:
            self.assertEqual(server.predict(drawn(4)).json()["model"], "numbers")
            self.assertEqual(server.get(container["startupProbe"]["httpGet"]["path"]).status, 200)
        finally:
            self.assertEqual(server.stop()[0], 0)


class Contents(unittest.TestCase):
    """What the images say that they are and hold."""

    def test_version(self):
        with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
            version = re.search(r"^  version: '(.*)',$", file.read(), re.M).group(1)
        for name in ("Dockerfile", "Dockerfile.cuda"):
            self.assertIn(f"\nARG VERSION={version}\n", text_of(name))

    def list_of(self, *arguments):
        text = call("sh", "sbom.sh", sys.executable, "1.2", *arguments)
        self.assertEqual(call("sh", "sbom.sh", sys.executable, "1.2", *arguments), text)
        return json.loads(text)

    def test_sbom(self):
        """Of this machine: each installed package with its version, as SPDX 2.3 has it."""
        known = call("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\n").splitlines()
        known = {tuple(line.split()[1:]) for line in known if line.startswith("ii ")}
        sbom = self.list_of()
        self.assertEqual((sbom["spdxVersion"], sbom["dataLicense"], sbom["SPDXID"]), ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT"))
        self.assertRegex(sbom["creationInfo"]["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        program, *packages = sbom["packages"]
        with open(sys.executable, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        self.assertEqual((program["name"], program["versionInfo"], program["checksums"]),
                         ("lensd", "1.2", [{"algorithm": "SHA256", "checksumValue": digest}]))
        urls = [urllib.parse.unquote(package["externalRefs"][0]["referenceLocator"]) for package in packages]
        self.assertEqual({tuple(re.fullmatch(r"pkg:deb/debian/(.*)@(.*)\?arch=(.*)", url).groups()) for url in urls}, known)
        self.assertEqual({(package["name"], package["versionInfo"]) for package in packages}, {pair[:2] for pair in known})
        ids = [package["SPDXID"] for package in sbom["packages"]]
        self.assertEqual(len({*ids}), len(ids))
        for name in ids:
            self.assertRegex(name, r"^SPDXRef-[a-zA-Z0-9.-]+$")
        self.assertEqual([row["relatedSpdxElement"] for row in sbom["relationships"]], ids)
        other = self.list_of("libc6", "libcublasLt=13")
        self.assertEqual([(p["name"], p["versionInfo"]) for p in other["packages"]][1:],
                         [("libc6", dict(pair[:2] for pair in known)["libc6"]), ("libcublasLt", "13")])
        self.assertNotEqual(other["documentNamespace"], sbom["documentNamespace"])


class Compose(unittest.TestCase):
    def test_compose(self):
        file = os.path.join(DOCKER, "compose.yaml")
        services = yaml.safe_load(call("docker-compose", "-f", file, "config"))["services"]
        self.assertEqual(sorted(services), ["grafana", "haproxy", "lensd", "prometheus"])
        for service in services.values():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
                if source.startswith("/"):
                    self.assertTrue(os.path.exists(source), source)
            for port in service.get("ports", []):
                self.assertIn("127.0.0.1", str(port), "published beyond this machine")

    def test_compose_of_applications(self):
        """Each takes lensd's image and only reads the models."""
        for name, service, target in (("immich", "immich-machine-learning", "/cache"), ("frigate", "lensd", "/models")):
            file = os.path.join(DOCKER, f"compose.{name}.yaml")
            made = yaml.safe_load(call("docker-compose", "-f", file, "config"))["services"][service]
            self.assertEqual(made["image"], "lensd")
            for volume in made["volumes"]:  # older versions of docker-compose keep the short form
                mounted = (volume.split(":")[1:] if isinstance(volume, str) else
                           [volume["target"], "ro" if volume.get("read_only") else "rw"])
                self.assertEqual(mounted, [target, "ro"])
            self.assertNotIn("ports", made, "published beyond the network of the services")

    def test_haproxy(self):
        call("haproxy", "-c", "-f", os.path.join(DOCKER, "haproxy", "haproxy.cfg"))

    def test_prometheus(self):
        folder = os.path.join(DOCKER, "prometheus")
        call("promtool", "check", "config", "prometheus.yml", folder=folder)
        call("promtool", "test", "rules", "alerts_test.yml", folder=folder)

    def test_every_alert_has_a_test(self):
        rules = {rule["alert"] for group in documents("prometheus", "alerts.yml")[0]["groups"] for rule in group["rules"]}
        fired = {case["alertname"] for test in documents("prometheus", "alerts_test.yml")[0]["tests"]
                 for case in test["alert_rule_test"] if case.get("exp_alerts")}
        self.assertEqual(rules, fired)


def board():
    return json.loads(text_of("grafana", "dashboards", "lensd.json"))


def stand_in_driver(folder):
    """Makes NVIDIA's management library as the tests have it, with two GPUs."""
    call("cc", "-shared", "-fPIC", "-o", os.path.join(folder, "libnvidia-ml.so.1"),
         os.path.join(ROOT, "tests", "fake_cuda", "fake_nvml.c"))
    return {"LD_LIBRARY_PATH": folder}


class Metrics(unittest.TestCase):
    def names_served(self):
        """The families of a daemon that has answered, failed and refused, on a machine with GPUs."""
        folder = tempfile.TemporaryDirectory(prefix="lensd-nvml-")
        self.addCleanup(folder.cleanup)
        if not OPENSSL:
            raise unittest.SkipTest("openssl is missing")
        server = TlsServer(*make_certificate(folder.name, "metrics"), "--max-queue", "2",
                           environment=stand_in_driver(folder.name))
        try:
            self.assertEqual(server.predict(drawn(1)).status, 200)
            self.assertEqual(server.predict(b"no picture").status, 415)
            kind, body = multipart([("a", "a.png", drawn(1)), ("b", "b.png", drawn(2)),
                                    ("c", "c.png", drawn(3))])
            self.assertGreaterEqual(server.predict(body, headers={"Content-Type": kind}).status, 400)
            text = server.get("/metrics").body.decode()
        finally:
            server.stop()
        return {re.match(r"[a-zA-Z_:]+", line)[0] for line in text.splitlines() if not line.startswith("#")}

    def test_what_is_asked_for_is_there(self):
        asked = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", [])]
        for alerts in documents("prometheus", "alerts.yml"):
            asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
        asked += [rule["metricsQuery"] for rule in documents("kubernetes", "prometheus-adapter.yaml")[0]["rules"]]
        self.assertGreater(len(asked), 20)
        served = self.names_served()
        for expression in asked:
            for name in re.findall(r"\b(?:lensd|process|nv)_[a-z_]+\b(?!\s*\()", expression):
                with self.subTest(expression=expression):
                    self.assertIn(name, served)

    def test_the_board(self):
        panels = board()["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            if panel["type"] != "row":
                self.assertTrue(panel["targets"])
        for one in panels:
            for other in panels:
                a, b = one["gridPos"], other["gridPos"]
                apart = (a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or
                         a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])
                self.assertTrue(one is other or apart, (one["title"], other["title"]))

    def test_the_expressions_are_promql(self):
        rules = {"groups": [{"name": "board", "rules": [
            {"record": f"board:{i}", "expr": target["expr"].replace("$__rate_interval", "1m")}
            for i, target in enumerate(t for panel in board()["panels"] for t in panel.get("targets", []))]}]}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(rules, file)
            file.flush()
            call("promtool", "check", "rules", file.name)


if __name__ == "__main__":
    totals.main()
