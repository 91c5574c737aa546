"""Photos by the settings of preprocessor_config.json files, as transformers' processors make them
(processor_settings.py); where lensd makes something else, it says so.

    LENSD_PREPARE=build/tests/conformance/lensd_prepare test_processors.py"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 100, 60


def pixel(x, y):
    """A photo in which every place differs from its neighbours, but not by much: filters are not what is tested."""
    return [2 * x + y // 2, 220 - 2 * x + y // 2, 20 + x + 2 * y]


def bitmap():
    rows = b"".join(b"".join(bytes(reversed(pixel(x, y))) for x in range(WIDTH)) for y in reversed(range(HEIGHT)))
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54) + head + rows


class Processors(unittest.TestCase):
    def test_settings(self):
        rows = json.loads((ROOT / "tests" / "data" / "processors.json").read_text(encoding="ascii"))
        different, warned = [], 0
        with tempfile.TemporaryDirectory() as folder:
            photo, config = pathlib.Path(folder, "photo.bmp"), pathlib.Path(folder, "preprocessor_config.json")
            photo.write_bytes(bitmap())
            for row in rows:
                config.write_text(json.dumps(row["settings"]))
                done = subprocess.run([os.environ["LENSD_PREPARE"], config, str(row["width"]), str(row["height"]),
                                       photo], capture_output=True, check=True)
                head, data = done.stdout.split(b"\n", 1)
                width, height, channels = map(int, head.split())
                self.assertEqual((width, height, channels), (row["width"], row["height"], 3))
                scale = max(abs(v) for *_, v in row["samples"]) + .1
                worst = max(abs(struct.unpack_from("<f", data, 4 * ((y * width + x) * 3 + c))[0] - v)
                            for x, y, c, v in row["samples"]) / scale
                warned += bool(done.stderr)
                if "-v" in sys.argv:
                    print(f"{worst:8.4f}", row["settings"], (width, height), done.stderr.decode().strip()[:150])
                if worst > .02 and not done.stderr:
                    different.append((worst, row["settings"]))
        self.assertEqual(different, [])
        self.assertGreater(len(rows), 70)
        self.assertLess(warned, 30)


if __name__ == "__main__":
    unittest.main()
