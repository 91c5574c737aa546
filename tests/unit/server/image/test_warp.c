/* Rectified quadrilaterals beside OpenCV's. */
#include <criterion/criterion.h>
#include <math.h>

#include "engine/base/size.h"
#include "models/tasks/crops.h"
#include "server/image/warp.h"
#include "tests/unit/models/tasks/golden_task.h"

enum { WIDTH = 24, HEIGHT = 18 };

static uint8_t pixels[HEIGHT * WIDTH * 3];

static struct image a_picture(void)
{
    for (unsigned y = 0; y < HEIGHT; y++)
        for (unsigned x = 0; x < WIDTH; x++)
            for (unsigned c = 0; c < 3; c++)
                pixels[(y * WIDTH + x) * 3 + c] = (uint8_t)(x * 37 + y * 91 + c * 50 + x * y * 7);
    return (struct image){.info = {.width = WIDTH, .height = HEIGHT, .orientation = 1},
                          .width = WIDTH,
                          .height = HEIGHT,
                          .stride = WIDTH * 3,
                          .pixels = pixels};
}

/* Numbers of OpenCV 4.14, with numpy:
 *     cv2.warpPerspective(picture, cv2.getPerspectiveTransform(corners, [[0, 0], [w, 0], [w, h],
 * [0, h]]), (w, h), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE).flatten() */
Test(warp, equals_opencv_inside_the_picture)
{
    static const uint8_t wanted[] = {
        47,  97,  147, 130, 149, 199, 126, 176, 76,  141, 123, 178, 149, 219, 47,  231, 65,  38,
        88,  46,  142, 66,  172, 158, 193, 179, 83,  209, 38,  101, 172, 195, 2,   192, 62,  118,
        128, 171, 73,  223, 50,  107, 51,  101, 151, 147, 141, 199, 123, 167, 53,  123, 83,  124,
        108, 156, 245, 192, 237, 157, 30,  73,  115, 148, 116, 134, 88,  137, 136, 152, 197, 182,
        159, 210, 33,  22,  93,  143, 155, 213, 82,  251, 67,  105, 82,  84,  140, 112, 184, 213,
        147, 110, 173, 137, 102, 90,  207, 152, 54,  178, 55,  132, 84,  193, 202, 112, 94,  168,
        115, 120, 194, 165, 180, 229, 199, 11,  61,  45,  113, 184, 164, 48,  136, 123, 111, 81,
        56,  166, 202, 210, 66,  116, 100, 68,  144, 177, 135, 193, 159, 37,  87,  67,  165, 215,
        195, 95,  145, 101, 33,  93,  171, 230, 88,  109, 169, 75,  37,  89,  99,  72,  120, 199,
        159, 194, 55,  59,  155, 201, 214, 54,  106, 82,  69,  119, 127, 155, 205, 169, 34,  82,
        77,  91,  151, 116, 166, 60,  116, 166, 216, 236, 32,  82,  105, 187, 145, 78,  128, 74,
        104, 172, 225, 201, 7,   57,  60,  147, 197, 208, 89,  138};
    const float corners[4][2] = {{3, 4}, {12, 2}, {14, 8}, {4, 11}};
    const struct image picture = a_picture();
    uint8_t found[10 * 7 * 3];
    warp_quadrilateral(&picture, corners, 10, 7, found);
    cr_assert_eq(sizeof found, sizeof wanted);
    cr_expect_arr_eq(found, wanted, sizeof wanted);
}

Test(warp, repeats_the_edge_outside)
{
    static const uint8_t wanted[] = {
        0,   50,  100, 0,   46,  96,  0,   45,  95,  36,  85,  140, 86,  134, 178, 144, 120, 179,
        58,  120, 160, 71,  120, 146, 9,   59,  111, 27,  77,  144, 47,  95,  175, 115, 184, 240,
        171, 226, 26,  184, 33,  93,  57,  126, 184, 154, 224, 57,  122, 172, 165, 157, 207, 115,
        173, 245, 64,  245, 66,  68,  61,  58,  139, 87,  183, 140, 224, 123, 127, 113, 84,  127,
        139, 189, 30,  93,  143, 51,  37,  93,  77,  44,  94,  144, 139, 160, 205, 164, 168, 117,
        118, 133, 156, 145, 200, 124, 29,  79,  175, 54,  104, 199, 81,  131, 221, 129, 196, 133,
        178, 132, 27,  148, 76,  116, 152, 147, 61,  184, 38,  106};
    const float corners[4][2] = {{-2, -1}, {6, 1}, {5, 6}, {-3, 4.5f}};
    const struct image picture = a_picture();
    uint8_t found[8 * 5 * 3];
    warp_quadrilateral(&picture, corners, 8, 5, found);
    cr_assert_eq(sizeof found, sizeof wanted);
    cr_expect_arr_eq(found, wanted, sizeof wanted);
}

Test(warp, a_rectangle_of_whole_pixels_is_copied)
{
    const float corners[4][2] = {{5, 3}, {9, 3}, {9, 6}, {5, 6}};
    const struct image picture = a_picture();
    uint8_t found[4 * 3 * 3];
    warp_quadrilateral(&picture, corners, 4, 3, found);
    for (size_t y = 0; y < 3; y++)
        cr_expect_arr_eq(found + y * 12, pixels + ((3 + y) * WIDTH + 5) * 3, 12);
}

/* Lines, points, and what is no number, stay within the memory. */
Test(warp, degenerate_corners)
{
    const float cases[][4][2] = {{{4, 4}, {4, 4}, {4, 4}, {4, 4}},
                                 {{0, 0}, {9, 9}, {9, 9}, {0, 0}},
                                 {{0, 0}, {9, 9}, {9, 0}, {0, 9}},
                                 {{-1e30f, 0}, {1e30f, 0}, {1e30f, 1e30f}, {0, NAN}}};
    const struct image picture = a_picture();
    uint8_t found[6 * 4 * 3];
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        warp_quadrilateral(&picture, cases[i], 6, 4, found);
    const float point[4][2] = {{4, 4}, {4, 4}, {4, 4}, {4, 4}};
    warp_quadrilateral(&picture, point, 6, 4, found);
    cr_expect_arr_eq(found + 3 * 23, pixels + (4 * WIDTH + 4) * 3, 3);
}

/* Numbers of scipy 1.17, for each channel:
 *     affine_transform(channel, [[.61, -.13], [.11, .37]], offset=[.3, -.2], output_shape=(3, 5),
 * order=1)
 */
Test(warp, equals_scipy_where_positions_are_not_rounded)
{
    uint8_t three_by_two[] = {0,   10, 255, 200, 20, 3, 90, 30, 77,
                              250, 40, 128, 30,  50, 1, 60, 60, 254};
    static const uint8_t wanted[] = {0, 0, 0, 64,  17, 194, 109, 17, 117, 0,   0,  0, 0,   0,  0,
                                     0, 0, 0, 159, 36, 113, 115, 36, 61,  111, 36, 5, 112, 36, 58,
                                     0, 0, 0, 0,   0,  0,   0,   0,  0,   0,   0,  0, 45,  55, 128};
    const double map[] = {.37, .11, -.2, -.13, .61, .3}, none[] = {NAN, 0, 0, 0, 0, 1e300};
    const struct image picture = {.width = 3, .height = 2, .stride = 9, .pixels = three_by_two};
    uint8_t found[sizeof wanted];
    warp_affine(&picture, map, 5, 3, false, found);
    cr_expect_arr_eq(found, wanted, sizeof wanted);
    warp_affine(&picture, none, 5, 3, false, found);
    for (size_t i = 0; i < sizeof found; i++)
        cr_expect_eq(found[i], 0);
}

Test(warp, turns)
{
    const uint8_t two_by_three[] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5};
    const uint8_t wanted[] = {1, 1, 1, 3, 3, 3, 5, 5, 5, 0, 0, 0, 2, 2, 2, 4, 4, 4};
    uint8_t found[sizeof two_by_three];
    image_orient(two_by_three, 6, 2, 3, 8, found);
    cr_expect_arr_eq(found, wanted, sizeof wanted);
    const uint8_t over[] = {4, 4, 4, 2, 2, 2};
    image_orient(two_by_three + 6, 6, 1, 2, 3, found);
    cr_expect_arr_eq(found, over, sizeof over);
}

/* Three faces as tests/tasks/make_apps_golden.py aligns them: Umeyama by a singular value
 * decomposition, and cv2.warpAffine() of OpenCV 4.12. The second leaves the picture, the third is
 * upside down and mirrored. */
Test(warp, equals_opencv_where_faces_are_aligned)
{
    enum { FACES = 3, POINTS = 5, SIDE = 28 };
    const struct task_rows points = golden_rows("aligned_points"),
                           maps = golden_rows("aligned_maps"),
                           wanted = golden_rows("aligned_pixels"),
                           target = golden_rows("aligned_template");
    const struct image picture = a_picture();
    struct align_template to = {.width = SIDE, .height = SIDE, .count = POINTS};
    struct task_point own[FACES * POINTS];
    const struct detections found = {.points = own, .point_count = POINTS, .count = FACES};
    uint8_t pixels_found[SIDE * SIDE * 3];
    struct error err;
    for (size_t i = 0; i < POINTS; i++)
        memcpy(to.points[i], target.data + 2 * i, sizeof to.points[i]);
    for (size_t i = 0; i < FACES * POINTS; i++)
        own[i] = (struct task_point){points.data[2 * i], points.data[2 * i + 1], -1};
    for (size_t f = 0; f < FACES; f++) {
        struct crop crop;
        cr_assert_eq(crop_align(&found, f, &to, &crop, &err), STATUS_OK, "%s", err.message);
        for (size_t k = 0; k < 6; k++)
            cr_expect_float_eq(crop.map[k], (double)maps.data[6 * f + k], 1e-4, "face %zu", f);
        warp_affine(&picture, crop.map, SIDE, SIDE, true, pixels_found);
        for (size_t i = 0; i < sizeof pixels_found; i++)
            cr_expect_eq(pixels_found[i], (uint8_t)wanted.data[f * sizeof pixels_found + i],
                         "byte %zu of face %zu", i, f);
    }
    to.count = 4;
    struct crop crop;
    cr_expect_eq(crop_align(&found, 0, &to, &crop, &err), STATUS_INVALID);
    cr_expect_str_eq(err.message, "the box has 5 points to align, not 4");
    to.count = POINTS;
    for (size_t i = 0; i < POINTS; i++)
        own[i] = (struct task_point){3, 4, -1};
    cr_expect_eq(crop_align(&found, 0, &to, &crop, &err), STATUS_INVALID);
    cr_expect_str_eq(err.message, "all points of the box are at the same place");
}
