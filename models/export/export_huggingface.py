#!/usr/bin/env python3
"""Exports a Hugging Face transformers image classifier into a model folder for lensd.

    export_huggingface.py microsoft/resnet-50 ./resnet50
    export_huggingface.py ./my-fine-tuned-vit ./vit --opset 17

The argument is a name on the hub or a folder that save_pretrained() wrote. config.json (id2label) and
preprocessor_config.json are the model's own. Needs transformers and torch. Optimum's exporter gives
a folder that lensd serves too, with ONNX Runtime at hand:

    pip install optimum-onnx
    optimum-cli export onnx --model microsoft/resnet-50 --task image-classification ./resnet50
"""

import argparse
import os

from model_folder import because, export_onnx, need, report, stop, write_labels

INSTALL = "pip install torch transformers onnx"


def load(transformers, name):
    """The classifier in eval mode and its image processor."""
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        if config.model_type == "timm_wrapper":
            stop(f"'{name}' is a timm checkpoint; export it with export_timm.py hf-hub:{name} OUTDIR")
        if type(config) not in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
            stop(f"'{name}' is a {config.model_type} model, and transformers has no image classifier "
                 "of that type; export it with: optimum-cli export onnx --model NAME --task TASK OUTDIR")
        processor = transformers.AutoImageProcessor.from_pretrained(name)
        classifier = transformers.AutoModelForImageClassification
        try:  # plain attention: a fused one is harder to trace
            model, found = classifier.from_pretrained(name, attn_implementation="eager",
                                                      output_loading_info=True)
        except (TypeError, ValueError):  # a transformers or a model that knows no such choice
            model, found = classifier.from_pretrained(name, output_loading_info=True)
    except Exception as reason:  # of the network, the hub, or a file
        stop(f"'{name}' could not be loaded as an image classifier: {because(reason)}")
    if any(key.startswith("classifier") for key in found["missing_keys"]):
        stop(f"'{name}' has no weights of a classifier's head: it was not trained to classify")
    return model.eval(), processor


def plain(size):
    """A processor's size as a dict: newer transformers keep an object, older ones a number."""
    if size is None or isinstance(size, (int, dict)):
        return size
    return {key: size[key] for key in ("height", "width", "shortest_edge", "longest_edge")
            if key in size and size[key] is not None}


def side_of(size):
    """(height, width) of a processor's size or crop_size: a number, or a dict in its two forms."""
    if isinstance(size, int):
        return size, size
    if "shortest_edge" in size:
        return size["shortest_edge"], size["shortest_edge"]
    return size["height"], size["width"]


def input_size(processor):
    """(height, width) in pixels of what the processor gives the model."""
    crop, size = plain(getattr(processor, "crop_size", None)), plain(getattr(processor, "size", None))
    crops_first = type(processor).__name__.startswith("Perceiver")  # and resizes what is left
    if getattr(processor, "do_center_crop", False) and crop and not crops_first:
        return side_of(crop)
    if not size or not (isinstance(size, int) or "shortest_edge" in size or "height" in size):
        stop(f"{type(processor).__name__} does not scale photos to a fixed size, which lensd needs")
    return side_of(size)


def write_transform(folder, processor):
    """The processor's own file; lensd knows its class."""
    processor.save_pretrained(folder)
    if not os.path.exists(os.path.join(folder, "preprocessor_config.json")):
        stop(f"{type(processor).__name__} wrote no preprocessor_config.json into {folder}")


def export(name, folder, opset=0):
    """Writes the folder."""
    torch = need("torch", INSTALL)
    transformers = need("transformers", INSTALL)
    model, processor = load(transformers, name)
    height, width = input_size(processor)

    class Logits(torch.nn.Module):
        """transformers answers with an object; ONNX wants the tensor in it."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixel_values):
            return self.model(pixel_values=pixel_values, return_dict=True).logits

    os.makedirs(folder, exist_ok=True)
    channels = getattr(model.config, "num_channels", 3)
    export_onnx(Logits().eval(), torch.zeros(2, channels, height, width),
                os.path.join(folder, "model.onnx"), opset, "pixel_values")
    model.config.save_pretrained(folder)
    write_transform(folder, processor)
    labels = model.config.id2label
    if labels:  # None where nobody named the classes
        write_labels(folder, [labels[index] for index in range(len(labels))])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="OWNER/MODEL on the hub, or a folder")
    parser.add_argument("outdir", help="the model folder to write; made if it is not there")
    parser.add_argument("--opset", type=int, default=0, help="ONNX opset (default: 18)")
    options = parser.parse_args()
    if os.path.abspath(options.name) == os.path.abspath(options.outdir):
        stop("the model and OUTDIR are the same folder; choose another OUTDIR")
    export(options.name, options.outdir, options.opset)
    report(options.outdir)


if __name__ == "__main__":
    main()
