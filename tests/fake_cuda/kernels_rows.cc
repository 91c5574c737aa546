#include "engine/cuda/kernels/rows.cu"
