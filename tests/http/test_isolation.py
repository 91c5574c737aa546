"""What one image does wrong is that image's error alone: real models that overflow or fail."""

import json
import unittest

import small_onnx
from harness import ServedModelCase, flat_png, multipart, together

BLACK, GRAY, WHITE = flat_png(0), flat_png(128), flat_png(255)


def strict(body):
    """JSON as the standard has it: NaN and Infinity are no numbers."""
    def refuse(word):
        raise AssertionError(f"{word} in JSON: {body!r}")
    return json.loads(body, parse_constant=refuse)


class IsolationCase(ServedModelCase):
    arguments = ("--max-batch", "8", "--workers", "1", "--top-k", "3")

    def predict_form(self, images):
        kind, body = multipart([("image", f"{i}.png", image) for i, image in enumerate(images)])
        answer = self.server.predict(body, headers={"Content-Type": kind})
        self.assertEqual(answer.status, 200, answer.body)
        return strict(answer.body)["results"]

    def check_form(self, good, bad, code):
        results = self.predict_form([good, good, bad, good, b"no image", good, bad, good])
        codes = [result.get("code", "ok") for result in results]
        self.assertEqual(codes, ["ok", "ok", code, "ok", "unsupported_media_type", "ok", code, "ok"])
        for result in results:
            if "code" not in result:
                self.assertEqual(len(result["predictions"]), 3)
                self.assertEqual(result["predictions"], results[0]["predictions"])

    def check_neighbours(self, good, bad, code, status):
        """Single requests that meet in batches."""
        def ask(i):
            return self.server.predict(bad if i % 8 == 3 else good)
        for i, answer in enumerate(together(32, ask)):
            strict(answer.body)
            if i % 8 == 3:
                self.assert_error(answer, status, code)
            else:
                self.assertEqual(answer.status, 200, answer.body)


class NotFinite(IsolationCase):
    write_model = staticmethod(small_onnx.not_finite_when_dark)

    def test_in_a_form(self):
        self.check_form(WHITE, BLACK, "not_finite")

    def test_beside_others(self):
        self.check_neighbours(WHITE, BLACK, "not_finite", 500)

    def test_the_sentence_names_the_class(self):
        self.assert_error(self.server.predict(BLACK), 500, "not_finite", "class 0", "NaN")


class FailingPass(IsolationCase):
    write_model = staticmethod(small_onnx.fails_when_light)

    def setUp(self):
        # The first sentence of the run says what failed; the status is the engine's.
        answer = self.server.predict(WHITE)
        self.assertGreaterEqual(answer.status, 400, answer.body)
        self.status, self.code = answer.status, strict(answer.body)["code"]

    def test_in_a_form(self):
        self.check_form(GRAY, WHITE, self.code)

    def test_beside_others(self):
        self.check_neighbours(GRAY, WHITE, self.code, self.status)
        self.assertGreaterEqual(self.server.metric("lensd_forward_failures_total"), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
