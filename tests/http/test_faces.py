"""The registry of faces (--faces) and the paths of DeepStack's API that use it: what is stored, what is refused, what is
left after kill -9, and what is gone after a deletion."""

import json
import os
import sqlite3
import stat
import threading
import unittest
import zlib

import small_onnx
from harness import FolderCase, multipart, png_chunk, png_header, read, run_lensd

SIDE = 64
POINTS = [(4, 5), (12, 5), (8, 8), (5, 12), (11, 12)]
PLAIN = {"size": {"height": 16, "width": 16}, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}


def halves(left, right):
    """A PNG of two colours."""
    row = b"\0" + bytes(left) * (SIDE // 2) + bytes(right) * (SIDE // 2)
    return png_header(SIDE, SIDE) + png_chunk(b"IDAT", zlib.compress(row * SIDE)) + png_chunk(b"IEND", b"")


def flat(color):
    return halves(color, color)


RED, GREEN, BLUE, PINK = (200, 0, 0), (0, 200, 0), (0, 0, 200), (200, 60, 60)


class FaceCase(FolderCase):
    """A detector of a face in each half of any picture, and vectors that are the mean colour of a crop."""

    scores = (.9, .8)

    def setUp(self):
        super().setUp()
        small_onnx.faces(self.put("scrfd"), [(score, left, 20, left + 20, 40, [v + m for p in POINTS for v, m in zip(p, (left, 20))])
                                             for score, left in zip(self.scores, (4, 40))])
        self.colors("colors", 1)
        self.write("faces/pipeline.json", json.dumps({"stages": [
            {"model": "scrfd"}, {"model": "colors", "align": {"size": "16x16", "points": POINTS}}]}))
        self.file = self.path("registry/faces.db")
        os.mkdir(self.path("registry"))

    def put(self, name):
        os.makedirs(self.path("models/" + name), exist_ok=True)
        return self.path(f"models/{name}/model.onnx")

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path("models/" + name)), exist_ok=True)
        with open(self.path("models/" + name), "w", encoding="utf-8") as file:
            file.write(text)

    def colors(self, name, gain):
        small_onnx.write(self.put(name), [
            small_onnx.node("GlobalAveragePool", ["image"], ["mean"]), small_onnx.node("Flatten", ["mean"], ["flat"]),
            small_onnx.node("Mul", ["flat", "gain"], ["embedding"])], [small_onnx.floats("gain", (1,), [gain])],
            [small_onnx.tensor_info("image", "N", 3, 16, 16)], [small_onnx.tensor_info("embedding", "N", 3)])
        self.write(f"{name}/preprocessor_config.json", json.dumps(PLAIN))
        self.write(f"{name}/lensd.json", '{"task": "embedding"}')

    def start(self, *arguments, registry=True, **options):
        more = ("--faces", self.file) if registry else ()
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32", *more, *arguments,
                                 **options)
        return self.server

    def form(self, path, *fields, status=200):
        kind, body = multipart(list(fields))
        answer = self.server.request("POST", f"/v1/vision/face{path}", body, {"Content-Type": kind})
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def register(self, name, *colors, status=200):
        pictures = [(f"image{i}", "a.png", flat(color)) for i, color in enumerate(colors)]
        return self.form("/register", ("userid", None, name.encode()), *pictures, status=status)

    def recognize(self, picture, *fields, status=200):
        return self.form("/recognize", ("image", "a.png", picture), *fields, status=status)

    def names(self):
        return self.form("/list")["faces"]


class Faces(FaceCase):
    def test_the_whole_round(self):
        server = self.start()
        self.assertEqual(self.names(), [])
        unknown = self.recognize(halves(RED, GREEN))
        self.assertEqual((unknown["success"], unknown["message"], unknown["count"]), (True, "No known faces", 2))
        self.assertEqual([(p["userid"], p["confidence"]) for p in unknown["predictions"]], [("unknown", 0)] * 2)
        self.assertEqual(self.register("Jane", RED, PINK)["message"], "face added")
        self.assertEqual(self.register("John", GREEN)["message"], "face added")
        self.assertEqual((self.names(), self.server.metric("lensd_faces_people")), (["Jane", "John"], 2))
        found = self.recognize(halves(GREEN, RED))
        self.assertEqual((found["message"], found["command"], found["success"]), ("A face was recognised", "recognize", True))
        self.assertEqual([p["userid"] for p in found["predictions"]], ["John", "Jane"])
        self.assertAlmostEqual(found["predictions"][0]["confidence"], 1, places=5)
        self.assertEqual([found["predictions"][1][k] for k in ("x_min", "y_min", "x_max", "y_max")], [40, 20, 60, 40])
        # The mean of two vectors of length 1: (1, 0, 0) and pink's.
        length = (1 + 2 * .3 ** 2) ** .5
        jane = [1 + 1 / length, .3 / length, .3 / length]
        cosine = jane[0] / sum(v * v for v in jane) ** .5
        self.assertAlmostEqual(found["predictions"][1]["confidence"], (1 + cosine) / 2, places=4)
        self.assertEqual([p["userid"] for p in self.recognize(halves(BLUE, RED))["predictions"]], ["unknown", "Jane"])
        sure = self.recognize(halves(RED, GREEN), ("min_confidence", None, b"0.999"))
        self.assertEqual([p["userid"] for p in sure["predictions"]], ["unknown", "John"])
        self.assertEqual(self.register("Jane", BLUE)["message"], "face updated")
        self.assertEqual(self.server.metric("lensd_faces_people"), 2)
        self.assertEqual([p["userid"] for p in self.recognize(halves(BLUE, RED))["predictions"]], ["Jane", "unknown"])
        gone = self.server.request("POST", "/v1/vision/face/delete", b"api_key=None&userid=Jane",
                                   {"Content-Type": "application/x-www-form-urlencoded"})
        self.assertEqual((gone.status, gone.json()["success"]), (200, True))
        self.assertEqual(self.form("/delete", ("userid", None, b"nobody"))["success"], True)
        self.assertEqual((self.names(), self.server.metric("lensd_faces_people")), (["John"], 1))
        self.assertEqual(stat.S_IMODE(os.stat(self.file).st_mode), 0o600)
        server.stop()
        server = self.start()
        self.assertEqual(server.metric("lensd_faces_people"), 1)
        self.assertEqual([p["userid"] for p in self.recognize(halves(BLUE, GREEN))["predictions"]], ["unknown", "John"])

    def test_a_face_without_a_vector_does_not_hide_the_others(self):
        """The vector of a black crop is 0 / 0. It is so each time, and only of this face."""
        small_onnx.write(self.put("colors"), [
            small_onnx.node("GlobalAveragePool", ["image"], ["mean"]), small_onnx.node("Flatten", ["mean"], ["flat"]),
            small_onnx.node("MatMul", ["flat", "ones"], ["sum"]), small_onnx.node("Div", ["flat", "sum"], ["embedding"])],
            [small_onnx.floats("ones", (3, 1), [1] * 3)],
            [small_onnx.tensor_info("image", "N", 3, 16, 16)], [small_onnx.tensor_info("embedding", "N", 3)])
        self.start()
        self.register("Jane", RED)
        picture = halves((0, 0, 0), RED)
        self.assertEqual(self.form("", ("image", "a.png", picture))["count"], 2)
        found = self.recognize(picture)["predictions"]
        self.assertEqual([(p["userid"], p["x_min"]) for p in found], [("Jane", 40)])

    def test_it_is_confined(self):
        """All of this runs with Landlock and seccomp, where the machine has them."""
        said = self.start().get("/health").json()["confinement"]
        self.register("Jane", RED)
        self.form("/delete", ("userid", None, b"Jane"))
        self.assertNotIn("EPERM", self.server.whole_log())
        if "off" not in said:
            self.assertRegex(said, "seccomp|Landlock|no ")

    def test_faces_and_matches(self):
        self.start(registry=False)
        answer = self.form("", ("image", "a.png", flat(RED)), ("min_confidence", None, b"0.85"))
        self.assertEqual((answer["count"], answer["command"], answer["success"]), (1, "detect", True))
        self.server.stop()
        self.start()
        match = lambda a, b: self.form("/match", ("image1", "a.png", flat(a)), ("image2", "b.png", flat(b)))
        self.assertAlmostEqual(match(RED, RED)["similarity"], 1, places=5)
        self.assertAlmostEqual(match(RED, GREEN)["similarity"], .5, places=5)
        self.assertIn("two pictures", self.form("/match", ("image", "a.png", flat(RED)), status=400)["error"])

    def test_without_a_registry(self):
        self.start(registry=False)
        for path in ("/list", "/delete", "/register", "/recognize", "/match"):
            answer = self.form(path, ("userid", None, b"Jane"), ("image", "a.png", flat(RED)), status=404)
            self.assertIn("--faces FILE", answer["error"])
        self.assertEqual(os.listdir(self.path("registry")), [])

    def test_pages_of_other_addresses(self):
        """A browser sends a form to any address, and says whose page it is."""
        self.start("--cors-origin", "https://app.example")
        self.register("Jane", RED)
        here = f"127.0.0.1:{self.server.port}"

        def send(path, origin):
            kind, body = multipart([("userid", None, b"Jane"), ("image", "a.png", flat(GREEN))])
            return self.server.request("POST", "/v1/vision/face" + path, body, {"Content-Type": kind, "Origin": origin}).status
        for origin in ("https://evil.example", "null", "http://127.0.0.1", f"http://{here}.evil.example", "https://app.example.evil"):
            for path in ("/register", "/delete", "/list", "/recognize", "/match"):
                self.assertEqual(send(path, origin), 403, (path, origin))
        self.assertEqual(self.names(), ["Jane"])
        for origin in ("https://app.example", f"http://{here}"):
            self.assertEqual(send("/list", origin), 200)
            self.assertEqual(send("/register", origin), 200)

    def test_names(self):
        self.start()
        for name in ("Zoë O'Neil; DROP TABLE people", "ж" * 64):
            self.register(name, RED)
            self.assertEqual(self.names(), [name])
            self.form("/delete", ("userid", None, name.encode()))
            self.assertEqual(self.names(), [])
        for name in (b"", b"a" * 129, b"\xff\xfe", b"a\0b"):
            for path in ("/register", "/delete"):
                answer = self.form(path, ("userid", None, name), ("image", "a.png", flat(RED)), status=400)
                self.assertIn("userid", answer["error"])
        self.assertIn("userid", self.form("/register", ("image", "a.png", flat(RED)), status=400)["error"])
        self.assertEqual(self.names(), [])
        for value in (b"nan", b"-1", b"2"):
            self.recognize(flat(RED), ("min_confidence", None, value), status=400)

    def test_answers_are_not_cached(self):
        self.start("--response-cache", "16M")
        self.assertEqual(self.recognize(flat(RED))["predictions"][0]["userid"], "unknown")
        self.assertEqual([self.register("Jane", RED)["message"] for _ in range(2)], ["face added", "face updated"])
        self.assertEqual(self.recognize(flat(RED))["predictions"][0]["userid"], "Jane")


class Deletion(FaceCase):
    def test_what_is_deleted_is_gone(self):
        """Neither the name nor the vector of a person is left in the file, nor the vector that another one replaces."""
        self.start()
        vectors = {}
        for name, color in (("Jane-Doe", (200, 10, 30)), ("John-Doe", (20, 200, 10)), ("Kim-Doe", (5, 6, 200))):
            self.register(name, color)
            (vectors[name],) = sqlite_vectors(self.file, name)
            self.assertIn(vectors[name], read(self.file))
        self.register("Kim-Doe", (90, 90, 10))
        self.assertNotIn(vectors["Kim-Doe"], read(self.file), "replaced")
        self.form("/delete", ("userid", None, b"Jane-Doe"))
        left = read(self.file)
        for gone in (b"Jane-Doe", vectors["Jane-Doe"], vectors["Kim-Doe"]):
            self.assertNotIn(gone, left)
        self.assertIn(b"John-Doe", left)
        self.assertEqual(read(self.file + "-journal"), b"", "nothing stays there")


def sqlite_vectors(path, name):
    """Read from a copy: lensd has locked the file."""
    copy = path + ".copy"
    with open(copy, "wb") as file:
        file.write(read(path))
    with sqlite3.connect(copy) as db:
        found = [row[0] for row in db.execute("SELECT vector FROM people WHERE name = ?", (name,))]
    db.close()
    os.remove(copy)
    return found


class Crashes(FaceCase):
    def test_kill_in_the_middle_of_writes(self):
        """What was acknowledged is there afterwards; what was not is whole or absent."""
        acknowledged = set()
        for turn in range(3):
            self.start()
            before = set(self.names())
            self.assertLessEqual(acknowledged, before)
            sent, done = set(), []

            def write():
                for i in range(1000):
                    name = f"{turn}-{i}"
                    sent.add(name)
                    try:
                        self.register(name, RED)
                    except OSError:
                        return
                    done.append(name)
            writer = threading.Thread(target=write)
            writer.start()
            self.server.wait_for(lambda: len(done) >= 5 + turn, "writes")
            self.server.process.kill()
            writer.join()
            self.server.wait()
            acknowledged |= set(done)
            self.assertLessEqual(acknowledged | before, acknowledged | before | sent)
        self.start()
        names = set(self.names())
        self.assertLessEqual(acknowledged, names)
        self.assertEqual(self.recognize(flat(RED))["predictions"][0]["confidence"] > .99, True)

    def test_a_journal_of_a_write_that_was_cut_off(self):
        """The file has been changed in part, and its journal says what was there: that comes back."""
        self.start()
        for i in range(40):
            self.register(f"person-{i:02}", RED)
        self.server.stop()
        with open(self.file, "rb") as file:
            whole = file.read()
        db = sqlite3.connect(self.file, isolation_level=None)
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA cache_size = 1")
        db.execute("PRAGMA cache_spill = 1")
        db.execute("BEGIN")
        db.execute("UPDATE people SET vector = zeroblob(12)")
        db.executemany("INSERT INTO people VALUES (?, x'00', zeroblob(4000))", [(f"extra-{i}",) for i in range(50)])
        half, journal = read(self.file), read(self.file + "-journal")
        db.execute("ROLLBACK")
        db.close()
        self.assertNotEqual(half, whole)
        self.assertGreater(len(journal), 512)
        for name, data in (("", half), ("-journal", journal)):
            with open(self.file + name, "wb") as file:
                file.write(data)
        self.start()
        self.assertEqual(self.names(), [f"person-{i:02}" for i in range(40)])
        self.assertEqual(self.recognize(flat(RED))["predictions"][0]["userid"][:7], "person-")
        journal = self.file + "-journal"
        self.assertTrue(not os.path.exists(journal) or read(journal) == b"")


class Refusals(FaceCase):
    def test_another_model(self):
        self.start()
        self.register("Jane", RED)
        self.server.stop()
        self.colors("colors", 2)
        self.start()
        for answer in (self.recognize(flat(RED), status=500), self.register("John", RED, status=500)):
            self.assertRegex(answer["error"], "1 faces in '.*' .* another model, whose vectors cannot be compared; delete them")
        self.assertEqual(self.names(), ["Jane"])
        self.form("/delete", ("userid", None, b"Jane"))
        self.register("John", RED)
        self.assertEqual(self.recognize(flat(RED))["predictions"][0]["userid"], "John")

    def test_a_model_without_vectors(self):
        os.rename(self.path("models/faces"), self.path("faces"))
        os.rename(self.path("models/scrfd"), self.path("models/faces"))
        self.start()
        self.assertIn("must be a pipeline", self.register("Jane", RED, status=500)["error"])
        self.assertEqual(self.form("", ("image", "a.png", flat(RED)))["count"], 2, "a detector alone finds faces")

    def test_no_model(self):
        os.rename(self.path("models/faces"), self.path("faces"))
        self.start()
        self.assertIn("'faces'", self.recognize(flat(RED), status=404)["error"])

    def check(self, *words):
        said = run_lensd("serve", "--models", self.path("models"), "--faces", self.file, "--check")
        self.assertEqual(said.returncode, 2, said.stderr)
        for word in words:
            self.assertIn(word, " ".join(said.stderr.split()))

    def test_files(self):
        with open(self.file, "wb") as file:
            file.write(b"no database" * 500)
        self.check("--faces", "not a database")
        os.remove(self.file)
        with sqlite3.connect(self.file) as db:
            db.execute("CREATE TABLE people (name TEXT)")
        db.close()
        self.check("another program")
        os.remove(self.file)
        os.symlink("elsewhere", self.file)
        self.check("cannot open the registry of faces")
        os.remove(self.file)
        self.file = self.path("absent/faces.db")
        self.check("cannot open the registry of faces", "No such file or directory; make its folder first")

    def test_others_may_not_read_it(self):
        """Neither a file that was made by hand nor one from a copy. Another program's stays as it is."""
        def mode(name=""):
            return stat.S_IMODE(os.stat(self.file + name).st_mode)
        for name in ("", "-journal"):
            with open(self.file + name, "wb"):
                os.chmod(self.file + name, 0o666)
        for _ in range(2):
            self.start()
            self.register("Jane", RED)
            self.assertEqual((mode(), mode("-journal")), (0o600, 0o600))
            self.assertEqual(self.names(), ["Jane"])
            self.server.stop()
            os.chmod(self.file, 0o644)
            os.chmod(self.file + "-journal", 0o644)
        os.remove(self.file)
        with sqlite3.connect(self.file) as db:
            db.execute("CREATE TABLE people (name TEXT)")
        db.close()
        os.chmod(self.file, 0o644)
        self.check("another program")
        self.assertEqual(mode(), 0o644)

    def test_damage(self):
        self.start()
        for i in range(60):
            self.register(f"a name that is long enough for several pages {i:03} " + "x" * 70, RED)
        self.server.stop()
        data = bytearray(read(self.file))
        self.assertGreater(len(data), 3 * 4096)
        data[4096:2 * 4096] = b"\xa5" * 4096
        with open(self.file, "wb") as file:
            file.write(data)
        self.check("--faces")

    def test_two_servers(self):
        self.start()
        self.register("Jane", RED)
        self.check("locked")


class NoFaces(FaceCase):
    scores = (.1, .1)

    def test_pictures_without_faces(self):
        self.start()
        self.assertEqual(self.register("Jane", RED)["error"], "No face detected")
        answer = self.recognize(flat(RED))
        self.assertEqual((answer["success"], answer["error"]), (False, "No face found in image"))
        answer = self.form("/match", ("a", "a.png", flat(RED)), ("b", "b.png", flat(RED)))
        self.assertEqual((answer["success"], answer["error"]), (False, "No face found in one or both images"))
        self.assertEqual(self.form("", ("image", "a.png", flat(RED)))["predictions"], [])
        self.assertEqual(self.names(), [])


if __name__ == "__main__":
    unittest.main()
