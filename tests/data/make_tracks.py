#!/usr/bin/env python3
"""Writes tests/data/tracks.json: boxes of a made-up scene, and the tracks that Ultralytics' ByteTrack with the settings of
its bytetrack.yaml finds in them. Needs ultralytics and lap: tests/data/make_tracks.py

    a list of frames: {"boxes": [[x1, y1, x2, y2, score * 255, class], …], "tracks": [[box, id, x1, y1, x2, y2], …]}

Boxes are whole pixels of a picture of 240 x 240, best first, so that a picture's bytes can say them
(tests/http/test_tracks.py)."""

import json
import os
import random
from collections import Counter

import numpy
from ultralytics.engine.results import Boxes
from ultralytics.trackers.byte_tracker import BYTETracker
from ultralytics.utils import YAML, IterableSimpleNamespace
from ultralytics.utils.checks import check_yaml

HERE = os.path.dirname(os.path.abspath(__file__))
SIDE, FRAMES = 240, 150
CLEAR, LOW, FAINT, GONE = range(4)  # how well the detector sees an object

# Birth, death, the centre at birth, speed, size, and (frame, frame, how well it is seen between).
OBJECTS = [
    (1, 150, (30, 60), (1.3, 0), (26, 50), [(60, 66, GONE)]),        # crosses the next one, behind it
    (1, 150, (210, 62), (-1.2, 0), (28, 52), [(62, 65, LOW)]),       # a class that flickers
    (1, 90, (120, 20), (0, 2.0), (40, 24), [(20, 45, GONE)]),        # found again after 25 frames
    (5, 150, (20, 200), (0.4, 0), (24, 24), [(40, 70, GONE)]),       # after 31, the longest gap
    (5, 150, (60, 200), (0.3, 0), (24, 24), [(40, 72, GONE)]),       # 33: another track
    (10, 130, (200, 200), (-0.5, -0.5), (36, 30), [(30, 60, LOW), (80, 84, FAINT)]),
    (30, 100, (30, 120), (2.4, 0.3), (20, 40), [(50, 53, GONE), (70, 80, LOW)]),
    (33, 120, (220, 130), (-2.2, 0.2), (22, 42), [(58, 62, GONE)]),
    (70, 150, (100, 225), (0.9, -1.4), (30, 26), [(90, 93, LOW)]),
    (100, 101, (150, 100), (0, 0), (30, 30), []),                    # two frames
    (105, 105, (60, 100), (0, 0), (30, 30), []),                     # one frame: never answered
    (125, 150, (225, 30), (-1, 0.6), (24, 30), []),
]


def scene(seed):
    """For each frame its boxes, best first."""
    dice = random.Random(seed)
    frames = []
    for frame in range(1, FRAMES + 1):
        boxes = []
        for number, (birth, death, centre, speed, size, gaps) in enumerate(OBJECTS):
            how = next((how for first, last, how in gaps if first <= frame <= last), CLEAR)
            if not birth <= frame <= death or how == GONE:
                continue
            score = {CLEAR: dice.randint(115, 245), LOW: dice.randint(28, 60), FAINT: dice.randint(3, 24)}[how]
            x, y = (c + v * (frame - birth) + dice.gauss(0, .7) for c, v in zip(centre, speed))
            w, h = (s * (1 + dice.gauss(0, .02)) for s in size)
            box = [max(0, min(SIDE - 1, round(v))) for v in (x - w / 2, y - h / 2, x + w / 2, y + h / 2)]
            boxes.append((*box, score, frame % 2 if number == 1 else number % 3))
            if number == 6 and frame % 9 == 0:  # a second box of the same object, which a detector let through
                boxes.append((box[0] + 1, box[1], box[2] + 1, box[3], max(score - 40, 66), 0))
        if frame % 13 == 0:  # what is not there
            x, y = dice.randint(0, 200), dice.randint(0, 200)
            boxes.append((x, y, x + 30, y + 25, dice.randint(66, 110), 2))
            boxes.append((y, x, y + 20, x + 30, dice.randint(28, 60), 2))
        boxes = {box[4]: box for box in boxes}  # no two with a score: their order would be anybody's
        frames.append([boxes[score] for score in sorted(boxes, reverse=True)])
    return frames


def follow(frames):
    """The reference's tracks, and how often each of its ways was gone."""
    settings = IterableSimpleNamespace(**YAML.load(check_yaml("bytetrack.yaml")))
    tracker, counts, tracks = BYTETracker(settings), Counter(), []
    for boxes in frames:
        data = numpy.array([[*b[:4], b[4] / 255, b[5]] for b in boxes], numpy.float32).reshape(-1, 6)
        lost = {t.track_id for t in tracker.lost_stracks}
        unsure = {t.track_id for t in tracker.tracked_stracks if not t.is_activated}
        found = tracker.update(Boxes(data, (SIDE, SIDE)))
        now = {t.track_id for t in tracker.tracked_stracks}
        counts["found again"] += len(lost & now)
        counts["never sure"] += len(unsure - now)
        counts["by a low score"] += sum(row[5] < .25 for row in found)
        counts["too old"] += sum(t.track_id not in unsure for t in tracker.removed_stracks_frame)
        tracks.append([[int(row[7]), int(row[4]), *(round(float(v), 2) for v in row[:4])] for row in found])
    return tracks, counts


def main():
    frames = scene(33)
    tracks, counts = follow(frames)
    print(dict(counts), "ids:", max(row[1] for rows in tracks for row in rows))
    assert all(counts[way] for way in ("found again", "never sure", "by a low score", "too old"))
    with open(os.path.join(HERE, "tracks.json"), "w", encoding="ascii") as file:
        lines = (json.dumps({"boxes": b, "tracks": t}, separators=(",", ":")) for b, t in zip(frames, tracks))
        file.write("[" + ",\n".join(lines) + "]\n")


if __name__ == "__main__":
    main()
