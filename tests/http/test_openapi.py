"""The API's description as it is served, and the server against it: what a path answers is among what
is described for it. (tests/unit/server/http/test_openapi.c compares the paths with the table of routes.)"""

import json
import os
import re
import sys
import unittest

from harness import ROOT, ServedCase, read, seven

sys.path.insert(0, os.path.join(ROOT, "proto"))
import openapi  # noqa: E402


class OpenApi(ServedCase):
    document = openapi.parse(read(os.path.join(ROOT, "proto", "openapi.yaml")).decode())

    def test_served_without_aliases(self):
        served = self.server.get("/openapi.yaml").body.decode()
        version = self.server.get("/v2").json()["version"]
        document = {**self.document, "info": {**self.document["info"], "version": version}}
        self.assertEqual(openapi.parse(served), document)
        self.assertNotRegex(served, r": [&*]|<<:|x-shared")
        self.assertEqual(self.server.get("/openapi.json").json(), document)
        self.assertEqual(self.server.request("OPTIONS", "/").json(), document)
        self.assertEqual(document["openapi"], "3.1.0")

    def test_the_page_needs_nothing_from_elsewhere(self):
        answer = self.server.get("/docs")
        self.assertTrue(answer.headers["Content-Type"].startswith("text/html"))
        page = answer.body.decode()
        self.assertFalse(re.search(r"(src|href)\s*=\s*[\"'](https?:)?//", page))
        self.assertNotIn("<script", page)
        for path in self.document["paths"]:
            self.assertIn(f" {path}</code>", page)
        # What needs no more than a photo can be tried there, without a script.
        self.assertIn('<a href="health">Try it</a>', page)
        self.assertIn('<form method="post" enctype="multipart/form-data" action="predict">', page)
        self.assertIn("form-action 'self'", answer.headers["Content-Security-Policy"])
        for where in re.findall(r'<a href="([^"#]+)">Try it</a>', page):
            self.assertIn(self.server.get("/" + where.lstrip(".")).status, (200, 503), where)
        etag = answer.headers["ETag"]
        self.assertEqual(self.server.request("GET", "/docs", headers={"If-None-Match": etag}).status, 304)

    def test_references_lead_somewhere(self):
        def walk(node):
            if isinstance(node, dict):
                if "$ref" in node:
                    self.assertIsInstance(openapi.resolve(self.document, node), dict)
                for inner in node.values():
                    walk(inner)
            elif isinstance(node, list):
                for inner in node:
                    walk(inner)
        walk(self.document)
        names = [item[method]["operationId"] for item in self.document["paths"].values()
                 for method in item if method != "parameters"]
        self.assertEqual(len(names), len(set(names)))

    def test_all_codes_are_named(self):
        statuses = read(os.path.join(ROOT, "engine", "base", "status.h")).decode()
        described = self.document["components"]["schemas"]["Error"]["properties"]["code"]["description"]
        for name, word, http in re.findall(r'X\((\w+), \d+, "(\w+)", (\d+)\)', statuses):
            if name not in ("OK", "CANCELLED"):  # nobody is there to read it
                self.assertIn(f"{word} ({http})", described)

    def test_bounds_are_numbers(self):
        for name, parameter in self.document["components"]["parameters"].items():
            for bound in ("minimum", "maximum"):
                self.assertIsInstance(parameter["schema"].get(bound, 0), (int, float), name)

    def statuses(self, path, method):
        return set(self.document["paths"][path][method]["responses"])

    def check(self, path, method, answer):
        described = self.statuses(path, method)
        self.assertIn(str(answer.status), described, f"{method} {path}: {answer.body[:200]}")
        media = openapi.resolve(self.document, self.document["paths"][path][method]["responses"]
                                [str(answer.status)]).get("content", {})
        if answer.body and media:
            self.assertIn(answer.headers["Content-Type"].split(";")[0], media, path)

    def test_answers_are_described(self):
        for path, item in self.document["paths"].items():
            for model, version in (("digits", "1"), ("nobody", "1"), ("digits", "99")):
                real = (path.replace("{model}", model).replace("{version}", version)
                        .replace("{number}", version).replace("{region}", "r"))
                for method in item:
                    if method in ("get", "options"):
                        self.check(path, method, self.server.request(method.upper(), real))
                        self.check(path, method, self.server.request(method.upper(), real + "?%zz"))
                    elif method in ("post", "put"):
                        for body, kind in ((seven(), "image/png"), (b"{}", "application/json"),
                                           (b"{", "application/json"), (b"nonsense", "text/plain"),
                                           (b"", "application/json")):
                            self.check(path, method, self.server.request(
                                method.upper(), real, body, {"Content-Type": kind}))
                        self.check(path, method, self.server.request(
                            method.upper(), real, b"x", {"Content-Encoding": "nobody"}))
                other = self.server.request("DELETE", real)
                self.assertEqual(other.status, 405, path)
                if "DialectError" not in json.dumps(item):
                    self.assertEqual(json.loads(other.body)["code"], "method_not_allowed")


if __name__ == "__main__":
    unittest.main()
