#include "engine/cuda/kernels/int8_rows.cu"
