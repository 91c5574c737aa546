#!/usr/bin/env python3
"""Adds BMP, GIF, WebP, TIFF, AVIF and HEIC to tests/data/images: small images, and what Pillow makes of them. The
result is committed; run this again only to add a kind, in an environment of its own:

    python3 -m venv pillow && pillow/bin/pip install pillow==13.0.0 pillow-heif==1.8.1 numpy
    pillow/bin/python tests/data/make_formats.py

    images/NAME.EXT     an input
    images/NAME.ppm     ImageOps.exif_transpose(Image.open(NAME)).convert("RGB")

Grey TIFF of 16 bits is the one kind where the expectation is not Pillow's, as with PNG: the high byte.
"""
import io
import pathlib
import struct

import numpy as np
import pillow_heif
from PIL import Image, ImageOps

pillow_heif.register_heif_opener()
OUT = pathlib.Path(__file__).resolve().parent / "images"


def photo(width, height, seed):
    """Soft shapes, a hard edge, saturated spots."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(float)
    x, y = x / max(width - 1, 1), y / max(height - 1, 1)
    picture = np.stack([90 + 120 * x, 60 + 140 * y, 200 - 150 * x * y], axis=-1)
    for _ in range(6):
        cx, cy, radius = rng.random(3) * [1, 1, 0.35]
        weight = np.exp(-3 * (np.hypot(x - cx, y - cy) / (radius + 0.03)) ** 2)
        picture += weight[..., None] * (rng.integers(-20, 276, 3) - picture)
    picture += rng.normal(0, 3, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def save(name, data, expected=None):
    (OUT / name).write_bytes(data)
    if expected is None:
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    else:
        expected = Image.fromarray(expected)
    expected.save((OUT / name).with_suffix(".ppm"))


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


PICTURE = photo(37, 29, 4)
RGB = Image.fromarray(PICTURE)
GREY = RGB.convert("L")
ALPHA = np.random.default_rng(5).integers(0, 256, PICTURE.shape[:2]).astype(np.uint8)
RGBA = Image.fromarray(np.dstack([PICTURE, ALPHA]))


# ---------------------------------------------------------------------------------------- BMP

def bmp(bits, rows, palette=b"", compression=0, masks=b"", height=29, oldest=False, extra=b""):
    if oldest:
        head = struct.pack("<IHHHH", 12, 37, height, 1, bits)
    else:
        head = struct.pack("<IiiHHIIiiII", 40 + len(extra), 37, height, 1, bits, compression, len(rows), 0, 0,
                           len(palette) // 4, 0) + (masks + extra[len(masks):] if extra else masks)
    at = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(rows), 0, 0, at) + head + palette + rows


def padded(rows):
    """[H, bytes] to the rows of a BMP, from the bottom."""
    width = -rows.shape[1] % 4
    return np.pad(rows, ((0, 0), (0, width)))[::-1].tobytes()


def packed(index, bits):
    planes = (index[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(planes.reshape(index.shape[0], -1).astype(np.uint8), axis=1)


def bmps():
    rng = np.random.default_rng(6)
    grey = np.asarray(GREY)
    for bits in 1, 4, 8:
        colours = rng.integers(0, 256, (1 << bits, 4)).astype(np.uint8)
        save(f"bmp_palette_{bits}.bmp", bmp(bits, padded(packed(grey >> (8 - bits), bits)), colours.tobytes()))
        oldest = np.ascontiguousarray(colours[:, :3]).tobytes()
        save(f"bmp_oldest_{bits}.bmp", bmp(bits, padded(packed(grey >> (8 - bits), bits)), oldest, oldest=True))
    bgr = PICTURE[..., ::-1]
    save("bmp_24.bmp", bmp(24, padded(bgr.reshape(29, -1))))
    save("bmp_24_top_down.bmp", bmp(24, padded(bgr.reshape(29, -1)[::-1]), height=-29))
    save("bmp_32.bmp", bmp(32, padded(np.dstack([bgr, ALPHA]).reshape(29, -1))))
    wide = PICTURE.astype(np.uint32)
    five = (wide[..., 0] >> 3) << 10 | (wide[..., 1] >> 3) << 5 | wide[..., 2] >> 3
    six = (wide[..., 0] >> 3) << 11 | (wide[..., 1] >> 2) << 5 | wide[..., 2] >> 3
    save("bmp_16.bmp", bmp(16, padded(five.astype("<u2").view(np.uint8))))
    save("bmp_565.bmp", bmp(16, padded(six.astype("<u2").view(np.uint8)), compression=3,
                            masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F)))
    rgbx = wide[..., 0] << 24 | wide[..., 1] << 16 | wide[..., 2] << 8
    save("bmp_masks.bmp", bmp(32, padded(rgbx.astype("<u4").view(np.uint8)), compression=3,
                              masks=struct.pack("<III", 0xFF000000, 0xFF0000, 0xFF00)))
    save("bmp_pillow.bmp", encoded(RGB, "BMP"))
    colours = rng.integers(0, 256, (256, 4)).astype(np.uint8).tobytes()
    stream = b""
    for y in range(28, -1, -1):
        row = grey[y]
        stream += bytes([5, row[0]])  # a run
        stream += bytes([0, 7]) + row[5:12].tobytes() + b"\0"  # as they are
        stream += bytes([25, row[20]]) + b"\0\0"
    save("bmp_runs_8.bmp", bmp(8, stream + b"\0\1", colours, 1))
    stream = b""
    for y in range(28, -1, -1):
        row = grey[y] >> 4
        stream += bytes([6, row[0] << 4 | row[1]]) + bytes([0, 5, row[6] << 4 | row[7], row[8] << 4 | row[9],
                                                            row[10] << 4, 0]) + bytes([26, 0x12]) + b"\0\0"
    save("bmp_runs_4.bmp", bmp(4, stream + b"\0\1", colours[:64], 2))


# ---------------------------------------------------------------------------------------- GIF

def gif_frame_at(data, left, top, width, height):
    """The same GIF with a larger screen around its picture."""
    at = data.index(b"\x2c", 13 + 3 * (2 << (data[10] & 7) if data[10] & 0x80 else 0))
    data = bytearray(data)
    data[6:10] = struct.pack("<HH", width, height)
    data[at + 1:at + 5] = struct.pack("<HH", left, top)
    return bytes(data)


def gifs():
    eight = RGB.quantize(256)
    for colours in 2, 4, 16, 256:
        save(f"gif_{colours}.gif", encoded(RGB.quantize(colours), "GIF", interlace=0))
    save("gif_interlaced.gif", encoded(eight, "GIF", interlace=1))
    noise = Image.fromarray(np.random.default_rng(7).integers(0, 256, (97, 83)).astype(np.uint8))
    save("gif_full_table.gif", encoded(noise, "GIF", interlace=0))
    save("gif_transparent.gif", encoded(eight, "GIF", interlace=0, transparency=3))
    frames = [photo(37, 29, seed) for seed in (8, 9)]
    save("gif_animated.gif", encoded(Image.fromarray(frames[0]), "GIF", save_all=True,
                                     append_images=[Image.fromarray(frames[1])], duration=40))
    save("gif_placed.gif", gif_frame_at(encoded(eight, "GIF", interlace=0), 5, 3, 50, 40))
    save("gif_outside.gif", gif_frame_at(encoded(eight, "GIF", interlace=0), 5, 3, 20, 10))
    save("gif_1x1.gif", encoded(Image.fromarray(photo(1, 1, 3)), "GIF"))
    save("gif_grey.gif", encoded(GREY, "GIF"))


# --------------------------------------------------------------------------------- the others

def webps():
    save("webp_lossy.webp", encoded(RGB, "WEBP", quality=80))
    save("webp_lossless.webp", encoded(RGB, "WEBP", lossless=True))
    save("webp_alpha.webp", encoded(RGBA, "WEBP", quality=80))
    save("webp_lossless_alpha.webp", encoded(RGBA, "WEBP", lossless=True, exact=True))
    save("webp_1x1.webp", encoded(Image.fromarray(photo(1, 1, 3)), "WEBP"))
    for orientation in 3, 6:
        save(f"webp_exif_{orientation}.webp", encoded(RGB, "WEBP", quality=80, exif=exif(orientation)))
    second = Image.fromarray(photo(37, 29, 8))
    save("webp_animated.webp", encoded(RGB, "WEBP", save_all=True, append_images=[second], duration=40, quality=70))
    # A first frame that does not cover the canvas.
    inner = Image.fromarray(np.pad(photo(20, 16, 9), ((6, 7), (8, 9), (0, 0)))).convert("RGBA")
    pixels = np.asarray(inner).copy()
    pixels[..., 3] = 0
    pixels[6:22, 8:28, 3] = 255
    save("webp_placed.webp", encoded(Image.fromarray(pixels), "WEBP", save_all=True, append_images=[second],
                                     duration=40, lossless=True, minimize_size=True))


def tiffs():
    for name, compression in (("none", None), ("lzw", "tiff_lzw"), ("deflate", "tiff_adobe_deflate"),
                              ("packbits", "packbits"), ("jpeg", "jpeg")):
        save(f"tiff_{name}.tif", encoded(RGB, "TIFF", **({"compression": compression} if compression else {})))
    save("tiff_grey.tif", encoded(GREY, "TIFF"))
    save("tiff_bits.tif", encoded(GREY.convert("1"), "TIFF", compression="group4"))
    save("tiff_palette.tif", encoded(RGB.quantize(64), "TIFF"))
    save("tiff_cmyk.tif", encoded(RGB.convert("CMYK"), "TIFF", compression="tiff_lzw"))
    save("tiff_alpha.tif", encoded(RGBA, "TIFF", compression="tiff_lzw"))
    high = np.asarray(GREY).astype(np.uint16) * 256 + ALPHA
    save("tiff_grey_16.tif", encoded(Image.fromarray(high), "TIFF"), np.repeat((high >> 8).astype(np.uint8)[..., None], 3, 2))
    for orientation in 3, 6:
        save(f"tiff_exif_{orientation}.tif", encoded(RGB, "TIFF", tiffinfo={274: orientation}))
    second = Image.fromarray(photo(37, 29, 8))
    save("tiff_pages.tif", encoded(RGB, "TIFF", save_all=True, append_images=[second]))
    save("tiff_big.tif", encoded(RGB, "TIFF", big_tiff=True))
    save("tiff_big_6.tif", encoded(RGB, "TIFF", big_tiff=True, tiffinfo={274: 6}))


def heifs():
    even = Image.fromarray(photo(64, 48, 4))
    for form, name in (("AVIF", "avif"), ("HEIF", "heic")):
        for chroma in "420", "422", "444":
            how = {"subsampling": f"{chroma[0]}:{chroma[1]}:{chroma[2]}"} if form == "AVIF" else {"chroma": chroma}
            save(f"{name}_{chroma}.{name}", encoded(even, form, quality=80, **how))
        save(f"{name}_odd.{name}", encoded(RGB, form, quality=80))
        save(f"{name}_grey.{name}", encoded(GREY, form, quality=80))
        save(f"{name}_alpha.{name}", encoded(RGBA, form, quality=80))
        for orientation in 3, 6:
            save(f"{name}_exif_{orientation}.{name}", encoded(even, form, quality=80, exif=exif(orientation).tobytes()))


if __name__ == "__main__":
    for make in bmps, gifs, webps, tiffs, heifs:
        make()
    print(len(list(OUT.glob("*.ppm"))), "expectations in", OUT)
