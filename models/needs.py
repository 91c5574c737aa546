"""A sentence instead of a traceback where a Python package is missing: importing this module is all it takes.

Scripts import what they need where they need it, so that it may be missing long after the start."""

import os
import sys

# Of Debian 12; what is not here comes from the Python package index alone.
DEBIAN = {"PIL": "python3-pil", "cv2": "python3-opencv", "matplotlib": "python3-matplotlib", "numpy": "python3-numpy",
          "onnx": "python3-onnx", "scipy": "python3-scipy", "selenium": "python3-selenium", "sklearn": "python3-sklearn",
          "torch": "python3-torch", "torchvision": "python3-torchvision", "yaml": "python3-yaml"}
PIP = {"PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml"}


def sentence(module):
    """What is missing, for which interpreter, and how it comes there."""
    name = module.split(".")[0]
    pip = f"{sys.executable} -m pip install {PIP.get(name, name)}"
    if name not in DEBIAN:
        how = pip
    elif os.path.dirname(sys.executable) in ("/usr/bin", "/bin"):
        how = f"apt-get install {DEBIAN[name]} (Debian 12)"
    else:
        how = f"{pip}; or, with Debian's own Python: apt-get install {DEBIAN[name]}, and run it with /usr/bin/python3"
    return f"{os.path.basename(sys.argv[0])}: the Python package {name} is missing for {sys.executable}; {how}"


def hook(kind, error, trace, before=sys.excepthook):
    if issubclass(kind, ModuleNotFoundError) and error.name:
        print(sentence(error.name), file=sys.stderr)
    else:
        before(kind, error, trace)


sys.excepthook = hook
