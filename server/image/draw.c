/* Draws lines by their distance from each pixel: coverage falls from 1 to 0 within one pixel around
 * the edge. Letters are strokes, so they are lines, too. */
#include "server/image/draw.h"

#include <math.h>

#include "engine/base/size.h"

/* Lines with larger coordinates are not drawn, so that conversions to integers stay in range. */
#define FARTHEST 1e6f

struct rgb_colour draw_colour(uint32_t index)
{
    /* Hues in steps of the golden angle, at full saturation and 45 % lightness. */
    const float hue = fmodf((float)(index % 360) * 137.508f + 210, 360) / 30;
    uint8_t parts[3];
    static const float shifts[] = {0, 8, 4};
    for (int i = 0; i < 3; i++) {
        const float k = fmodf(shifts[i] + hue, 12);
        const float slope = fminf(fminf(k - 3, 9 - k), 1);
        parts[i] = (uint8_t)lrintf(255 * (0.45f - 0.4f * fmaxf(slope, -1)));
    }
    return (struct rgb_colour){parts[0], parts[1], parts[2]};
}

static uint8_t mix(uint8_t under, uint8_t over, float share)
{
    return (uint8_t)lrintf((float)under + share * ((float)over - (float)under));
}

static void mix_pixel(uint8_t *pixel, struct rgb_colour colour, float share)
{
    pixel[0] = mix(pixel[0], colour.red, share);
    pixel[1] = mix(pixel[1], colour.green, share);
    pixel[2] = mix(pixel[2], colour.blue, share);
}

/* Rounds `at` up to an integer, and limits it to 0 … `side`. */
static uint32_t first_pixel(float at, uint32_t side)
{
    const float up = ceilf(at);
    return !(up > 0) ? 0 : up >= (float)side ? side : (uint32_t)up;
}

/* A line from (x, y) along (dx, dy). */
struct stroke {
    float x, y, dx, dy, square; /* square: the square of the line's length */
    float reach;                /* half the line's thickness */
};

static float distance_to(const struct stroke *stroke, float x, float y)
{
    const float along = (x - stroke->x) * stroke->dx + (y - stroke->y) * stroke->dy;
    const float share = stroke->square > 0 ? fminf(fmaxf(along / stroke->square, 0), 1) : 0;
    return hypotf(x - stroke->x - share * stroke->dx, y - stroke->y - share * stroke->dy);
}

/* Finds the columns that the line may touch in the row of pixels whose centre is at y. */
static void columns_of(const struct stroke *stroke, float y, float *ret_first, float *ret_last)
{
    const float reach = stroke->reach + 1;
    float from = 0, to = 1;
    if (fabsf(stroke->dy) > 1e-6f) {
        const float a = (y - reach - stroke->y) / stroke->dy;
        const float b = (y + reach - stroke->y) / stroke->dy;
        from = fmaxf(0, fminf(a, b));
        to = fminf(1, fmaxf(a, b));
    }
    const float begin = stroke->x + from * stroke->dx, end = stroke->x + to * stroke->dx;
    *ret_first = fminf(begin, end) - reach;
    *ret_last = fmaxf(begin, end) + reach;
}

void draw_line(const struct canvas *canvas, float x1, float y1, float x2, float y2, float thickness,
               struct rgb_colour colour)
{
    if (!(fabsf(x1) < FARTHEST && fabsf(y1) < FARTHEST && fabsf(x2) < FARTHEST &&
          fabsf(y2) < FARTHEST && thickness > 0 && thickness < FARTHEST))
        return;
    const struct stroke stroke = {
        x1, y1, x2 - x1, y2 - y1, (x2 - x1) * (x2 - x1) + (y2 - y1) * (y2 - y1), thickness / 2};
    const float reach = stroke.reach + 1;
    const uint32_t end = first_pixel(fmaxf(y1, y2) + reach, canvas->height);
    for (uint32_t y = first_pixel(fminf(y1, y2) - reach, canvas->height); y < end; y++) {
        float left, right;
        columns_of(&stroke, (float)y + 0.5f, &left, &right);
        const uint32_t last = first_pixel(right, canvas->width);
        for (uint32_t x = first_pixel(left, canvas->width); x < last; x++) {
            const float distance = distance_to(&stroke, (float)x + 0.5f, (float)y + 0.5f);
            const float share = fminf(stroke.reach + 0.5f - distance, 1);
            if (share > 0)
                mix_pixel(canvas->pixels + y * canvas->stride + 3 * (size_t)x, colour, share);
        }
    }
}

void draw_fill(const struct canvas *canvas, float x1, float y1, float x2, float y2,
               struct rgb_colour colour)
{
    const uint32_t bottom = first_pixel(y2 - 0.5f, canvas->height);
    const uint32_t left = first_pixel(x1 - 0.5f, canvas->width);
    const uint32_t right = first_pixel(x2 - 0.5f, canvas->width);
    for (uint32_t y = first_pixel(y1 - 0.5f, canvas->height); y < bottom; y++)
        for (uint32_t x = left; x < right; x++)
            mix_pixel(canvas->pixels + y * canvas->stride + 3 * (size_t)x, colour, 1);
}

void draw_column(const struct canvas *canvas, uint32_t x, uint32_t y, uint32_t count, float opacity,
                 struct rgb_colour colour)
{
    if (x >= canvas->width || y >= canvas->height)
        return;
    if (count > canvas->height - y)
        count = canvas->height - y;
    uint8_t *pixel = canvas->pixels + y * canvas->stride + 3 * (size_t)x;
    for (uint32_t i = 0; i < count; i++, pixel += canvas->stride)
        mix_pixel(pixel, colour, opacity);
}

/* The letters of labels: Hershey's Roman Simplex, as strokes.
 *
 * The Hershey Fonts were originally created by Dr. A. V. Hershey while working at the U. S.
 * National Bureau of Standards. The format of the font data in their distribution was originally
 * created by James Hurt, Cognition, Inc., 900 Technology Park Drive, Billerica, MA 01821. The font
 * data may be used by anyone for any purpose, as long as these acknowledgements are distributed
 * with it. */
/* For each printable character of ASCII, from the space to the tilde: its left and right edge, then
 * x and y of each point of its strokes, with a space between two strokes. The character 'R' is the
 * coordinate 0, 'S' is 1, 'Q' is -1. */
static const char *const draw_font[] = {
    "JZ",
    "MWRFRT RYQZR[SZRY",
    "JZNFNM VFVM",
    "H]SBLb YBRb LOZO KUYU",
    "H\\PBP_ TBT_ YIWGTFPFMGKIKKLMMNOOUQWRXSYUYXWZT[P[MZKX",
    "F^[FI[ NFPHPJOLMMKMIKIIJGLFNFPGSHVHYG[F WTUUTWTYV[X[ZZ[X[VYTWT",
    "E_\\O\\N[MZMYNXPVUTXRZP[L[JZIYHWHUISJRQNRMSKSIRGPFNGMIMKNNPQUXWZY[[[\\Z\\Y",
    "MWRHQGRFSGSIRKQL",
    "KYVBTDRGPKOPOTPYR]T`Vb",
    "KYNBPDRGTKUPUTTYR]P`Nb",
    "JZRLRX MOWU WOMU",
    "E_RIR[ IR[R",
    "NVSWRXQWRVSWSYQ[",
    "E_IR[R",
    "NVRVQWRXSWRV",
    "G][BIb",
    "H\\QFNGLJKOKRLWNZQ[S[VZXWYRYOXJVGSFQF",
    "H\\NJPISFS[",
    "H\\LKLJMHNGPFTFVGWHXJXLWNUQK[Y[",
    "H\\MFXFRNUNWOXPYSYUXXVZS[P[MZLYKW",
    "H\\UFKTZT UFU[",
    "H\\WFMFLOMNPMSMVNXPYSYUXXVZS[P[MZLYKW",
    "H\\XIWGTFRFOGMJLOLTMXOZR[S[VZXXYUYTXQVOSNRNOOMQLT",
    "H\\YFO[ KFYF",
    "H\\PFMGLILKMMONSOVPXRYTYWXYWZT[P[MZLYKWKTLRNPQOUNWMXKXIWGTFPF",
    "H\\XMWPURRSQSNRLPKMKLLINGQFRFUGWIXMXRWWUZR[P[MZLX",
    "NVROQPRQSPRO RVQWRXSWRV",
    "NVROQPRQSPRO SWRXQWRVSWSYQ[",
    "F^ZIJRZ[",
    "E_IO[O IU[U",
    "F^JIZRJ[",
    "I[LKLJMHNGPFTFVGWHXJXLWNVORQRT RYQZR[SZRY",
    ("E`WNVLTKQKOLNMMPMSNUPVSVUUVS QKOMNPNSOUPV "
     "WKVSVUXVZV\\T]Q]O\\L[JYHWGTFQFNGLHJJILHOHRIUJWLYNZQ[T[WZYYZX XKWSWUXV"),
    "I[RFJ[ RFZ[ MTWT",
    "G\\KFK[ KFTFWGXHYJYLXNWOTP KPTPWQXRYTYWXYWZT[K[",
    "H]ZKYIWGUFQFOGMILKKNKSLVMXOZQ[U[WZYXZV",
    "G\\KFK[ KFRFUGWIXKYNYSXVWXUZR[K[",
    "H[LFL[ LFYF LPTP L[Y[",
    "HZLFL[ LFYF LPTP",
    "H]ZKYIWGUFQFOGMILKKNKSLVMXOZQ[U[WZYXZVZS USZS",
    "G]KFK[ YFY[ KPYP",
    "NVRFR[",
    "JZVFVVUYTZR[P[NZMYLVLT",
    "G\\KFK[ YFKT POY[",
    "HYLFL[ L[X[",
    "F^JFJ[ JFR[ ZFR[ ZFZ[",
    "G]KFK[ KFY[ YFY[",
    "G]PFNGLIKKJNJSKVLXNZP[T[VZXXYVZSZNYKXIVGTFPF",
    "G\\KFK[ KFTFWGXHYJYMXOWPTQKQ",
    "G]PFNGLIKKJNJSKVLXNZP[T[VZXXYVZSZNYKXIVGTFPF SWY]",
    "G\\KFK[ KFTFWGXHYJYLXNWOTPKP RPY[",
    "H\\YIWGTFPFMGKIKKLMMNOOUQWRXSYUYXWZT[P[MZKX",
    "JZRFR[ KFYF",
    "G]KFKULXNZQ[S[VZXXYUYF",
    "I[JFR[ ZFR[",
    "F^HFM[ RFM[ RFW[ \\FW[",
    "H\\KFY[ YFK[",
    "I[JFRPR[ ZFRP",
    "H\\YFK[ KFYF K[Y[",
    "KYOBOb PBPb OBVB ObVb",
    "KYKFY^",
    "KYTBTb UBUb NBUB NbUb",
    "JZRDJR RDZR",
    "I[Ib[b",
    "NVSKQMQORPSORNQO",
    "I\\XMX[ XPVNTMQMONMPLSLUMXOZQ[T[VZXX",
    "H[LFL[ LPNNPMSMUNWPXSXUWXUZS[P[NZLX",
    "I[XPVNTMQMONMPLSLUMXOZQ[T[VZXX",
    "I\\XFX[ XPVNTMQMONMPLSLUMXOZQ[T[VZXX",
    "I[LSXSXQWOVNTMQMONMPLSLUMXOZQ[T[VZXX",
    "MYWFUFSGRJR[ OMVM",
    "I\\XMX]W`VaTbQbOa XPVNTMQMONMPLSLUMXOZQ[T[VZXX",
    "I\\MFM[ MQPNRMUMWNXQX[",
    "NVQFRGSFREQF RMR[",
    "MWRFSGTFSERF SMS^RaPbNb",
    "IZMFM[ WMMW QSX[",
    "NVRFR[",
    "CaGMG[ GQJNLMOMQNRQR[ RQUNWMZM\\N]Q][",
    "I\\MMM[ MQPNRMUMWNXQX[",
    "I\\QMONMPLSLUMXOZQ[T[VZXXYUYSXPVNTMQM",
    "H[LMLb LPNNPMSMUNWPXSXUWXUZS[P[NZLX",
    "I\\XMXb XPVNTMQMONMPLSLUMXOZQ[T[VZXX",
    "KXOMO[ OSPPRNTMWM",
    "J[XPWNTMQMNNMPNRPSUTWUXWXXWZT[Q[NZMX",
    "MYRFRWSZU[W[ OMVM",
    "I\\MMMWNZP[S[UZXW XMX[",
    "JZLMR[ XMR[",
    "G]JMN[ RMN[ RMV[ ZMV[",
    "J[MMX[ XMM[",
    "JZLMR[ XMR[P_NaLbKb",
    "J[XMM[ MMXM M[X[",
    "KYTBRCQDPFPHQJRKSMSOQQ RCQEQGRISJTLTNSPORSTTVTXSZR[Q]Q_Ra QSSUSWRYQZP\\P^Q`RaTb",
    "NVRBRb",
    "KYPBRCSDTFTHSJRKQMQOSQ RCSESGRIQJPLPNQPURQTPVPXQZR[S]S_Ra SSQUQWRYSZT\\T^S`RaPb",
    "F^IUISJPLONOPPTSVTXTZS[Q ISJQLPNPPQTTVUXUZT[Q[O",
};

/* The y of the top of capital letters, and of the base line, in units of the font. y = 0 is the
 * middle of a line of text, and y grows downwards. */
enum { FONT_TOP = -12, FONT_BASE = 9 };

/* Returns the strokes of the character at *text and moves *text past it; NULL at the end. */
static const char *next_letter(const char **text)
{
    /* the letters U+00C0 … U+00FF without accents */
    static const char latin[] = "AAAAAAACEEEEIIIIDNOOOOOxOUUUUYPsaaaaaaaceeeeiiiidnooooo/ouuuuypy";
    unsigned char first = (unsigned char)**text;
    if (!first)
        return NULL;
    if (first == 0xC3 && ((unsigned char)(*text)[1] & 0xC0) == 0x80)
        first = (unsigned char)latin[(unsigned char)(*text)[1] & 0x3F];
    do
        ++*text;
    while (((unsigned char)**text & 0xC0) == 0x80); /* continuation bytes of UTF-8 */
    const unsigned at = (unsigned)first - ' ';
    return draw_font[at < COUNT_OF(draw_font) ? at : '?' - ' '];
}

static float unit_of(float size)
{
    return size / (FONT_BASE - FONT_TOP);
}

float draw_text_width(const char *text, float size)
{
    int width = 0;
    for (const char *letter; (letter = next_letter(&text));)
        width += letter[1] - letter[0];
    return (float)width * unit_of(size);
}

/* Draws the strokes of a letter whose left edge is at x. */
static void draw_letter(const struct canvas *canvas, const char *letter, float x, float y,
                        float size, struct rgb_colour colour)
{
    const float unit = unit_of(size), thickness = fmaxf(size / 8, 1.2f);
    const char left = letter[0];
    for (const char *at = letter + 2; *at; at++) { /* one stroke; a space separates strokes */
        float from_x = 0, from_y = 0;
        for (bool is_first = true; *at && *at != ' '; at += 2, is_first = false) {
            const float to_x = x + unit * (float)(at[0] - left);
            const float to_y = y + unit * (float)(at[1] - 'R' - FONT_TOP);
            if (!is_first)
                draw_line(canvas, from_x, from_y, to_x, to_y, thickness, colour);
            from_x = to_x;
            from_y = to_y;
        }
        if (!*at)
            break;
    }
}

void draw_text(const struct canvas *canvas, float x, float y, float size, const char *text,
               struct rgb_colour colour)
{
    for (const char *letter; (letter = next_letter(&text));) {
        draw_letter(canvas, letter, x, y, size, colour);
        x += unit_of(size) * (float)(letter[1] - letter[0]);
    }
}
