/* Comparing an output with what is expected: onnx/backend/test/runner's rules. */
#pragma once

#include "engine/tensor/tensor.h"

/* STATUS_OK when dtype and shape are equal and every element agrees. `declared` is the dtype the
 * graph gives this output: an output of that dtype may be compared with expected floats of another
 * (models exported in float64 or converted to float16, whose expected values are float32). Elements
 * agree: integers and booleans exactly; floats with |actual - expected| <= atol + rtol *
 * |expected|, NaN equal to NaN, infinities equal in sign. Outputs of 16 bit are given an rtol of at
 * least 2e-3 (float16) or 1e-2 (bfloat16): half and one unit in the last place. Otherwise
 * STATUS_NUMERIC / STATUS_SHAPE with the first element that differs, the number of them and the
 * greatest difference. */
enum status compare_tensors(const struct tensor *actual, const struct tensor *expected,
                            enum dtype declared, double rtol, double atol,
                            struct error *err) MUST_USE;
