#!/usr/bin/python3
"""Makes tests/data/images: small images of every kind that server/image reads, and what Pillow makes
of them. The result is committed; run this again only to add a kind.

    python3 tests/data/make_images.py [FOLDER WITH PHOTOS]

Needs Debian 12's python3-pil, python3-numpy, python3-opencv, python3-torchvision (for its own size and
crop rules) and libjpeg-turbo-progs (cjpeg: odd samplings, restart markers, arithmetic coding).

    images/NAME.jpg, NAME.png     an input
    images/NAME.ppm               ImageOps.exif_transpose(Image.open(NAME)).convert("RGB")
    images/resize/CASE.ppm        Image.resize and friends, see resize_cases() and transform_cases()

The photos (the six of shared/models/squeezenet-imagenet/photos) are not copied, only what Pillow
makes of them is kept. Grey PNG of 16 bit is the one kind where the expectation is not Pillow's, which
clips everything above 255 to white: the high byte is expected, as for colour of 16 bit.
"""
import io
import math
import pathlib
import struct
import subprocess
import sys
import warnings
import zlib

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "models"))

import needs  # noqa: E402,F401
import numpy as np
import cv2
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tv

OUT = pathlib.Path(__file__).resolve().parent / "images"
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def photo(width, height, seed, noise=3.0):
    """Something like a photo: light, soft shapes, hard edges, saturated spots and a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(float)
    x, y = x / max(width - 1, 1), y / max(height - 1, 1)
    picture = np.stack([90 + 120 * x, 60 + 140 * y, 200 - 150 * x * y], axis=-1)
    for _ in range(12):
        cx, cy, radius = rng.random(3) * [1, 1, 0.35]
        colour = rng.integers(-20, 276, 3)
        distance = np.hypot(x - cx, y - cy) / (radius + 0.03)
        soft = rng.random() < 0.5
        weight = np.exp(-3 * distance**2) if soft else (distance < 1).astype(float)
        picture += weight[..., None] * (colour - picture)
    stripes = (np.floor((x + y) * 23) % 2) * (x > 0.6) * (y < 0.4)
    picture += stripes[..., None] * (255 - 2 * picture) * 0.8
    picture += rng.normal(0, noise, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def save_pair(name, data, expected=None):
    """An input, and its expectation as PPM (Pillow's unless given)."""
    (OUT / name).write_bytes(data)
    if expected is None:
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    Image.fromarray(expected).save((OUT / name).with_suffix(".ppm"))


# ---------------------------------------------------------------------------------------- JPEG

def pil_jpeg(picture, mode="RGB", **options):
    stream = io.BytesIO()
    Image.fromarray(picture).convert(mode).save(stream, "JPEG", **{"quality": 90, **options})
    return stream.getvalue()


def cjpeg(picture, *options):
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PPM")
    return subprocess.run(["cjpeg", "-quality", "90", *options], input=stream.getvalue(),
                          stdout=subprocess.PIPE, check=True).stdout


def segment(data, marker):
    """(begin, end) of the first segment with this marker, its two marker bytes included."""
    at = 2
    while data[at + 1] != marker:
        at += 2 + struct.unpack(">H", data[at + 2:at + 4])[0]
    return at, at + 2 + struct.unpack(">H", data[at + 2:at + 4])[0]


def ink_picture(picture):
    """CMYK with all four inks in use."""
    rng = np.random.default_rng(7)
    ink = np.dstack([255 - picture, picture[..., :1] // 2])
    return (ink + rng.integers(0, 8, ink.shape)).clip(0, 255).astype(np.uint8)


def jpegs():
    picture = photo(37, 29, 1)
    save_pair("jpeg_gray.jpg", pil_jpeg(picture, "L"))
    save_pair("jpeg_gray_progressive.jpg", pil_jpeg(picture, "L", progressive=True))
    for name, sampling in ("444", 0), ("422", 1), ("420", 2):
        save_pair(f"jpeg_{name}.jpg", pil_jpeg(picture, subsampling=sampling))
        save_pair(f"jpeg_{name}_progressive.jpg",
                  pil_jpeg(picture, subsampling=sampling, progressive=True))
    save_pair("jpeg_quality_5.jpg", pil_jpeg(picture, quality=5))
    save_pair("jpeg_quality_100.jpg", pil_jpeg(picture, quality=100, optimize=True))
    for width, height in (1, 1), (7, 13), (8, 8), (16, 16), (17, 1), (1, 33):
        save_pair(f"jpeg_{width}x{height}.jpg", pil_jpeg(photo(width, height, 2)))

    save_pair("jpeg_440.jpg", cjpeg(picture, "-sample", "1x2"))
    save_pair("jpeg_411.jpg", cjpeg(picture, "-sample", "4x1"))
    save_pair("jpeg_410.jpg", cjpeg(picture, "-sample", "4x2"))
    save_pair("jpeg_441.jpg", cjpeg(picture, "-sample", "1x4"))
    save_pair("jpeg_mixed.jpg", cjpeg(picture, "-sample", "2x2,2x1,1x2"))
    save_pair("jpeg_gray_2x2.jpg", cjpeg(picture, "-grayscale", "-sample", "2x2"))
    save_pair("jpeg_rgb.jpg", cjpeg(picture, "-rgb"))
    save_pair("jpeg_restart_rows.jpg", cjpeg(picture, "-restart", "1"))
    save_pair("jpeg_restart_blocks.jpg", cjpeg(picture, "-restart", "1B"))
    save_pair("jpeg_restart_progressive.jpg", cjpeg(picture, "-restart", "2B", "-progressive"))
    (OUT / "jpeg_scans.txt").write_text("0;\n1;\n2;\n")
    save_pair("jpeg_scans.jpg", cjpeg(picture, "-scans", str(OUT / "jpeg_scans.txt")))
    (OUT / "jpeg_scans.txt").unlink()
    (OUT / "refused_arithmetic.jpg").write_bytes(cjpeg(picture, "-arithmetic"))

    stream = io.BytesIO()
    Image.fromarray(ink_picture(picture), "CMYK").save(stream, "JPEG", quality=95)
    ink = stream.getvalue()
    begin, end = segment(ink, 0xEE)
    save_pair("jpeg_cmyk.jpg", ink)
    save_pair("jpeg_cmyk_no_adobe.jpg", ink[:begin] + ink[end:])
    # The last byte of Adobe's segment says how colour is stored: 2 is YCCK.
    save_pair("jpeg_ycck.jpg", ink[:end - 1] + b"\x02" + ink[end:])
    stream = io.BytesIO()
    Image.fromarray(ink_picture(picture), "CMYK").save(stream, "JPEG", quality=95,
                                                       progressive=True)
    save_pair("jpeg_cmyk_progressive.jpg", stream.getvalue())

    # What decoders warn about and show all the same.
    plain = pil_jpeg(picture, subsampling=2)
    begin, end = segment(plain, 0xC0)
    save_pair("jpeg_stray_bytes.jpg", plain[:begin] + b"\x11\x22\x33" + plain[begin:])
    save_pair("jpeg_fill_bytes.jpg", plain[:begin] + b"\xff\xff\xff" + plain[begin:])
    save_pair("jpeg_trailing.jpg", plain + b"\0" * 100 + b"trailing bytes")
    save_pair("jpeg_jfif_9.jpg", plain[:11] + b"\x09" + plain[12:])
    begin, end = segment(cjpeg(picture, "-rgb"), 0xEE)
    save_pair("jpeg_adobe_9.jpg",
              cjpeg(picture, "-rgb")[:end - 1] + b"\x09" + cjpeg(picture, "-rgb")[end:])


def exif_block(orientation, big=False, kind=3, entries_before=2):
    """TIFF with one directory, the orientation behind a few other entries."""
    order = ">" if big else "<"
    block = (b"MM\0*" if big else b"II*\0") + struct.pack(order + "IH", 8, entries_before + 1)
    for i in range(entries_before):
        block += struct.pack(order + "HHII", 0x0100 + i, 4, 1, 1234)
    value = struct.pack(order + {1: "Bxxx", 3: "Hxx", 4: "I"}[kind], orientation)
    return block + struct.pack(order + "HHI", 0x0112, kind, 1) + value + struct.pack(order + "I", 0)


def with_app1(data, *blocks):
    for block in reversed(blocks):
        body = b"Exif\0\0" + block
        data = data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]
    return data


def turned():
    picture = photo(29, 19, 3)
    plain = pil_jpeg(picture, subsampling=0)
    for orientation in range(1, 9):
        save_pair(f"exif_{orientation}.jpg",
                  with_app1(plain, exif_block(orientation, big=orientation % 2 == 0)))
    save_pair("exif_0.jpg", with_app1(plain, exif_block(0)))
    save_pair("exif_9.jpg", with_app1(plain, exif_block(9)))
    save_pair("exif_long.jpg", with_app1(plain, exif_block(6, kind=4)))
    save_pair("exif_two.jpg", with_app1(plain, exif_block(8), exif_block(3)))
    save_pair("exif_xmp_first.jpg", plain[:2] + b"\xff\xe1\x00\x20" + b"http://ns.adobe.com/xap/1.0/\0x"
              + with_app1(plain, exif_block(5))[2:])
    save_pair("exif_ink.jpg", with_app1((OUT / "jpeg_cmyk.jpg").read_bytes(), exif_block(6)))
    save_pair("exif_gray.jpg", with_app1(pil_jpeg(picture, "L"), exif_block(7, big=True)))
    for orientation in range(1, 9):
        save_pair(f"exif_png_{orientation}.png",
                  png(picture, 8, 2, before=chunk(b"eXIf", exif_block(orientation, orientation > 4))))
    save_pair("exif_png_after.png", png(picture, 8, 2, after=chunk(b"eXIf", exif_block(6))))


# ----------------------------------------------------------------------------------------- PNG

def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def filtered(lines, step):
    """Scanlines with the five filters of PNG in turn; step is the bytes of a pixel, at least 1."""
    previous = np.zeros_like(lines[0], dtype=int)
    stream = b""
    for i, line in enumerate(lines.astype(int)):
        left = np.concatenate([np.zeros(step, int), line[:-step] if len(line) > step else []])
        left = left[:len(line)].astype(int)
        corner = np.concatenate([np.zeros(step, int), previous[:-step]])[:len(line)].astype(int)
        guess = left + previous - corner
        a, b, c = abs(guess - left), abs(guess - previous), abs(guess - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, previous, corner))
        by = [0 * line, left, previous, (left + previous) // 2, paeth][i % 5]
        stream += bytes([i % 5]) + ((line - by) % 256).astype(np.uint8).tobytes()
        previous = line
    return stream


def pack(samples, depth):
    """[H, W, C] samples to [H, bytes] scanlines."""
    lines = samples.reshape(samples.shape[0], -1)
    if depth == 16:
        return lines.astype(">u2").view(np.uint8).reshape(lines.shape[0], -1)
    if depth == 8:
        return lines.astype(np.uint8)
    bits = (lines[..., None] >> np.arange(depth - 1, -1, -1)) & 1
    return np.packbits(bits.reshape(lines.shape[0], -1).astype(np.uint8), axis=1)


def png(samples, depth, colour, interlaced=False, before=b"", after=b""):
    if samples.ndim == 2:
        samples = samples[..., None]
    height, width, channels = samples.shape
    adam7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
             (0, 1, 1, 2)]
    stream = b""
    for x, y, step_x, step_y in adam7 if interlaced else [(0, 0, 1, 1)]:
        part = samples[y::step_y, x::step_x]
        if part.size:
            stream += filtered(pack(part, depth), max(1, depth * channels // 8))
    packed = zlib.compress(stream, 9)
    half = len(packed) // 2  # two IDAT chunks: data may be split anywhere
    return (b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
            + before + chunk(b"IDAT", packed[:half]) + chunk(b"IDAT", packed[half:]) + after
            + chunk(b"IEND", b""))


def pngs():
    picture = photo(37, 29, 4).astype(int)
    rng = np.random.default_rng(5)
    grey = picture.mean(axis=-1).astype(int)
    alpha = rng.integers(0, 256, grey.shape)
    fine = rng.integers(0, 256, (*picture.shape[:2], 4))  # low bytes of 16 bit samples
    for laced in False, True:
        end = "_interlaced" if laced else ""
        for depth in 1, 2, 4, 8:
            save_pair(f"png_gray_{depth}{end}.png", png(grey >> (8 - depth), depth, 0, laced))
            palette = rng.integers(0, 256, (1 << depth, 3), dtype=np.uint8)
            used = grey >> (8 - depth)
            plte = chunk(b"PLTE", palette.tobytes())
            save_pair(f"png_palette_{depth}{end}.png", png(used, depth, 3, laced, plte))
            clear = chunk(b"tRNS", bytes(range(0, 1 << depth)))
            save_pair(f"png_palette_{depth}_trns{end}.png",
                      png(used, depth, 3, laced, plte + clear))
        high = (grey << 8) | fine[..., 0]
        expected = np.repeat((high >> 8).astype(np.uint8)[..., None], 3, axis=-1)
        save_pair(f"png_gray_16{end}.png", png(high, 16, 0, laced), expected)
        save_pair(f"png_rgb_8{end}.png", png(picture, 8, 2, laced))
        save_pair(f"png_rgb_16{end}.png", png((picture << 8) | fine[..., :3], 16, 2, laced))
        both = np.dstack([grey, alpha])
        save_pair(f"png_gray_alpha_8{end}.png", png(both, 8, 4, laced))
        save_pair(f"png_gray_alpha_16{end}.png", png((both << 8) | fine[..., :2], 16, 4, laced))
        four = np.dstack([picture, alpha])
        save_pair(f"png_rgba_8{end}.png", png(four, 8, 6, laced))
        save_pair(f"png_rgba_16{end}.png", png((four << 8) | fine, 16, 6, laced))
    for depth in 1, 2, 4, 8:
        save_pair(f"png_gray_{depth}_trns.png",
                  png(grey >> (8 - depth), depth, 0, before=chunk(b"tRNS", b"\0\1")))
    save_pair("png_rgb_8_trns.png",
              png(picture, 8, 2, before=chunk(b"tRNS", struct.pack(">HHH", *picture[0, 0]))))
    save_pair("png_short_palette.png",
              png(grey // 3, 8, 3, before=chunk(b"PLTE", rng.bytes(3 * 86))))
    for width, height in (1, 1), (7, 13), (1, 33), (33, 1):
        for laced in False, True:
            save_pair(f"png_{width}x{height}{'_interlaced' if laced else ''}.png",
                      png(photo(width, height, 6).astype(int), 8, 2, laced))
    # Pillow refuses the file for its text; the picture is fine.
    bomb = b"Comment\0\0" + zlib.compress(b"\0" * (20 << 20), 9)
    tiny = photo(5, 4, 8)
    save_pair("png_text_bomb.png", png(tiny, 8, 2, before=chunk(b"zTXt", bomb)), tiny)
    save_pair("png_gamma.png", png(picture, 8, 2, before=chunk(b"gAMA", struct.pack(">I", 100000))))


# -------------------------------------------------------------------------------------- resize

def resize_cases():
    sources = {"a": photo(240, 180, 11, 1.0), "b": photo(133, 201, 12, 1.0),
               "c": photo(64, 48, 13, 1.0)}
    for name, source in sources.items():
        save_pair(f"source_{name}.png", png(source, 8, 2))
        (OUT / f"source_{name}.ppm").unlink()
    for name, width, height in ("a", 53, 41), ("b", 47, 64), ("c", 97, 71), ("c", 64, 20), \
            ("c", 3, 48):
        for filter_name, number in FILTERS.items():
            image = Image.fromarray(sources[name]).resize((width, height), number)
            image.save(OUT / "resize" / f"{name}_{filter_name}_{width}x{height}.ppm")
        linear(sources[name], width, height).save(OUT / "resize" / f"{name}_linear_{width}x{height}.ppm")
    return sources


def short_and_crop(image, short, crop, mode=InterpolationMode.BILINEAR):
    return tv.center_crop(tv.resize(image, short, mode), crop)


def linear(picture, width, height):
    """OpenCV's default: two neighbours a side, not antialiased."""
    return Image.fromarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR))


def letterbox(image, width, height, value=114):
    """Ultralytics' LetterBox(auto=False, scaleup=True, center=True)."""
    ratio = min(height / image.height, width / image.width)
    size = round(image.width * ratio), round(image.height * ratio)
    dw, dh = (width - size[0]) / 2, (height - size[1]) / 2
    canvas = Image.new("RGB", (width, height), (value,) * 3)
    canvas.paste(linear(np.asarray(image), *size), (round(dw - 0.1), round(dh - 0.1)))
    return canvas


def blurred_square(image, side):
    """OWLv2's: a black square around the photo, blurred where it shrinks, two neighbours a side, in floats."""
    larger = max(image.size)
    pixels = tv.pad(tv.to_tensor(image), [0, 0, larger - image.width, larger - image.height])
    sigma = (larger / side - 1) / 2
    if sigma > 0:
        pixels = tv.gaussian_blur(pixels, 2 * math.ceil(3 * sigma) + 1, sigma)
    pixels = tv.resize(pixels, [side, side], antialias=False)
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())


def transform_cases(sources):
    images = {name: Image.fromarray(source) for name, source in sources.items()}
    for name in images:
        short_and_crop(images[name], 64, [56, 56]).save(OUT / "resize" / f"{name}_short64_crop56.ppm")
        short_and_crop(images[name], 48, [70, 33]).save(
            OUT / "resize" / f"{name}_short48_crop33x70.ppm")
        blurred_square(images[name], 40).save(OUT / "resize" / f"{name}_blurred40.ppm")
        letterbox(images[name], 72, 61).save(OUT / "resize" / f"{name}_letterbox72x61.ppm")
    blurred_square(images["c"], 97).save(OUT / "resize" / "c_blurred97.ppm")
    # Larger than everything, in both directions, by even and odd differences.
    tv.center_crop(images["c"], [55, 73]).save(OUT / "resize" / "c_none_crop73x55.ppm")
    tv.center_crop(images["c"], [20, 73]).save(OUT / "resize" / "c_none_crop73x20.ppm")
    ImageOps.invert(images["a"]).resize((40, 30), Image.BICUBIC).save(
        OUT / "resize" / "a_invert_40x30.ppm")


def photo_cases(folder):
    for i, path in enumerate(sorted(folder.glob("*.jpeg"))):
        image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        bicubic = i % 2 == 1
        mode = InterpolationMode.BICUBIC if bicubic else InterpolationMode.BILINEAR
        short_and_crop(image, 64, [56, 56], mode).save(OUT / "resize" / f"photo_{path.stem}.ppm")
    image = Image.open(folder / "zebra.jpeg").convert("RGB")
    short_and_crop(image, 256, [224, 224]).save(OUT / "resize" / "photo_zebra_224.ppm")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # torchvision speaks of its own optional parts
    (OUT / "resize").mkdir(parents=True, exist_ok=True)
    jpegs()
    turned()
    pngs()
    transform_cases(resize_cases())
    if len(sys.argv) > 1:
        photo_cases(pathlib.Path(sys.argv[1]))
