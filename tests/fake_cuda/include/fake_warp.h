/* The test double of engine/cuda/kernels/tensor_core.cuh: what warps do together, lane by lane. */
#pragma once

#include "fake_device.h"

/* Leaves `size` bytes (64 at most) for the other lanes of the warp, waits for all of them, and
 * returns what lane 0 left; the next lane's is *ret_stride bytes further. Valid until the
 * operation after the next. */
const void *fake_exchange(const void *mine, size_t size, size_t *ret_stride);

/* Shared memory holds NaN between the start of a copy and the wait for it. */
void fake_copy_async(void *shared, const void *global, int bytes, bool has);
void fake_copies_commit();
void fake_copies_wait(size_t pending);

template <int BYTES> void copy_async(void *shared, const void *global, bool has)
{
    fake_copy_async(shared, global, BYTES, has);
}

static inline void copies_commit()
{
    fake_copies_commit();
}

template <int PENDING> void copies_wait()
{
    fake_copies_wait(PENDING);
}

static inline void fake_load_matrices(uint32_t (&r)[4], const void *row, bool transposed)
{
    size_t stride;
    if ((uintptr_t)row % 16)
        abort();
    const char *rows = (const char *)fake_exchange(&row, sizeof row, &stride);
    unsigned lane = threadIdx.x % 32;
    for (unsigned m = 0; m < 4; m++) {
        uint16_t pair[2];
        for (unsigned i = 0; i < 2; i++) {
            unsigned major = lane / 4, minor = lane % 4 * 2 + i;
            unsigned from = transposed ? minor : major, at = transposed ? major : minor;
            const uint16_t *numbers;
            memcpy(&numbers, rows + (m * 8 + from) * stride, sizeof numbers);
            pair[i] = numbers[at];
        }
        memcpy(&r[m], pair, sizeof r[m]);
    }
}

static inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    fake_load_matrices(r, row, false);
}

static inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    fake_load_matrices(r, row, true);
}

template <typename T> float fake_wide(uint16_t bits);
template <> inline float fake_wide<__half>(uint16_t bits)
{
    return half_to_float(bits);
}
template <> inline float fake_wide<__nv_bfloat16>(uint16_t bits)
{
    return bfloat16_to_float(bits);
}

template <typename T>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    float wide[12];
    for (int i = 0; i < 12; i++)
        wide[i] = fake_wide<T>((uint16_t)(words[i / 2] >> i % 2 * 16));
    size_t stride;
    const char *all = (const char *)fake_exchange(wide, sizeof wide, &stride);
    unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned k = 0; k < 16; k++) {
        /* k = 2 t + 8 h + i is in register h of lane t of its group, its half i. */
        unsigned h = k / 8, from = k % 8 / 2, i = k % 2;
        const float *left = (const float *)(all + (g * 4 + from) * stride);
        for (unsigned j = 0; j < 2; j++) {
            const float *right = (const float *)(all + ((2 * t + j) * 4 + from) * stride);
            float b = right[8 + h * 2 + i];
            c[j] += left[h * 4 + i] * b;
            c[2 + j] += left[h * 4 + 2 + i] * b;
        }
    }
}

/* TF32: a number in a register, whose last 13 bits do not count. */
static inline float fake_tf32(uint32_t bits)
{
    float x;
    bits &= ~UINT32_C(0x1fff);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* To the nearest, of two the one further from 0. */
static inline uint32_t round_tf32(uint32_t bits)
{
    const bool is_finite = (bits & 0x7f800000) != 0x7f800000;
    return is_finite ? (bits + 0x1000) & ~UINT32_C(0x1fff) : bits;
}

struct tf32_half;
template <>
inline void multiply_add<tf32_half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const float wide[6] = {fake_tf32(a[0]), fake_tf32(a[1]), fake_tf32(a[2]),
                           fake_tf32(a[3]), fake_tf32(b0),   fake_tf32(b1)};
    size_t stride;
    const char *all = (const char *)fake_exchange(wide, sizeof wide, &stride);
    unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned k = 0; k < 8; k++) {
        /* k = t + 4 h is in register h of lane t of its group. */
        unsigned h = k / 4, from = k % 4;
        const float *left = (const float *)(all + (g * 4 + from) * stride);
        for (unsigned j = 0; j < 2; j++) {
            const float *right = (const float *)(all + ((2 * t + j) * 4 + from) * stride);
            c[j] += left[h * 2] * right[4 + h];
            c[2 + j] += left[h * 2 + 1] * right[4 + h];
        }
    }
}

/* Integers: four in a register, sums that wrap. */
struct s8_pair;
struct u8_pair;
template <typename T> int fake_byte(uint32_t word, unsigned i);
template <> inline int fake_byte<s8_pair>(uint32_t word, unsigned i)
{
    return (int8_t)(word >> i * 8 & 255);
}
template <> inline int fake_byte<u8_pair>(uint32_t word, unsigned i)
{
    return (int)(word >> i * 8 & 255);
}

template <typename T> int fake_dot(uint32_t x, uint32_t weights, int sum)
{
    for (unsigned i = 0; i < 4; i++)
        sum =
            (int)((unsigned)sum + (unsigned)(fake_byte<T>(x, i) * fake_byte<s8_pair>(weights, i)));
    return sum;
}

template <typename T>
void multiply_add(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    size_t stride;
    const char *all = (const char *)fake_exchange(words, sizeof words, &stride);
    unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    /* k = 4 t + 16 h + i is in register h of lane t of its group, its byte i. */
    for (unsigned h = 0; h < 2; h++)
        for (unsigned from = 0; from < 4; from++) {
            const uint32_t *left = (const uint32_t *)(all + (g * 4 + from) * stride);
            for (unsigned j = 0; j < 2; j++) {
                const uint32_t *right = (const uint32_t *)(all + ((2 * t + j) * 4 + from) * stride);
                c[j] = fake_dot<T>(left[h * 2], right[4 + h], c[j]);
                c[2 + j] = fake_dot<T>(left[h * 2 + 1], right[4 + h], c[2 + j]);
            }
        }
}
