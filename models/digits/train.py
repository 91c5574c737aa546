#!/usr/bin/python3
"""Trains the digit classifier that lensd serves when it is given no model.

    train.py                    # model.onnx beside this file, held-out PNGs in tests/data/digits
    train.py --split blocks --out /somewhere/else --steps 4000    # the other split, for the README

Everything is seeded; the held-out digits are looked at once, after the last step. Debian 12:
apt-get install python3-torch python3-sklearn python3-pil python3-onnx. Six to ten minutes on two cores.
"""

import argparse
import json
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import needs  # noqa: E402,F401
import numpy
import torch
from torch import nn
import torch.nn.functional as functional

import dataset
import strokes

HERE = os.path.dirname(os.path.abspath(__file__))
SIDE = 32
MEAN, STD = 0.5, 0.5


def block(inputs, outputs, kernel, stride=1):
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs), nn.ReLU()]


def network():
    """69 thousand weights, 4.1 million multiply-adds an image; channels in steps of 16."""
    return nn.Sequential(
        *block(3, 16, 5, stride=2),                     # 16 x 16
        *block(16, 32, 3), nn.MaxPool2d(2),             # 8 x 8
        *block(32, 48, 3), *block(48, 48, 3), nn.MaxPool2d(2),  # 4 x 4
        *block(48, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Batches:
    """Endless seeded batches: three quarters handwriting, one quarter drawn strokes."""

    def __init__(self, ink, labels, batch, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.hand = dataset.enlarge(ink), torch.from_numpy(labels)
        drawn, drawn_labels = strokes.draw(400, dataset.SOURCE, seed)
        self.drawn = torch.from_numpy(drawn)[:, None], torch.from_numpy(drawn_labels)
        self.batch = batch

    def next(self):
        pens = self.batch // 4
        parts = []
        for (images, labels), count in ((self.hand, self.batch - pens), (self.drawn, pens)):
            pick = torch.randint(len(labels), (count,), generator=self.random)
            parts.append((images[pick], labels[pick]))
        ink, labels = (torch.cat(both) for both in zip(*parts))
        return (dataset.vary(ink, SIDE, self.random) - MEAN) / STD, labels


def train(ink, labels, options):
    """Returns the averaged network in eval mode. No checkpoint is picked: the last one counts."""
    torch.manual_seed(options.seed)
    model = network()
    average = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda kept, new, _count: kept + 0.005 * (new - kept))
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, options.rate, options.steps,
                                                   pct_start=0.15)
    batches = Batches(ink, labels, options.batch, options.seed)
    start, shown = time.monotonic(), 0.0
    for step in range(1, options.steps + 1):
        images, targets = batches.next()
        loss = functional.cross_entropy(model(images), targets, label_smoothing=0.03)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        average.update_parameters(model)
        shown += (float(loss) - shown) * max(0.01, 1 / step)
        if step % 500 == 0 or step == options.steps:
            print(f"step {step} of {options.steps}: loss {shown:.4f}, "
                  f"{time.monotonic() - start:.0f} s", flush=True)
    # The running statistics belong to the last weights; measure them again for the averaged ones.
    final = average.module
    for module in final.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    final.train()
    with torch.no_grad():
        for _ in range(100):
            final(batches.next()[0])
    return final.eval()


def write_model(model, folder):
    """model.onnx (opset 13, BatchNormalization folded into the convolutions), its labels and
    transform."""
    torch.onnx.export(model, torch.zeros(2, 3, SIDE, SIDE), os.path.join(folder, "model.onnx"),
                      opset_version=13, input_names=["image"], output_names=["logits"],
                      dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}})
    with open(os.path.join(folder, "labels.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{digit}\n" for digit in range(10))
    config = {"do_convert_rgb": True, "do_resize": True, "size": {"height": SIDE, "width": SIDE},
              "resample": 2, "do_center_crop": False, "do_rescale": True,
              "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [MEAN] * 3,
              "image_std": [STD] * 3}
    with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
        file.write("\n")


def write_held_out(ink, labels, indices, folder):
    """One PNG for each held-out digit, LABEL_INDEX.png; what was there under such names goes."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith(".png"):
            os.unlink(os.path.join(folder, name))
    for index in indices:
        name = f"{labels[index]}_{index:04d}.png"
        dataset.render(ink[index], index).save(os.path.join(folder, name), optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=HERE, help="the model folder (default: this one)")
    parser.add_argument("--held-out", default=os.path.join(HERE, "../../tests/data/digits/held_out"),
                        help="the folder of held-out PNGs (default: %(default)s)")
    parser.add_argument("--split", choices=["random", "blocks"], default="random")
    parser.add_argument("--validate", type=float, default=0, metavar="SHARE",
                        help="for work on the recipe: keep this share of the training digits aside "
                        "and measure on them instead of the held-out ones; writes nothing")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    ink, labels = dataset.load()
    chosen, tested = dataset.split(labels, options.split)
    if options.validate:
        order = numpy.random.default_rng(7).permutation(chosen)
        if options.split == "blocks":
            order = chosen[::-1]
        cut = int(len(chosen) * options.validate)
        chosen, tested = numpy.sort(order[cut:]), numpy.sort(order[:cut])
    print(f"{len(chosen)} digits to train on, {len(tested)} kept aside")
    model = train(ink[chosen], labels[chosen], options)

    pages = [dataset.render(ink[i], i).convert("RGB").resize((SIDE, SIDE), 2) for i in tested]
    images = torch.from_numpy(numpy.stack([numpy.asarray(p) for p in pages])).permute(0, 3, 1, 2)
    with torch.no_grad():
        answers = model((images / 255 - MEAN) / STD).argmax(1).numpy()
    wrong = [(int(i), int(labels[i]), int(a)) for i, a in zip(tested, answers) if labels[i] != a]
    print(f"kept aside: {len(tested) - len(wrong)} of {len(tested)} right "
          f"({100 * (1 - len(wrong) / len(tested)):.2f} %)")
    print("wrong (index, is, taken for):", wrong)
    if not options.validate:
        os.makedirs(options.out, exist_ok=True)
        write_model(model, options.out)
        write_held_out(ink, labels, tested, options.held_out)


if __name__ == "__main__":
    main()
