#!/usr/bin/env python3
"""`./dev bundle`: lensd, its CUDA module, the libraries they need and what tests them on a GPU, in a
folder that runs wherever it is put, and an archive of it.

    bundle.py [--arch sm_80,sm_90] [--cases FOLDER] [--stand-in] [--no-archive] [FOLDER]

    FOLDER/lensd, bench_forward …   links to `start`, which finds what the programs need
    FOLDER/bin                      lensd, in one file with the programs that test it (links to it; tools.c)
    FOLDER/lib, glibc               their libraries; a C library, in case the machine's is older
    FOLDER/lib/lensd                lensd_cuda.so (with --stand-in what tests use instead, too)
    FOLDER/tests, models            what `./dev gpu` runs, where python3 is
    FOLDER/photos                   500 x 375 JPEGs, as far as Pillow is here
    FOLDER/bundle.json              what it was made of

It is an error when the folder has more than 64 MB (64,000,000 bytes), unless --cases or --stand-in put something into it
that need not be carried. FOLDER is replaced; one that is no bundle is left alone. Of NVIDIA's files only cudart is inside; driver and
cuBLASLt are the machine's. Needs patchelf and binutils.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "..", ".."))
LIMIT = 64 * 10**6  # bytes of the folder's files

# Of the build folder, by the name in bin/.
PROGRAMS = {"lensd": "tests/gpu/lensd_bundled", "lensd_post": "tests/gpu/lensd_post"}
# What the first of them is, too, by these names.
TOOLS = ["bench_forward", "bench_image", "lensd_graphs", "lensd_conformance"]
MODULE = "engine/cuda/lensd_cuda.so"
STAND_IN = "tests/fake_cuda/lensd_fake_cuda.so"
SOURCES = ["tests/gpu", "models/needs.py", "tests/bench/common.py", "tests/bench/quantize.py", "tests/load/generators.py",
           "tests/conformance/baseline.txt", "models/export", "models/digits/model.onnx", "models/digits/labels.txt",
           "models/digits/preprocessor_config.json", "tests/data/digits/drawn", "LICENSE"]
# The C library's parts must come from one build, so they are the machine's or ours, never mixed.
GLIBC = re.compile(r"^(ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil)\.so")
DRIVER = re.compile(r"^(libcuda|libnvidia-.*)\.so")
ELSEWHERE = re.compile(r"^libcublas(Lt)?\.so")  # of the machine


def stop(sentence):
    sys.exit(f"bundle: {sentence}")


def run(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def needed(file):
    """Names of the libraries that a program or library asks for."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", file))


def glibc_version(files):
    """The newest version of the C library that one of them asks for."""
    versions = {(0,)}
    for file in files:
        for text in re.findall(r"GLIBC_([0-9.]+)", run("readelf", "-V", file)):
            versions.add(tuple(int(part) for part in text.split(".")))
    return ".".join(map(str, max(versions)))


def libraries_of(file, seen):
    """Adds name: path of everything that `file` needs, as this machine's linker finds it."""
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(
        filter(None, [os.environ.get("LD_LIBRARY_PATH"), *toolkit_folders()])))
    text = subprocess.run(["ldd", file], check=True, stdout=subprocess.PIPE, text=True,
                          env=environment).stdout
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if rest.startswith("not found"):
            if not (ELSEWHERE.match(name) or DRIVER.match(name)):
                stop(f"{file} needs {name}, which is not on this machine")
        elif rest:
            seen[name] = rest.rsplit(" (", 1)[0]
        elif "ld-linux" in name:
            path = name.split(" (")[0]
            seen[os.path.basename(path)] = path


def toolkit_folders():
    nvcc = shutil.which("nvcc")
    homes = [os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else []
    return [folder for home in homes + ["/usr/local/cuda"]
            for folder in [os.path.join(home, "lib64"), os.path.join(home, "targets/x86_64-linux/lib")]
            if os.path.isdir(folder)]


def put(source, target, rpath=None):
    """A copy without debug information, which looks for its libraries where rpath says. The old form of
    the entry counts for libraries of libraries and goes before LD_LIBRARY_PATH."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)
    if rpath:
        run("strip", "--strip-debug", "--strip-unneeded", target)
        run("patchelf", "--force-rpath", "--set-rpath", rpath, target)


def put_programs(options, folder):
    """Copies programs and modules; returns their paths in the build folder."""
    taken = []
    for name, built in PROGRAMS.items():
        path = os.path.join(options.build, built)
        if not os.path.exists(path):
            stop(f"{path} is not there; build it first (./dev bundle does)")
        put(path, os.path.join(folder, "bin", name), "$ORIGIN/../lib")
        taken.append(path)
    for name in TOOLS:
        os.symlink("lensd", os.path.join(folder, "bin", name))
    for name in (MODULE, STAND_IN):
        path = os.path.join(options.build, name)
        if os.path.exists(path) and (name == MODULE or options.stand_in):
            put(path, os.path.join(folder, "lib", "lensd", os.path.basename(name)), "$ORIGIN/..")
            taken.append(path)
    return taken


def put_libraries(taken, folder):
    """Fills lib and glibc; returns the file name of the loader."""
    found, loader = {}, None
    for path in taken:
        libraries_of(path, found)
    for name, path in sorted(found.items()):
        if ELSEWHERE.match(name) or DRIVER.match(name):
            continue
        if GLIBC.match(name):
            put(os.path.realpath(path), os.path.join(folder, "glibc", name))
            loader = name if name.startswith("ld-linux") else loader
        else:
            put(os.path.realpath(path), os.path.join(folder, "lib", name), "$ORIGIN")
    return loader


def put_start(folder, loader, blas):
    with open(os.path.join(HERE, "start.sh"), encoding="utf-8") as file:
        text = file.read().replace("@BLAS@", blas).replace("@LOADER@", loader)
    with open(os.path.join(folder, "start"), "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(os.path.join(folder, "start"), 0o755)
    for name in sorted(os.listdir(os.path.join(folder, "bin"))):
        os.symlink("start", os.path.join(folder, name))


def put_sources(options, folder):
    for name in SOURCES:
        source, target = os.path.join(ROOT, name), os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.c"))
        else:
            shutil.copy(source, target)
    if options.cases:
        shutil.copytree(options.cases, os.path.join(folder, "cases"))


def put_photos(folder, count):
    sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
    try:
        import common
        photos = [common.photo(seed=seed) for seed in range(count)]
    except ImportError as error:
        print(f"bundle: no photos: {error}", file=sys.stderr)
        return
    os.makedirs(os.path.join(folder, "photos"))
    for number, data in enumerate(photos):
        with open(os.path.join(folder, "photos", f"{number:02}.jpg"), "wb") as file:
            file.write(data)


def check_module(folder):
    """Lets the bundle load its CUDA module over the toolkit's stub of the driver, which has no GPU: a function
    that is missing shows here, not on the machine with the GPU. Returns whether it could be tried."""
    stub = next((path for where in toolkit_folders() for path in [os.path.join(where, "stubs", "libcuda.so")]
                 if os.path.exists(path)), None)
    if stub is None:
        return False
    with tempfile.TemporaryDirectory(prefix="lensd-stub-") as scratch:
        shutil.copyfile(stub, os.path.join(scratch, "libcuda.so.1"))
        environment = {name: value for name, value in os.environ.items() if name != "LENSD_CUDA_MODULE"}
        environment["LD_LIBRARY_PATH"] = ":".join([scratch, *toolkit_folders()])
        said = subprocess.run([os.path.join(folder, "lensd"), "devices"], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, env=environment, timeout=60, check=False).stdout
    if "does not load" in said or "has no CUDA module" in said or "another version" in said:
        stop(f"the CUDA module is of no use: {said.strip()[-300:]}")
    return "stub library" in said


def sizes(folder):
    """Bytes of the folder's files, links not followed: by name, the largest first."""
    found = {}
    for where, _, names in os.walk(folder):
        for path in (os.path.join(where, name) for name in names):
            if not os.path.islink(path):
                found[os.path.relpath(path, folder)] = os.path.getsize(path)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def size_sentence(folder, found, about):
    total, largest = sum(found.values()), list(found.items())[:6]
    return (f"{folder}: {total / 1e6:.1f} MB of {LIMIT / 1e6:.0f} ("
            + ", ".join(f"{os.path.basename(name)} {size / 1e6:.1f}" for name, size in largest)
            + f", {len(found) - len(largest)} others {(total - sum(size for _, size in largest)) / 1e6:.1f}); "
            + (f"CUDA code: {about['cuda_architectures']}; " if about["cuda_architectures"] else "")
            + f"needs glibc {about['needs_glibc']} or uses its own")


def architectures(build):
    """What the module was compiled for."""
    with open(os.path.join(build, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as file:
        chosen = next(option["value"] for option in json.load(file) if option["name"] == "gpu_arch")
    return " ".join(chosen) or "all from sm_75, and PTX"


def describe(options, folder, taken, blas):
    module = os.path.join(options.build, MODULE)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=False).stdout.strip() if shutil.which("git") else ""
    digest = hashlib.sha256()
    for path in taken:
        with open(path, "rb") as file:
            digest.update(file.read())
    about = {"made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit or None,
             "version": run(os.path.join(options.build, PROGRAMS["lensd"]), "--version").split()[-1],
             "programs_sha256": digest.hexdigest(), "cuda_module": os.path.exists(module),
             "cuda_architectures": architectures(options.build) if os.path.exists(module) else None,
             "cublas": blas or None,
             "needs_glibc": glibc_version(
                 os.path.join(where, name) for part in ("bin", "lib")
                 for where, _, names in os.walk(os.path.join(folder, part)) for name in names)}
    with open(os.path.join(folder, "bundle.json"), "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
        file.write("\n")
    return about


def pack(folder):
    """FOLDER.tar.xz beside the folder; its size."""
    archive = folder + ".tar.xz"
    with tarfile.open(archive + ".part", "w:xz", preset=6) as file:
        file.add(folder, os.path.basename(folder))
    os.replace(archive + ".part", archive)
    return os.path.getsize(archive)


def make(options):
    folder = os.path.abspath(options.folder)
    if os.path.isdir(folder) and os.listdir(folder) and not os.path.exists(os.path.join(folder, "bundle.json")):
        stop(f"{folder} is there and is no bundle; name another folder")
    partial = f"{folder}.part{os.getpid()}"
    try:
        taken = put_programs(options, partial)
        loader = put_libraries(taken, partial)
        module = os.path.join(options.build, MODULE)
        blas = next((name for name in needed(module) if ELSEWHERE.match(name)), "") \
            if os.path.exists(module) else ""
        put_start(partial, loader, blas)
        put_sources(options, partial)
        put_photos(partial, options.photos)
        about = describe(options, partial, taken, blas)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder, about


def archs(text):
    if not re.fullmatch(r"(sm|compute)_\d+[a-z]?(,(sm|compute)_\d+[a-z]?)*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list such as sm_90 or sm_80,sm_90, PTX being compute_90")
    return text


def build(arch):
    """A build of its own: optimised as a release is, and with the CUDA module where nvcc is."""
    folder = os.path.join(ROOT, "build-bundle")
    status = subprocess.run([os.path.join(ROOT, "dev"), "build", folder, "--buildtype=release", "-Dtests=disabled",
                             "-Dfaces=disabled", f"-Dgpu_arch={arch}"], check=False).returncode
    if status:
        sys.exit(status)
    return folder


def main():
    parser = argparse.ArgumentParser(prog="./dev bundle", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=archs, default="sm_80,sm_90",  # these two, and no more, fit into the limit
                        help="what the CUDA module has code for (default: %(default)s)")
    parser.add_argument("--build", help="take the programs of this build folder instead of building them")
    parser.add_argument("--cases", help="a folder of ONNX conformance cases to take along")
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--stand-in", action="store_true", help="take the stand-in for CUDA along, for tests")
    parser.add_argument("--no-archive", action="store_true")
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=os.path.join(ROOT, "build-bundle", "lensd-bundle"))
    options = parser.parse_args()
    options.build = options.build or build(options.arch)
    for tool in ("patchelf", "strip", "readelf", "ldd"):
        if not shutil.which(tool):
            stop(f"{tool} is not installed (Debian: patchelf, binutils, libc-bin)")
    folder, about = make(options)
    found = sizes(folder)
    print(size_sentence(folder, found, about))
    if not about["cuda_module"]:
        print("bundle: without the CUDA module: this build has none", file=sys.stderr)
    else:
        print("the CUDA module loads" if check_module(folder) else
              "bundle: whether the CUDA module loads was not tried: the toolkit has no stub of the driver",
              file=sys.stderr)
    # What tests make, of a build with line numbers and with the stand-in, is carried nowhere.
    # Cases were asked for.
    if sum(found.values()) > LIMIT and not options.stand_in and not options.cases:
        stop(f"that is more than {LIMIT / 1e6:.0f} MB; build for one architecture (--arch sm_90)")
    if not options.no_archive:
        print(f"{folder}.tar.xz: {pack(folder) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
