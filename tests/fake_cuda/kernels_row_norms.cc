#include "engine/cuda/kernels/row_norms.cu"
