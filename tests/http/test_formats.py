"""Formats of pictures beyond JPEG and PNG: under confinement, without their libraries, over the limits, as data: URIs."""

import base64
import json
import os
import tempfile
import unittest

from harness import ROOT, ServedCase, Server, read, run_lensd, seven

IMAGES = os.path.join(ROOT, "tests", "data", "images")
FILES = {"BMP": "bmp_24.bmp", "GIF": "gif_animated.gif", "WebP": "webp_lossy.webp", "TIFF": "tiff_lzw.tif",
         "AVIF": "avif_444.avif", "HEIC": "heic_420.heic"}
LIBRARIES = {"libwebp.so.7": ("WebP", "libwebp7"), "libtiff.so.6": ("TIFF", "libtiff6"),
             "libheif.so.1": ("AVIF", "libheif1")}


def picture(name):
    return read(os.path.join(IMAGES, FILES[name]))


class Formats(ServedCase):
    arguments = ("--old-libheif",)

    def formats(self):
        return self.server.get("/health").json()["formats"]

    def test_every_format_that_is_there(self):
        """Decode workers are confined: what they need was loaded before, and threads may be made."""
        self.assertEqual(self.formats()[:4], ["JPEG", "PNG", "BMP", "GIF"])
        self.assertEqual(json.loads(run_lensd("inspect", "digits", "--json", "--old-libheif").stdout)["formats"], self.formats())
        self.assertIn("formats     " + ", ".join(self.formats()), run_lensd("inspect", "digits", "--old-libheif").stdout)
        for name in FILES:
            with self.subTest(name):
                answer = self.server.predict(picture(name))
                if name not in self.formats():
                    self.assert_error(answer, 415, "unsupported_media_type", "Debian package lib")
                    continue
                self.assertEqual(answer.status, 200, answer.body)
                size = answer.json()["image"]
                self.assertIn((size["width"], size["height"]), ((37, 29), (64, 48)))

    def test_data_uris(self):
        text = "data:image/png;base64," + base64.b64encode(seven()).decode()
        answer = self.server.predict(json.dumps({"image": {"b64": text}}))
        self.assertEqual(answer.json()["predictions"][0]["label"], "7")
        answer = self.server.request("POST", "/v1/models/digits:predict", json.dumps({"instances": [{"b64": text}]}))
        self.assertEqual(answer.json()["predictions"][0]["classes"][0], "7")
        body = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}]}
        answer = self.server.request("POST", "/v2/models/digits/infer", json.dumps(body))
        self.assertEqual(answer.status, 200, answer.body)

    def test_hostile_texts(self):
        for text, word in (("http://169.254.169.254/latest/meta-data", "does not fetch"), ("HTTPS://example.org/a.jpg", "does not fetch"),
                           ("file:///etc/passwd", "does not fetch"), ("data:image/png,abc", "base64"), ("data:", "base64"),
                           ("data:,", "base64"), ("data:;base64,", "empty"), ("data:;base64,!", "base64")):
            with self.subTest(text):
                answer = self.server.predict(json.dumps({"image": {"b64": text}}))
                self.assertIn(answer.status, (400, 415))
                self.assertIn(word, answer.json()["error"])


class OldLibrary(ServedCase):
    """libheif before 1.23 takes memory for what the coded picture says, whatever the container says."""

    def test_avif_and_heic_are_read_if_that_is_asked_for(self):
        formats = self.server.get("/health").json()["formats"]
        for name in ("AVIF", "HEIC"):
            answer = self.server.predict(picture(name))
            if name in formats:
                self.skipTest("libheif is 1.23 or newer")
            if b"Debian package" in answer.body:
                self.skipTest("libheif is not installed")
            self.assert_error(answer, 415, "unsupported_media_type", "--old-libheif", "gigabytes")
        self.assertIn("needs --old-libheif (", run_lensd("inspect", "digits").stdout)


class WithoutLibraries(unittest.TestCase):
    def test_the_package_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for library in LIBRARIES:
                with open(os.path.join(folder, library), "wb") as file:
                    file.write(b"no library")
            server = Server(environment={"LD_LIBRARY_PATH": folder})
            try:
                self.assertEqual(server.get("/health").json()["formats"], ["JPEG", "PNG", "BMP", "GIF"])
                for name, package in LIBRARIES.values():
                    answer = server.predict(picture(name))
                    self.assertEqual((answer.status, answer.json()["code"]), (415, "unsupported_media_type"))
                    self.assertIn(f"cannot read {name}", answer.json()["error"])
                    self.assertIn(package, answer.json()["error"])
                self.assertEqual(server.predict(seven()).status, 200)
            finally:
                server.stop()


class Limits(ServedCase):
    arguments = ("--max-side", "28")

    def test_sizes_are_checked_on_the_header(self):
        for name in FILES:
            if name in self.server.get("/health").json()["formats"]:
                self.assert_error(self.server.predict(picture(name)), 413, "too_large", "--max-side")


if __name__ == "__main__":
    unittest.main()
