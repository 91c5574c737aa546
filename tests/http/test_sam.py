"""SAM's two files: masks of points and boxes against ONNX Runtime's with the frameworks' own steps (tests/data/make_sam.py),
what is cached of a photo, and prompts that are refused."""

import base64
import json
import os
import re
import shutil
import struct
import tempfile
import unittest

import small_onnx
from harness import ROOT, ServedCase, Server, multipart, png, png_chunk, read, run_lensd

DATA = os.path.join(ROOT, "tests", "data", "sam")
FORMS = ("sam", "hf", "sam2")


def pixels(text):
    """COCO's compressed run lengths as a list of 0 and 1, column by column."""
    counts, at = [], 0
    while at < len(text):
        value, shift, more = 0, 0, True
        while more:
            bits = ord(text[at]) - 48
            value |= (bits & 31) << shift
            more = bits & 32
            shift += 5
            at += 1
            if not more and bits & 16:
                value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
    return spread(counts)


def spread(counts):
    return [i % 2 for i, count in enumerate(counts) for _ in range(count)]


def iou(a, b):
    both = sum(x and y for x, y in zip(a, b))
    either = sum(x or y for x, y in zip(a, b))
    return both / either if either else 1


def photo(size):
    return read(os.path.join(DATA, "{}x{}.png".format(*size)))


def turned(size):
    """The photo as a PNG that an eXIf chunk turns by 90 degrees."""
    plain = photo(size)
    exif = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x112, 3, 1, 6, 0) + b"\0\0\0\0"
    return plain[:33] + png_chunk(b"eXIf", exif) + plain[33:]


def query(case, form):
    parts = ["model=" + form]
    if case["points"]:
        parts.append("points=" + ";".join("{},{},{}".format(*point) for point in case["points"]))
    if case["box"]:
        parts.append("box=" + ",".join(map(str, case["box"])))
    return "/predict?" + "&".join(parts)


class Sam(ServedCase):
    @classmethod
    def start(cls):
        return Server("--models", DATA, "--device", "cpu", "--precision", "fp32")

    def ask(self, path, body, status=200, headers=None):
        answer = self.server.request("POST", path, body, headers)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def passes(self, model):
        """Photos that the model's half has answered."""
        return self.server.metric(f'nv_inference_count{{model="{model}",version="1"}}')

    def assert_masks(self, found, case):
        self.assertEqual(len(found["predictions"]), len(case["scores"]))
        for prediction, score, counts in zip(found["predictions"], case["scores"], case["masks"]):
            self.assertAlmostEqual(prediction["score"], score, delta=1e-3)
            mask = pixels(prediction["rle"]["counts"])
            self.assertEqual(prediction["rle"]["size"], case["photo"][::-1])
            self.assertEqual((len(mask), sum(mask)), (case["photo"][0] * case["photo"][1], prediction["area"]))
            self.assertGreaterEqual(iou(mask, spread(counts)), 0.999)

    def test_masks_are_those_of_the_frameworks(self):
        for form in FORMS:
            cases = json.loads(read(os.path.join(DATA, form, "answers.json")))
            self.assertGreaterEqual(len(cases), 4)
            for case in cases:
                with self.subTest(form=form, points=case["points"], box=case["box"]):
                    found = self.ask(query(case, form), photo(case["photo"]))
                    self.assertEqual(found["model"], form)
                    self.assert_masks(found, case)


    def refused(self, path, body=None, code="invalid_request", status=400, headers=None):
        answer = self.server.request("POST", path, photo((200, 150)) if body is None else body, headers)
        self.assertEqual((answer.status, answer.json()["code"]), (status, code), answer.body)
        return answer.json()["error"]

    def test_a_form_and_json_say_the_same(self):
        body = photo((200, 150))
        plain = self.ask("/predict?model=sam&points=60,50,1;150,100,0&box=20,30,190,140", body)["predictions"]
        kind, form = multipart([("image", "a.png", body), ("points", None, b"60,50,1;150,100,0"), ("box", None, b"20,30,190,140"),
                                ("model", None, b"sam")])
        self.assertEqual(self.ask("/predict", form, headers={"Content-Type": kind})["predictions"], plain)
        for points in ("60,50,1;150,100,0", [60, 50, 1, 150, 100, 0], [[60, 50, 1], [150, 100, 0]]):
            text = json.dumps({"image": base64.b64encode(body).decode(), "model": "sam", "points": points,
                               "box": [20, 30, 190, 140]})
            self.assertEqual(self.ask("/predict", text, headers={"Content-Type": "application/json"})["predictions"], plain)

    def test_a_field_comes_once(self):
        for name, values in (("points", (b"60,50,1", b"150,100,0")), ("confidence", (b"0.1", b"0.1"))):
            kind, form = multipart([("image", "a.png", photo((200, 150)))] + [(name, None, value) for value in values])
            self.assertEqual(self.refused("/predict?model=sam", form, headers={"Content-Type": kind}), f"field '{name}' is given twice")

    def test_options_are_those_of_masks(self):
        body = photo((200, 150))
        path = "/predict?model=sam&points=60,50,1"
        whole = self.ask(path, body)["predictions"]
        self.assertEqual([p["score"] for p in whole], sorted((p["score"] for p in whole), reverse=True))
        best = self.ask(path + "&max_detections=1&masks=polygon", body)["predictions"]
        self.assertEqual((len(best), best[0]["score"], best[0]["area"]), (1, whole[0]["score"], whole[0]["area"]))
        self.assertTrue(best[0]["polygons"])
        some = self.ask(f"{path}&confidence={whole[1]['score'] - 1e-4:.5f}&masks=png", body)["predictions"]
        self.assertEqual([p["score"] for p in some], [p["score"] for p in whole[:2]])
        self.assertEqual(base64.b64decode(some[0]["png"]["data"] if isinstance(some[0]["png"], dict) else some[0]["png"])[:4],
                         b"\x89PNG")
        picture = self.server.request("POST", path + "&format=png", body)
        self.assertEqual((picture.status, picture.body[:4]), (200, b"\x89PNG"))
        for option in ("top_k=2", "classes=0", "iou=0.5", "normalize=true"):
            self.assertIn(option.split("=")[0], self.refused(f"{path}&{option}"))

    def test_the_second_prompt_runs_the_decoder_alone(self):
        body = png(40, 30, 77)
        encoder, decoder = self.passes("sam"), self.passes("sam.decoder")
        first = self.ask("/predict?model=sam&points=5,5,1", body)["predictions"]
        self.server.wait_for(lambda: self.passes("sam.decoder") == decoder + 1, "the decoder's pass is counted")
        self.assertEqual(self.passes("sam"), encoder + 1)
        self.ask("/predict?model=sam&points=20,5,1", body)
        self.assertEqual(self.ask("/predict?model=sam&points=5,5,1", body)["predictions"], first)
        self.server.wait_for(lambda: self.passes("sam.decoder") == decoder + 3, "the decoder's passes are counted")
        self.assertEqual(self.passes("sam"), encoder + 1)
        self.ask("/predict?model=sam&points=5,5,1", png(40, 30, 78))
        self.server.wait_for(lambda: self.passes("sam") == encoder + 2, "another photo is encoded")

    def test_a_photo_that_is_turned(self):
        """Coordinates are those of the upright photo."""
        body = turned((200, 150))
        found = self.ask("/predict?model=sam&points=149,199,1", body)["predictions"]
        self.assertEqual(found[0]["rle"]["size"], [200, 150])
        self.assertIn("outside", self.refused("/predict?model=sam&points=199,149,1", body))

    def test_prompts_that_are_refused(self):
        for points in ("", "1", "1,2", "1,2,3", "1,2,1,4", "a,b,1", "1,2,1;", "nan,1,1", "1e999,1,1", "1,2,0.5", "1;2;1;;",
                       ";".join(["1,1,1"] * 31)):
            self.assertIn("points", self.refused(f"/predict?model=sam&points={points}"), points)
        for box in ("", "1,2,3", "1,2,3,4,5", "5,2,1,4", "1,4,3,4", "a,2,3,4", "1,2,inf,4"):
            self.assertIn("box", self.refused(f"/predict?model=sam&box={box}"), box)
        for prompt in ("points=201,10,1", "points=10,150.5,0", "points=-1,1,1", "box=1,1,201,20", "box=-1,1,20,20"):
            self.assertRegex(self.refused(f"/predict?model=sam&{prompt}"), "outside the photo")
        self.assertIn("points=", self.refused("/predict?model=sam"))
        self.assertIn("no box", self.refused("/predict?model=hf&box=1,1,20,20"))
        self.assertIn("cannot answer a photo", self.refused("/predict?model=sam.decoder"))
        self.assertIn("such as SAM", self.refused("/predict?model=sam.decoder&points=1,1,1"))
        self.assertIn("labels", self.refused("/predict?model=sam&points=1,1,1&labels=a"))
        self.assertIn("slices", self.refused("/predict?model=sam&points=1,1,1&slices=64"))
        self.refused("/predict?model=none&points=1,1,1", code="not_found", status=404)
        self.refused("/predict?model=sam&points=1,1,1", b"no picture", code="unsupported_media_type", status=415)
        kind, two = multipart([("a", "a.png", png(8, 8)), ("b", "b.png", png(8, 8)), ("points", None, b"1,1,1")])
        self.assertIn("one photo", self.refused("/predict?model=sam", two, headers={"Content-Type": kind}))
        nested = json.dumps({"image": base64.b64encode(png(8, 8)).decode(), "model": "sam", "points": [[[1, 1, 1]]]})
        self.refused("/predict", nested, headers={"Content-Type": "application/json"})


class SamFolders(unittest.TestCase):
    """Folders of their own, which change."""

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="lensd-sam-")
        self.addCleanup(shutil.rmtree, self.root)
        self.folder = os.path.join(self.root, "pick")
        shutil.copytree(os.path.join(DATA, "sam"), self.folder)

    def serve(self, *arguments):
        server = Server(*arguments, "--device", "cpu", "--precision", "fp32")
        self.addCleanup(server.stop)
        return server

    def test_a_loaded_model_encodes_anew(self):
        made = run_lensd("key", "root")
        keys = os.path.join(self.root, ".admin-keys")
        with open(keys, "w", encoding="ascii") as file:
            file.write(made.stdout)
        os.chmod(keys, 0o600)
        admin = {"Authorization": "Bearer " + next(word for word in made.stderr.split() if word.startswith("lensd-"))}
        server = self.serve("--models", self.root, "--admin-key-file", keys)
        path, body = "/predict?points=60,50,1", photo((200, 150))
        before = server.request("POST", path, body).json()["predictions"]
        shutil.copy(os.path.join(DATA, "sam2", "encoder.onnx"), self.folder)
        shutil.copy(os.path.join(DATA, "sam2", "decoder.onnx"), self.folder)
        for name in ("pick", "pick.decoder"):
            answer = server.request("POST", f"/v2/repository/models/{name}/load", b"", admin)
            self.assertEqual(answer.status, 200, answer.body)
        after = server.request("POST", path, body)
        self.assertEqual(after.status, 200, after.body)
        self.assertNotEqual(after.json()["predictions"], before)
        wanted = json.loads(read(os.path.join(DATA, "sam2", "answers.json")))[0]["scores"]
        for prediction, score in zip(after.json()["predictions"], wanted):
            self.assertAlmostEqual(prediction["score"], score, delta=1e-3)

    def test_a_folder_alone(self):
        server = self.serve("--model", self.folder)
        answer = server.request("POST", "/predict?points=60,50,1&max_detections=1", photo((200, 150)))
        self.assertEqual((answer.status, answer.json()["model"]), (200, "pick"), answer.body)

    def test_halves_that_do_not_fit(self):
        shutil.copy(os.path.join(DATA, "sam2", "decoder.onnx"), self.folder)
        server = self.serve("--models", self.root)
        answer = server.request("POST", "/predict?points=60,50,1", photo((200, 150)))
        self.assertEqual(answer.status, 500, answer.body)
        self.assertIn("is not an output of its encoder", answer.json()["error"])

    def inspect(self, path):
        shown = run_lensd("inspect", path)
        return shown.returncode, shown.stdout + shown.stderr

    def test_a_decoder_of_several_lists_of_points(self):
        """A request has one: the decoder's input would be read beyond its end."""
        path = os.path.join(self.folder, "decoder.onnx")
        for points, labels, wrong in (((1, "n", 2), (1, "n"), None), ((1, 9000, "n", 2), (1, "n"), "point_coords"),
                                      ((3, "n", 2), (1, "n"), "point_coords"), ((1, "n", 2), (3, "n"), "point_labels")):
            info = small_onnx.tensor_info
            nodes = [small_onnx.node("ReduceMean", ["point_coords"], ["p"], small_onnx.integer("keepdims", 0)),
                     small_onnx.node("ReduceMean", ["point_labels"], ["l"], small_onnx.integer("keepdims", 0)),
                     small_onnx.node("Mul", ["ones", "p"], ["low_res_masks"]), small_onnx.node("Mul", ["one", "l"], ["iou_predictions"])]
            small_onnx.write(path, nodes, [small_onnx.constant("ones", 1, 1, 1, 8, 8), small_onnx.constant("one", 1, 1, 1)],
                             [info("point_coords", *points), info("point_labels", *labels)],
                             [info("low_res_masks", 1, 1, 8, 8), info("iou_predictions", 1, 1)])
            failed, shown = self.inspect(path)
            with self.subTest(points=points, labels=labels):
                self.assertEqual(bool(failed), wrong is not None, shown)
                if wrong:
                    self.assertIn(f"input '{wrong}' of the decoder of masks has the shape", shown)

    def decoder(self, *more, mask=1.0, shape=(1, 16, 8, 8)):
        """Writes a decoder whose masks are `mask` times the mean of the points; `more`: inputs that it does not read."""
        info, node = small_onnx.tensor_info, small_onnx.node
        names = ("point_coords", "point_labels", "image_embeddings", *(name for name, *_ in more))
        nodes = [node("ReduceMean", [name], [f"m_{name}"], small_onnx.integer("keepdims", 0)) for name in names]
        nodes += [node("Mul", ["ones", "m_point_coords"], ["low_res_masks"]), node("Mul", ["one", "m_point_labels"], ["iou_predictions"])]
        small_onnx.write(os.path.join(self.folder, "decoder.onnx"), nodes,
                         [small_onnx.constant("ones", mask, 1, 1, 8, 8), small_onnx.constant("one", 1, 1, 1)],
                         [info("point_coords", 1, "n", 2), info("point_labels", 1, "n"), info("image_embeddings", *shape),
                          *(info(*one) for one in more)],
                         [info("low_res_masks", 1, 1, 8, 8), info("iou_predictions", 1, 1)])
        return os.path.join(self.folder, "decoder.onnx")

    def test_inputs_that_lensd_cannot_fill(self):
        failed, shown = self.inspect(self.decoder(("mask_input", 1, 1, 32, 32)))
        self.assertEqual(failed, 0, shown)
        for more, words in ((("mask_input", 1, 1, 20000, 20000), "more than 64 MiB"),
                            (("mask_input", 1 << 40, 1 << 40, 4, 4), "'mask_input'"),
                            (("input_boxes", 1, "boxes", 4), "transformers.js' SAM 2")):
            failed, shown = self.inspect(self.decoder(more))
            self.assertTrue(failed, shown)
            self.assertIn(words, " ".join(shown.split()))

    def test_an_encoder_of_another_layout(self):
        """As many numbers, in another order."""
        for name, shape in ("pick", (1, 16, 8, 8)), ("other", (1, 8, 8, 16)):
            self.folder = os.path.join(self.root, name)
            shutil.copytree(os.path.join(DATA, "sam"), self.folder, dirs_exist_ok=True)
            self.decoder(shape=shape)
        server = self.serve("--models", self.root)
        for name, status in ("pick", 200), ("other", 500):
            answer = server.request("POST", f"/predict?model={name}&points=60,50,1", photo((200, 150)))
            self.assertEqual(answer.status, status, answer.body)

    def test_masks_that_are_no_numbers(self):
        self.decoder(mask=float("nan"))
        server = self.serve("--models", self.root)
        answer = server.request("POST", "/predict?points=60,50,1", photo((200, 150)))
        self.assertEqual(answer.status, 500, answer.body)
        self.assertIn("NaN or infinite", answer.json()["error"])

    def test_a_stage_has_no_prompt(self):
        os.makedirs(os.path.join(self.root, "both"))
        with open(os.path.join(self.root, "both", "pipeline.json"), "w", encoding="utf-8") as file:
            json.dump({"stages": [{"model": "pick"}, {"model": "pick"}]}, file)
        server = self.serve("--models", self.root)
        (line,) = server.wait_log(re.compile("pipeline cannot answer .*model=both "))
        self.assertIn("needs points or words with each photo", line)

    def test_only_a_decoder_gets_zeros(self):
        """A detector may want the photo's size under the name that SAM's decoder has for it."""
        path = os.path.join(self.root, "other.onnx")
        nodes = [small_onnx.node("GlobalAveragePool", ["image"], ["mean"]), small_onnx.node("Flatten", ["mean"], ["flat"]),
                 small_onnx.node("Mul", ["flat", "orig_im_size"], ["scores"])]
        small_onnx.write(path, nodes, [], [small_onnx.tensor_info("image", 1, 3, 8, 8), small_onnx.tensor_info("orig_im_size", 1, 3)],
                         [small_onnx.tensor_info("scores", 1, 3)])
        self.assertIn("input 'orig_im_size' is not a photo", self.inspect(path)[1])

    def test_without_a_decoder(self):
        os.remove(os.path.join(self.folder, "decoder.onnx"))
        server = self.serve("--models", self.root)
        answer = server.request("POST", "/predict?points=60,50,1", photo((200, 150)))
        self.assertEqual(answer.status, 400, answer.body)
        self.assertIn("such as SAM", answer.json()["error"])


if __name__ == "__main__":
    unittest.main()
