/* Compares two tensors by the rules of ONNX's own test runner. */
#include "tests/conformance/compare.h"

#include <math.h>
#include <string.h>

static bool close_enough(double actual, double expected, double rtol, double atol)
{
    if (isnan(expected) || isnan(actual))
        return isnan(expected) && isnan(actual);
    if (isinf(expected) || isinf(actual))
        return actual == expected;
    return fabs(actual - expected) <= atol + rtol * fabs(expected);
}

static enum status compare_floats(const struct tensor *actual, const struct tensor *expected,
                                  double rtol, double atol, struct error *err)
{
    size_t count = shape_count(&actual->shape), wrong = 0, first = 0;
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double a = tensor_number(actual, i), e = tensor_number(expected, i);
        if (close_enough(a, e, rtol, atol))
            continue;
        if (!wrong++)
            first = i;
        if (fabs(a - e) > worst)
            worst = fabs(a - e);
    }
    if (!wrong)
        return STATUS_OK;
    return error_set(err, STATUS_NUMERIC,
                     "%zu of %zu elements differ, the first at %zu: got %.9g, expected %.9g "
                     "(greatest difference %.3g, rtol %g, atol %g)",
                     wrong, count, first, tensor_number(actual, first),
                     tensor_number(expected, first), worst, rtol, atol);
}

static enum status compare_integers(const struct tensor *actual, const struct tensor *expected,
                                    struct error *err)
{
    size_t element = dtype_size(actual->dtype), count = shape_count(&actual->shape);
    const char *a = actual->data, *e = expected->data;
    for (size_t i = 0; i < count; i++)
        if (memcmp(a + i * element, e + i * element, element))
            return error_set(err, STATUS_NUMERIC, "element %zu of %zu: got %lld, expected %lld", i,
                             count, (long long)tensor_int(actual, i),
                             (long long)tensor_int(expected, i));
    return STATUS_OK;
}

static bool same_dtype(const struct tensor *actual, const struct tensor *expected,
                       enum dtype declared)
{
    return actual->dtype == expected->dtype ||
           (actual->dtype == declared && dtype_is_float(actual->dtype) &&
            dtype_is_float(expected->dtype));
}

enum status compare_tensors(const struct tensor *actual, const struct tensor *expected,
                            enum dtype declared, double rtol, double atol, struct error *err)
{
    if (!same_dtype(actual, expected, declared) || !shape_equal(&actual->shape, &expected->shape))
        return error_set(err, STATUS_SHAPE, "got %s %s, expected %s %s", dtype_name(actual->dtype),
                         SHAPE_STRING(&actual->shape), dtype_name(expected->dtype),
                         SHAPE_STRING(&expected->shape));
    if (!dtype_is_float(actual->dtype))
        return compare_integers(actual, expected, err);
    double least = actual->dtype == DTYPE_F16 ? 2e-3 : actual->dtype == DTYPE_BF16 ? 1e-2 : 0;
    return compare_floats(actual, expected, rtol > least ? rtol : least, atol, err);
}
