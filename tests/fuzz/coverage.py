#!/usr/bin/env python3
"""Which lines of the parsers the committed corpora reach: coverage.py BUILD, a build with -Db_coverage=true.

Runs each fuzz target over its corpus, asks gcov for the files that the target is there for, and prints a table."""

import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGETS = {
    "coding": ["server/http/transport/coding.c", "server/http/transport/negotiate.c", "server/http/transport/upload.c"],
    "config": ["models/folder/labels.c", "models/folder/pbtxt.c", "models/folder/preprocess_config.c",
               "models/folder/triton_config.c"],
    "daemon": ["server/http/transport/daemon.c", "server/http/transport/routes.c"],
    "dialects": ["proto/predict_request.c", "proto/openai.c", "proto/doods.c", "proto/base64.c"],
    "folder": ["models/folder/task_config.c", "models/folder/triton_config.c", "models/tasks/task_detect_kind.c"],
    "frigate": ["proto/frigate.c"],
    "head": ["server/http/transport/admit.c", "server/http/transport/trusted_proxies.c"],
    "image": ["server/image/exif.c", "server/image/image.c", "server/image/jpeg.c", "server/image/pixels.c",
              "server/image/png.c", "server/image/sniff.c", "server/image/transform.c"],
    "onnx": ["models/onnx"],
    "operators": ["engine/op"],
    "request": ["models/tasks/options.c", "proto/base64.c", "proto/json_check.c", "proto/logging_json.c",
                "proto/predict_json.c", "proto/settings_json.c", "server/http/transport/multipart.c",
                "server/http/transport/query.c"],
    "settings": ["engine/backend/tuning_store.c", "server/app/config.c", "server/http/transport/keys.c",
                 "server/precision/choice_store.c"],
    "tasks": ["models/tasks/candidates.c", "models/tasks/decode_detr.c", "models/tasks/decode_lists.c",
              "models/tasks/decode_yolo.c", "models/tasks/detect.c", "models/tasks/segment.c",
              "models/tasks/zero_shot.c"],
    "tensors": ["proto/json_check.c", "proto/v1.c", "proto/v2_data.c", "proto/v2_request.c"],
    "tokenizer": ["models/text"],
}


def sources(paths):
    for path in paths:
        yield from ([path] if path.endswith(".c") else
                    [os.path.relpath(found, ROOT) for found in sorted(glob.glob(os.path.join(ROOT, path, "*.c")))])


def lines_of(build, source):
    """(reached, all) lines of a source, by the counters of the last run."""
    folder = os.path.dirname(source)
    counters = glob.glob(os.path.join(build, folder, "*.p", f"*{os.path.basename(source)}.gcda"))
    lines = {}
    for path in counters:
        text = subprocess.run(["gcov", "--json-format", "--stdout", path], capture_output=True, cwd=build, check=True).stdout
        for part in text.splitlines():
            for file in json.loads(part)["files"]:
                if os.path.relpath(os.path.join(build, file["file"]), ROOT) == source:
                    for line in file["lines"]:
                        lines[line["line_number"]] = lines.get(line["line_number"], 0) + line["count"]
    return sum(count > 0 for count in lines.values()), len(lines)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build = os.path.abspath(sys.argv[1])
    print("| target | inputs | lines reached | of | by file |\n|---|---|---|---|---|")
    for name, paths in TARGETS.items():
        for path in glob.glob(os.path.join(build, "**", "*.gcda"), recursive=True):
            os.remove(path)
        corpus = os.path.join(HERE, "corpus", name)
        subprocess.run([os.path.join(build, "tests", "fuzz", f"fuzz_{name}"), corpus], check=True, stdout=subprocess.DEVNULL)
        found = {source: lines_of(build, source) for source in sources(paths)}
        reached, count = (sum(numbers) for numbers in zip(*found.values()))
        files = ", ".join(f"{os.path.basename(source)} {100 * part // max(whole, 1)} %"
                          for source, (part, whole) in found.items())
        print(f"| `{name}` | {len(os.listdir(corpus))} | {100 * reached // count} % | {count} | {files} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
