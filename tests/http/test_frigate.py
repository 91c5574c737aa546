"""Frigate's requests to a llama.cpp server for embeddings, and the commands of docs/apps/frigate.md."""

import base64
import json
import os
import shlex
import shutil
import subprocess
import unittest

from harness import PATIENCE, ROOT
from test_apps import commands
from test_texts import PHOTO, TextCase


class Frigate(TextCase):
    def content(self, *entries, model="clip", status=200):
        return self.post("/embeddings", {"model": model, "content": list(entries)}, status)

    @staticmethod
    def picture(data=PHOTO):
        return {"prompt_string": "<__media__>\n", "multimodal_data": [base64.b64encode(data).decode()]}

    def test_start(self):
        self.assertEqual(self.server.get("/props").json(), {"media_marker": "<__media__>"})
        self.assertIn("clip", str(self.server.get("/v1/models").json()))

    def test_vectors(self):
        """The same vectors as /v1/embeddings gives, which test_texts.py compares with transformers."""
        texts = ["a dog", "Two CATS on a roof, at night!"]
        found = self.content(*({"prompt_string": text} for text in texts))["data"]
        wanted = self.embed(texts)["data"]
        self.assertEqual([entry["index"] for entry in found], [0, 1])
        for entry, want in zip(found, wanted):
            self.assert_near(entry["embedding"], want["embedding"])
        pictures = self.content(self.picture(), self.picture())["data"]
        want = self.embed("data:image/png;base64," + base64.b64encode(PHOTO).decode())["data"][0]["embedding"]
        self.assertEqual(len(pictures), 2)
        for entry in pictures:
            self.assert_near(entry["embedding"], want)

    def test_refused(self):
        for entries, words in (([{"prompt_string": "a"}, self.picture()], "both texts and pictures"),
                               ([self.picture(), {"prompt_string": "a"}], "both texts and pictures"),
                               ([{"prompt_string": 7}], "prompt_string"), ([3], "prompt_string"), ([], ""),
                               ([{"prompt_string": "", "multimodal_data": ["%"]}], "")):
            self.assertIn(words, self.content(*entries, status=400)["error"])
        self.content({"prompt_string": "a"}, model="absent", status=404)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_page(self):
        served, answers = 0, []
        for command in commands(os.path.join(ROOT, "docs", "apps", "frigate.md")):
            words = shlex.split(command)
            if words[0] == "lensd":  # test_zmq.py runs the first one
                served += 1
                continue
            if "image=@photo.jpg" in words:  # test_apps.py runs it, with a detector
                continue
            run = subprocess.run([word.replace("localhost:8080", f"127.0.0.1:{self.server.port}") for word in words] + ["-sSf"],
                                 capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((run.returncode, run.stderr), (0, ""), command)
            if not words[-1].endswith("/metrics"):
                answers.append(json.loads(run.stdout))
        self.assertEqual((served, len(answers)), (3, 3))


if __name__ == "__main__":
    unittest.main()
